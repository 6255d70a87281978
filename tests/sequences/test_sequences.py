"""Calls in any order: after each of them the trainer has the state of a twin in NumPy that was called in the same way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.sequences.machine import Machine

pytestmark = pytest.mark.filterwarnings("ignore")


def run(machine: type[Machine], sequences: int, calls: int) -> None:
    options: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    chosen = settings(derandomize=True, max_examples=sequences, stateful_step_count=calls, print_blob=False, **options)
    run_state_machine_as_test(machine, settings=chosen)


def test_calls_in_any_order():
    run(Machine, sequences=8, calls=12)


@pytest.mark.thorough
@pytest.mark.parametrize("eager", [True, False])
def test_more_calls_in_any_order(eager):
    run(type("Longer", (Machine,), {"eager": eager}), sequences=100, calls=25)
