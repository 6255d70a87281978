"""`--quick` of benchmarks that have no other test: a small table, with a ratio in each line."""

from __future__ import annotations

import re

from benchmarks import balancers, step


def rows(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if re.search(r"\| *\d", line)]


def test_steps_of_two_small_heads(capsys):
    step.main(["--quick"])
    found = rows(capsys)
    assert [line.split(" | ")[0] for line in found] == [f"| {name}" for name in ("custom training loop", *step.VARIANTS)]


def test_one_solver(capsys):
    balancers.main(["--quick"])
    assert len(rows(capsys)) == 1
