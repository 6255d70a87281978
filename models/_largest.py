"""The largest of many numbers."""

from __future__ import annotations

import math

import tensorflow as tf

_SHORT = 16
"""Rows of fewer numbers than this many times `count` are read at once: the other way has more operations."""


def largest(rows: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """`tf.math.top_k` of a matrix, faster for long rows.

    `top_k` takes several nanoseconds per number. Here it reads the maxima of groups of numbers, then only the `count` groups
    with the largest maxima: no number of another group can be among the `count` largest. Equal numbers have the order of
    `top_k`, the first ones first, since the chosen groups are read in their own order.

    Args:
        rows: `[rows, size]`, without NaN; the size is known.
        count: A number of at least 1 and at most `size`.

    Returns:
        The values, `[rows, count]`, in descending order, and their positions, int32 `[rows, count]`.
    """
    size = int(rows.shape[1])
    if size < _SHORT * count:
        return tf.math.top_k(rows, count)
    length = _group_length(size, count)
    missing = -size % length
    if missing:
        rows = tf.pad(rows, [[0, 0], [0, missing]], constant_values=-float("inf"))
    groups = tf.reshape(rows, [-1, (size + missing) // length, length])
    chosen = tf.math.top_k(tf.reduce_max(groups, axis=2), count).indices
    chosen = tf.sort(chosen, axis=1)
    values, places = tf.math.top_k(tf.reshape(tf.gather(groups, chosen, batch_dims=1), [-1, count * length]), count)
    return values, tf.gather(chosen, places // length, batch_dims=1) * length + places % length


def _group_length(size: int, count: int) -> int:
    """The length of groups, near the one with the fewest numbers to read, that divides the size where one does."""
    best = max(1, round(math.sqrt(size / count)))
    near = range(max(2, best * 3 // 4), best * 3 // 2 + 1)
    return min((length for length in near if size % length == 0), key=lambda length: abs(length - best), default=best)
