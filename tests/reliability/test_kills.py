"""A short run of `tests.pairs.kills`, which kills runs by a timer and while they write a checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
@pytest.mark.programs
@pytest.mark.parametrize(("kills", "rows"), [(3, 1), (30, 10)], ids=["few", "many"])
def test_killed_runs_leave_what_the_run_leaves_that_was_not_killed(kills, rows):
    command = [sys.executable, "-W", "ignore", "-m", "tests.pairs.kills", "--eager", "--seed", "1"]
    command += ["--kills", str(kills), "--rows", str(rows)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert done.stdout.splitlines()[-1] == f"{kills} kills, 0 rows that differ"
