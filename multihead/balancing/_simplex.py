"""Weights on the simplex: non-negative, with a sum of 1 over the active heads."""

from __future__ import annotations

import tensorflow as tf

from multihead._ground.where import where


def project_onto_simplex(point: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
    """The weights on the simplex that are closest to a point.

    Args:
        point: `[num_heads]` float64.
        active: `[num_heads]` float64, 1 for active heads and 0 for idle ones, whose weight is 0.

    Returns:
        `[num_heads]` float64; zeros if no head is active.

    Source: Duchi et al., Efficient Projections onto the l1-Ball, ICML 2008, figure 1.
    """
    takes_part = active > 0
    lowest = tf.constant(-1e300, tf.float64)
    highest = tf.reduce_max(where(takes_part, point, lowest))
    below = where(takes_part, tf.maximum(point - highest, -2.0), -2.0)  # values 1 below the highest get weight 0
    descending = tf.sort(below, direction="DESCENDING")
    counts = tf.range(1.0, float(int(point.shape[0])) + 1.0, dtype=tf.float64)
    thresholds = (tf.cumsum(descending) - 1.0) / counts
    threshold = thresholds[tf.maximum(tf.reduce_sum(tf.cast(descending > thresholds, tf.int32)) - 1, 0)]
    return where(takes_part, tf.maximum(below - threshold, 0.0), 0.0 * point)


def among_active(weights: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
    """The weights of the active heads, scaled to sum to 1; equal weights if they are all 0."""
    weights = weights * active
    weights = where(tf.reduce_sum(weights) > 1e-30, weights, active)
    return tf.math.divide_no_nan(weights, tf.reduce_sum(weights))


def back_among_all(new: tf.Tensor, old: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
    """Replaces the weights of the active heads and keeps those of the idle heads."""
    share = tf.reduce_sum(old * active)
    return where(active > 0, new * share, old)
