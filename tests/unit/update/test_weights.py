"""How much each loss counts, against the weightings' own formulas."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead import weighting
from multihead._update.weights import Losses, LossWeights, depends_on_losses, head_weights_at
from multihead.heads._named import new_head

SUMS, COUNTS = tf.constant([6.0, 8.0, 5.0]), tf.constant([3.0, 2.0, 0.0])
ACTIVE, OWN = tf.constant([True, True, False]), tf.constant([0.5, 2.0, 1.0])


def weights(method):
    if method is not None:
        method.bind(["a", "b", "c"])
        method.build((3,))
    known = {
        "counts": COUNTS,
        "examples": tf.constant(3.0),
        "scale": None,
        "conditional": (),
        "step": tf.constant(4, tf.int64),
    }
    return LossWeights.of(method, OWN, active=ACTIVE, meeting=ACTIVE, **known)


def test_without_a_weighting_the_total_is_the_weighted_sum_of_means():
    found = weights(None)
    np.testing.assert_allclose(found.per_element, [0.5 / 3, 1.0, 0.0])
    losses = Losses(found, SUMS)
    assert losses.factors is None and not depends_on_losses(found.weighting)
    np.testing.assert_allclose(losses.total, 0.5 * 2 + 2 * 4)
    np.testing.assert_allclose(losses.weights, [0.5, 2.0, 0.0])
    assert losses.learned(None) == [] and losses.regularizer is None
    np.testing.assert_allclose(losses.means, [2.0, 4.0, 0.0])
    np.testing.assert_allclose(losses.weighted, [1.0, 8.0, 0.0])


def test_a_weighting_of_the_losses_gives_further_factors():
    found = weights(weighting.LogLoss())  # weights are one over the weighted losses, 1 and 8
    assert depends_on_losses(found.weighting)
    np.testing.assert_allclose(found.per_element, [0.5 / 3, 1.0, 0.0])
    losses = Losses(found, SUMS)
    np.testing.assert_allclose(losses.factors, [1.0, 1 / 8, 0.0], rtol=1e-6)
    np.testing.assert_allclose(losses.total, np.log(1) + np.log(8), rtol=1e-5)
    np.testing.assert_allclose(losses.weights, [0.5, 2 / 8, 0.0], rtol=1e-6)
    np.testing.assert_allclose(losses.weighted, [1.0, 8.0, 0.0])


def test_learned_weights_are_known_before_the_losses():
    found = weights(weighting.Uncertainty())  # half of each loss at the start
    losses = Losses(found, SUMS)
    assert not depends_on_losses(found.weighting) and losses.factors is None
    np.testing.assert_allclose(found.fixed, [0.25, 1.0, 0.0])
    assert len(losses.learned(None)) == 3
    np.testing.assert_allclose(losses.means, [2.0, 4.0, 0.0])
    np.testing.assert_allclose(found.times_means(found.mean_losses(2 * SUMS)), [2.0, 16.0, 0.0])


def test_weights_of_heads_are_numbers_or_functions_of_the_step():
    heads = [
        new_head("a", tf.identity, "mse", weight=0.3),
        new_head("b", tf.identity, "mse", weight=lambda step: 2.0 - tf.cast(step, tf.float32)),
    ]
    np.testing.assert_allclose(head_weights_at(heads, tf.constant(1, tf.int64)), [0.3, 1.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="`weight` of a head must be at least 0 at every step"):
        head_weights_at(heads, tf.constant(3, tf.int64))
