"""Promise 4 with a weighting: the update is that of a tape by hand over the total loss, however it was gathered."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import balancing_reference, reference, tiny
from tests.helpers.gathering import assert_alike, batches_of_updates, padded
from tests.helpers.weighted import HEADS, TOTALS, adam, by_hand, trained

pytestmark = pytest.mark.usefixtures("eager_updates")


@pytest.mark.first_cases(2)
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


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("level", "gathering"),
    [("representation", "whole"), ("representation", "micro-batches"), ("parameters", "micro-batches")],
)
def test_a_balancer_sees_weighted_gradients(level, gathering):
    updates = batches_of_updates(True)[:1]
    encoder, heads = tiny.modules()
    batch = padded(updates[0])
    representation = encoder(batch[0])
    values = reference.element_losses({name: heads[name](representation) for name in HEADS}, batch)
    # LogLoss counts each head by the inverse of its loss, which at the first update is known beforehand.
    weights = {name: float(mask.sum() / tf.reduce_sum(tf.where(mask, v, 0.0))) for name, (v, mask) in values.items()}
    combine = lambda gramian: balancing_reference.coefficients("UPGrad", gramian)  # noqa: E731
    hand = reference.Reference(encoder, heads, adam(), weights, combine, level)
    hand.update([batch])
    actual, _, history = trained(updates, "LogLoss", gathering, balancer="UPGrad", balance_at=level)
    assert_alike(actual, tiny.values(hand.variables))
    for name in HEADS:
        np.testing.assert_allclose(history[f"{name}_weight"], [weights[name]], rtol=1e-5)


def starts(trainer):
    """The values that a trainer's weighting began with."""
    trainer.weighting.reset()
    return tiny.values(trainer.weighting.variables)


@pytest.mark.first_cases(1)
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
