"""The largest of many numbers, against `tf.math.top_k`."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead.models import _search


@pytest.mark.parametrize("size, count", [(2000, 6), (211, 5), (307, 1), (128, 8), (30, 6)])
@pytest.mark.parametrize("distinct", [3, 40, 10**6])
def test_the_same_as_top_k(size, count, distinct):
    random = np.random.default_rng(0)
    rows = random.integers(0, distinct, [7, size]).astype(np.float32)  # with many equal numbers, too
    rows[1] = rows[2, : size // 2] = -np.inf
    rows[3, :-2] = -np.inf
    expected, found = tf.math.top_k(rows, count), _search.largest(tf.constant(rows), count)
    np.testing.assert_array_equal(found[0], expected.values)
    np.testing.assert_array_equal(found[1], expected.indices)
