"""Promise 4 with a weighting: the update is that of a tape by hand over the total loss, however it was gathered."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import tiny
from tests.helpers.gathering import assert_alike, batches_of_updates
from tests.helpers.weighted import TOTALS, by_hand, trained

pytestmark = pytest.mark.usefixtures("eager_updates")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("name", "gathering", "eagerly"),
    [
        ("GeometricMean", "micro-batches", False),
        ("LogLoss", "whole", True),
        ("SmoothTchebycheff", "batches", True),
        ("Uncertainty", "batches", False),
        ("IMTLL", "micro-batches", True),
        ("UWSO", "both", True),
    ],
)
def test_update_is_that_of_a_tape_over_the_total(name, gathering, eagerly):
    updates = batches_of_updates(True)
    weights, learned = by_hand(updates, TOTALS[name])
    actual, trainer, _ = trained(updates, name, gathering, run_eagerly=eagerly)
    assert_alike(actual, weights)
    if trainer.weighting.trainable_variables:
        np.testing.assert_allclose(tiny.values(trainer.weighting.trainable_variables), learned, atol=1e-6)


def starts(trainer):
    """The values that a trainer's weighting began with."""
    trainer.weighting.reset()
    return tiny.values(trainer.weighting.variables)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["GradNorm", "FAMO"])
def test_gradnorm_and_famo_are_the_same_however_gathered(name):
    updates = batches_of_updates(True)
    whole, first, _ = trained(updates, name, "whole")
    other, second, _ = trained(updates, name, "both")
    assert_alike(other, whole)
    mine, theirs = (tiny.values(trainer.weighting.variables) for trainer in (first, second))
    for a, b in zip(mine, theirs):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert any(np.any(np.abs(value - start) > 1e-4) for value, start in zip(mine, starts(first)))
