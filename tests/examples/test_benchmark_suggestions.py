"""The benchmarks of methods on six models and of following `diagnose`: they run, and their tables are in the docs."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from benchmarks import _results, following, suggestions
from multihead import balancing, weighting
from tests.helpers.sources import ROOT

pytestmark = pytest.mark.programs


@pytest.mark.thorough
def test_a_model_is_trained_with_the_plain_sum_and_with_a_method(tmp_path, capsys):
    output = tmp_path / "found.json"
    arguments = ["--models", "summed", "--seeds", "1", "--methods", "EqualNorms", "--quick", "--output", str(output)]
    suggestions.main(arguments)
    found = json.loads(output.read_text(encoding="utf-8"))["summed"]
    assert set(found) == {"plain sum", "EqualNorms"} and found["plain sum"] != found["EqualNorms"]
    assert all(set(run) == {"a", "b", "c"} for runs in found.values() for run in runs)
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


def test_the_table_of_following_is_that_of_the_lines():
    lines = _results.read_lines(following.LINES)
    assert len(lines) == len(following.KINDS) * following.VARIANTS >= 40
    assert following.summary(lines) in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")


def test_scores_are_those_of_their_definitions():
    labels = np.array([[0.0], [1.0], [0.0], [1.0]], "float32")
    assert following.score(np.array([[0.1], [0.9], [0.2], [0.8]]), labels) == 1
    assert following.score(np.array([[0.1], [0.15], [0.2], [0.8]]), labels) == 0.75
    numbers = np.array([[1.0], [2.0], [4.0]])
    assert following.score(np.concatenate([numbers, numbers], axis=1), numbers) == 1  # the mean of a likelihood
    assert following.score(np.eye(3), np.array([0, 1, 1])) == pytest.approx(2 / 3)


@pytest.mark.thorough
def test_raw_units_are_repaired_by_following(tmp_path, capsys):
    following.main(["--kinds", "raw_units", "--variants", "1", "--seeds", "2", "--output", str(tmp_path / "lines.jsonl")])
    (line,) = _results.read_lines(tmp_path / "lines.jsonl")
    assert all("target_scaling" in each for each in line["suggested"])
    assert all(one["b"] > other["b"] + 0.2 for one, other in zip(line["followed"], line["plain"]))
    assert "`raw_units`" in capsys.readouterr().out
