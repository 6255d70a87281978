"""Promise 4: the same update comes out however it was gathered, and it is the one written by hand."""

from __future__ import annotations

import pytest

from tests.helpers.cases import pairwise
from tests.helpers.gathering import (
    BALANCINGS,
    GATHERINGS,
    OPTIMIZERS,
    assert_alike,
    batches_of_updates,
    expected,
    trained,
)


@pytest.mark.first_cases(2)
@pytest.mark.usefixtures("optimized_graphs")
@pytest.mark.parametrize(
    ("gathering", "balanced", "clip", "missing", "optimizer"),
    pairwise(GATHERINGS, BALANCINGS, (None, 0.3), (True, False), OPTIMIZERS),
)
def test_update_is_that_of_a_tape_by_hand(gathering, balanced, clip, missing, optimizer):
    balancer, level = BALANCINGS[balanced]
    updates = batches_of_updates(missing)
    wanted = expected(updates, OPTIMIZERS[optimizer], balancer, level, clip)
    actual, _ = trained(updates, OPTIMIZERS[optimizer], gathering, balancer, level, clip)
    assert_alike(actual, wanted)


@pytest.mark.first_cases(1)
@pytest.mark.usefixtures("eager_updates")
@pytest.mark.parametrize("gathering", ["both", "whole", "micro-batches", "batches"])
def test_coefficients_that_are_known_before_are_those_of_a_tape_by_hand(gathering):
    updates = batches_of_updates(missing=True)
    wanted = expected(updates, OPTIMIZERS["momentum"], *BALANCINGS["known before"], clip=0.3)
    actual, _ = trained(updates, OPTIMIZERS["momentum"], gathering, *BALANCINGS["known before"], clip=0.3)
    assert_alike(actual, wanted)
