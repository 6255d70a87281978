"""The multiple-gradient descent algorithm (MGDA)."""

from __future__ import annotations

import tensorflow as tf

from multihead._ground.keras import keras
from multihead.balancing._base import MAX_HEADS, Balancer
from multihead.balancing._cone import dual_cone
from multihead.balancing._least_squares import nonnegative_least_squares
from multihead.balancing._rows import unit_rows


@keras.saving.register_keras_serializable(package="multihead")
class MGDA(Balancer):
    """Takes the convex combination of the heads' gradients with the smallest norm.

    The update improves every head by at least its own squared norm, and is zero where no update improves all of them
    (at a Pareto-stationary point). It follows the *smallest* gradients: unless you want that, scale the gradients
    first, as in `Chain(EqualNorms(), MGDA())`.

    Formula: `d = sum_k w_k g_k`, `w = argmin |sum_k w_k g_k|^2` subject to `w >= 0`, `sum_k w_k = 1`.

    What it fixes: direction (`d . g_k >= |d|^2` for every head) and magnitude. Size of the update: at most that of the
    smallest gradient. The coefficients sum to 1. At a Pareto-stationary point they are 0 if rounding would leave a
    residual in a random direction.

    Args:
        name: Name of the layer.

    Raises:
        ValueError: There are more than 16 heads.

    Example:
        >>> MGDA()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.0, 1.0, 1.0]

    Source: Desideri, Multiple-gradient descent algorithm, Comptes Rendus Mathematique 350, 2012; Sener and Koltun,
    Multi-Task Learning as Multi-Objective Optimization, NeurIPS 2018.
    """

    max_heads = MAX_HEADS

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        smallest = tf.reduce_min(tf.where(rows.active > 0, rows.norms, tf.float64.max))
        ratios = rows.active * smallest / rows.norms
        # In unit rows: min |sum_k y_k u_k|^2 + (1 - sum_k ratio_k y_k)^2 over y >= 0, which gives the solution up to a
        # factor. Both squares have the same order of magnitude, however much the norms of the rows differ.
        lifted = rows.cosines + ratios[:, None] * ratios[None, :]
        one = tf.ones([1], tf.float64)
        weights = nonnegative_least_squares(lifted[None], -ratios[None], one, rows.noise, rows.tolerance)[0]
        cone = dual_cone(rows)
        is_stationary = tf.reduce_any(cone.opposed)
        weights = tf.where(is_stationary, weights, cone.inside(weights))

        total = tf.reduce_sum(weights / rows.norms * rows.active)
        coefficients = rows.coefficients(tf.math.divide_no_nan(weights, total))
        products = tf.linalg.matvec(tf.cast(gramian, tf.float64), tf.cast(coefficients, tf.float64))
        leaves_rest = is_stationary & tf.reduce_any(products != 0)
        return tf.where(leaves_rest & rows.finite, tf.zeros_like(coefficients), coefficients)
