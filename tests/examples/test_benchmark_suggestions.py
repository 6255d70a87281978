"""The benchmark of following `diagnose`: it runs, and its arms differ by the factors of the losses alone."""

from __future__ import annotations

import json

import pytest

from benchmarks import suggestions


@pytest.mark.one_in(2)
def test_a_summed_loss_is_suggested_less_weight_and_every_arm_is_trained(tmp_path, capsys):
    output = tmp_path / "found.json"
    suggestions.main(["--models", "summed", "--seeds", "1", "--quick", "--output", str(output)])
    found = json.loads(output.read_text(encoding="utf-8"))["summed"]
    (suggested,) = found["suggestions"]
    assert suggested["c"] < min(suggested["a"], suggested["b"])
    runs = [found["plain sum"][0], found["suggestion"][0], found["by hand"]["runs"][0]]
    assert all(set(run) == {"a", "b", "c"} for run in runs) and runs[0] != runs[1]
    assert "summed" in capsys.readouterr().out
