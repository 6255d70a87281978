"""The benchmark of protections: each of them is really left out of the step."""

from __future__ import annotations

import functools

import pytest

from benchmarks.speed import protections
from tests.helpers.operations import operations

pytestmark = pytest.mark.programs


@functools.cache
def number_of_operations(*without):
    step, batch = protections.without(without)
    return len(operations(step.get_concrete_function(batch)))


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", [protections.LABELS, *protections.REPLACED])
def test_a_step_without_it_has_fewer_operations(name):
    assert number_of_operations(name) < number_of_operations() - 10
