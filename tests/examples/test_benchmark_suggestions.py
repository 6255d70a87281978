"""The benchmark of following `diagnose`: it runs, and its arms differ by the factors of the losses alone."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks import suggestions
from multihead import balancing, weighting
from tests.helpers.sources import ROOT

pytestmark = pytest.mark.programs


@pytest.mark.thorough
def test_a_summed_loss_is_to_be_balanced_and_every_arm_is_trained(tmp_path, capsys):
    output = tmp_path / "found.json"
    suggestions.main(["--models", "summed", "--seeds", "1", "--quick", "--output", str(output)])
    found = json.loads(output.read_text(encoding="utf-8"))["summed"]
    assert found["suggestions"] == [dict.fromkeys("abc", "NormFloor")]
    runs = [found["plain sum"][0], found["suggestion"][0], found["by hand"]["runs"][0]]
    assert all(set(run) == {"a", "b", "c"} for run in runs) and runs[0] != runs[1]
    assert "summed" in capsys.readouterr().out


def test_better_and_worse_are_beyond_the_noise_of_the_seeds():
    plain = [{"a": 0.1}, {"a": 0.2}, {"a": 0.3}]
    assert suggestions.verdict(plain, plain, "a") == ""
    assert suggestions.verdict([{"a": 0.25}, {"a": 0.35}, {"a": 0.45}], plain, "a") == ""  # 0.15 is less than 2 * 0.082
    assert suggestions.verdict([{"a": 0.3}, {"a": 0.4}, {"a": 0.5}], plain, "a") == "better"
    assert suggestions.verdict([{"a": -0.1}, {"a": 0.0}, {"a": 0.1}], plain, "a") == "worse"


def test_the_docs_say_of_every_method_what_it_did_or_why_that_is_not_known():
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8").partition("## What each method did")[2]
    table = [line for line in page.partition("<!-- methods: end -->")[0].splitlines() if line.startswith("| `")]
    measured = {line.split("`")[1] for line in table}
    absent = set(re.findall(r"`(\w+)`", page.partition("Not in the table:")[2].partition("\n\n")[0])) - {"EqualNorms"}
    bases = {"Balancer", "Weighting"}
    methods = {name for package in (balancing, weighting) for name in package.__all__ if name[0].isupper()} - bases
    assert measured | absent == methods and not measured & absent
    models = {name for line in page.splitlines() if line.startswith("| method |") for name in re.findall(r"`(\w+)`", line)}
    assert models == {each.__name__ for each in suggestions.SIX}
    cells = [[cell.strip() for cell in line.split("|")[2:-1]] for line in table]
    assert sum(len(row) for row in cells) == len(measured) * (len(models) + 1)  # and a column for what a method fixes
    assert all(cell for row in cells for cell in row)
