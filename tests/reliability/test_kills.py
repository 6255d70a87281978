"""Runs that are killed by a timer and while they write a checkpoint, by `tests.pairs.kills`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.sources import ROOT

ALL = ["arrays", "dataset", "mixed", "windows"]
THOROUGH = pytest.mark.thorough


@pytest.mark.programs
@pytest.mark.parametrize(
    ("kills", "cases", "rows"),
    [
        pytest.param(1, ["arrays"], 0, id="few"),
        pytest.param(56, ALL, 0, id="cases", marks=THOROUGH),
        pytest.param(30, [], 10, id="rows", marks=THOROUGH),
    ],
)
def test_killed_runs_leave_what_the_run_leaves_that_was_not_killed(kills, cases, rows):
    command = [sys.executable, "-W", "ignore", "-m", "tests.pairs.kills", "--eager", "--seed", "1"]
    command += ["--kills", str(kills), "--rows", str(rows), "--cases", *cases]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert done.stdout.splitlines()[-1] == f"{kills} kills, 0 runs that differ"
