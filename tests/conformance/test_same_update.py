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
