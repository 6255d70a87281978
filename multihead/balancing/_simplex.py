"""Weights that are at least 0 and sum to 1, over the heads that take part."""

from __future__ import annotations

import tensorflow as tf


def project_onto_simplex(point: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
    """The nearest weights to a point.

    Args:
        point: `[num_heads]` float64.
        active: `[num_heads]` float64, 1 for heads that take part and 0 for others, whose weight is 0.

    Returns:
        `[num_heads]` float64; zeros if no head takes part.

    Source: Duchi et al., Efficient Projections onto the l1-Ball, ICML 2008, figure 1.
    """
    takes_part = active > 0
    lowest = tf.constant(-1e300, tf.float64)
    highest = tf.reduce_max(tf.where(takes_part, point, lowest))
    below = tf.where(takes_part, tf.maximum(point - highest, -2.0), -2.0)  # what is 1 below the highest gets nothing
    descending = tf.sort(below, direction="DESCENDING")
    counts = tf.range(1.0, float(int(point.shape[0])) + 1.0, dtype=tf.float64)
    thresholds = (tf.cumsum(descending) - 1.0) / counts
    threshold = thresholds[tf.maximum(tf.reduce_sum(tf.cast(descending > thresholds, tf.int32)) - 1, 0)]
    return tf.where(takes_part, tf.maximum(below - threshold, 0.0), 0.0 * point)


def among_active(weights: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
    """The weights of the heads that take part, scaled to sum to 1; alike if they were all 0."""
    kept = weights * active
    kept = tf.where(tf.reduce_sum(kept) > 1e-30, kept, active)
    return tf.math.divide_no_nan(kept, tf.reduce_sum(kept))


def back_among_all(new: tf.Tensor, old: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
    """Puts new weights of the active heads beside the idle heads' old ones, which stay."""
    share = tf.reduce_sum(old * active)
    return tf.where(active > 0, new * share, old)
