"""Random draws are functions of the seed and the update alone, and are what they say."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from multihead._ground.random import normal, uniform
from tests.helpers.draws import at_steps

pytestmark = pytest.mark.mathematics


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("draw", "distribution"), [(uniform, "uniform"), (normal, "norm")])
def test_distribution(draw, distribution):
    values = draw([20000], 7, 3).numpy()
    assert stats.kstest(values, distribution).pvalue > 0.01
    neighbours = [draw([20000], 8, 3), draw([20000], 7, 4), np.roll(values, 1)]
    assert all(abs(np.corrcoef(values, other)[0, 1]) < 0.03 for other in neighbours)
    streams = at_steps(lambda step: draw([1], 7, step)[0], 2000)
    assert stats.kstest(streams, distribution).pvalue > 0.01


def test_the_same_in_every_mode_and_for_every_length():
    for draw in (uniform, normal):
        plain = draw([3, 4], -5, 2)
        for is_compiled in (False, True):
            run = tf.function(lambda update, draw=draw: draw([3, 4], -5, update), jit_compile=is_compiled)
            np.testing.assert_allclose(run(tf.constant(2, tf.int64)), plain, atol=1e-6)
        np.testing.assert_allclose(tf.reshape(draw([100], -5, 2)[:12], [3, 4]), plain, atol=1e-6)
