"""Calls in any order: after each of them the trainer has the state of a twin in NumPy that was called in the same way."""

from __future__ import annotations

import pytest

from tests.sequences.__main__ import run
from tests.sequences.machine import Machine

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("seed", [0, 2, 1, 3])  # the quicker ones first: five sequences of at most 12 calls each
def test_calls_in_any_order(seed):
    error = run(seed, Machine, steps=12, shrinks=False)
    if error is not None:
        command = f"python -m tests.sequences --seed {seed} --steps 12 --faults 1"
        raise AssertionError(f"`{command}` prints the smallest sequence that shows this fault.") from error


@pytest.mark.thorough
@pytest.mark.parametrize("eager", [True, False])
def test_more_calls_in_any_order(eager):
    for seed in range(20):
        error = run(seed, type("Machine", (Machine,), {"eager": eager}), steps=25, shrinks=True)
        assert error is None, "\n".join([f"seed {seed}: {error!r}", *getattr(error, "__notes__", [])])
