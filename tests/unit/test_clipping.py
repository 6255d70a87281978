"""Clipping against NumPy in float64, for dense, sparse and absent gradients."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead import clipping

pytestmark = pytest.mark.mathematics

SPARSE = tf.IndexedSlices(tf.constant([[3.0, 0.0], [1.0, 2.0], [1.0, -1.0]]), tf.constant([2, 0, 2]), tf.constant([4, 2]))
GRADIENTS = [tf.constant([[0.3, -4.0]]), None, SPARSE, tf.constant([2.0])]


def dense(gradients):
    return [None if g is None else np.asarray(tf.convert_to_tensor(g), "float64") for g in gradients]


def by_numpy(method, gradients, limit):
    present = [g for g in gradients if g is not None]
    total = np.sqrt(sum((g**2).sum() for g in present))
    rules = {
        "ByValue": lambda g: np.clip(g, -limit, limit),
        "ByNorm": lambda g: g * min(1, limit / np.linalg.norm(g)),
        "ByAverageNorm": lambda g: g * min(1, limit * g.size / np.linalg.norm(g)),
        "ByGlobalNorm": lambda g: g * min(1, limit / total),
    }
    return [None if g is None else rules[method](g) for g in gradients]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("limit", [0.05, 1.5, 100.0])
@pytest.mark.parametrize("method", ["ByValue", "ByNorm", "ByAverageNorm", "ByGlobalNorm"])
@pytest.mark.parametrize("in_graph", [False, True])
def test_clipping_is_its_formula_on_summed_rows(method, limit, in_graph):
    clip = getattr(clipping, method)(limit)
    call = tf.function(lambda: [g for g in clip(GRADIENTS) if g is not None]) if in_graph else lambda: clip(GRADIENTS)
    wanted = [w for w in by_numpy(method, dense(GRADIENTS), limit) if w is not None]
    clipped = list(call())
    if not in_graph:
        assert clipped[1] is None and isinstance(clipped[2], tf.IndexedSlices)
    for a, b in zip(dense([g for g in clipped if g is not None]), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_huge_and_tiny_gradients_neither_overflow_nor_vanish():
    huge, tiny = tf.constant([3e25, 4e25]), tf.constant([3e-30, 4e-30])
    np.testing.assert_allclose(clipping.ByNorm(1.0)([huge])[0], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(clipping.ByGlobalNorm(1.0)([huge, huge])[1], np.array([0.6, 0.8]) / np.sqrt(2), rtol=1e-6)
    np.testing.assert_array_equal(clipping.ByNorm(1.0)([tiny])[0], tiny)
    empty = tf.zeros([0, 3])
    assert clipping.ByGlobalNorm(1.0)([empty, huge])[0].shape == (0, 3)
