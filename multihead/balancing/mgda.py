"""The multiple-gradient descent algorithm (MGDA)."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead._ground.tensors import where
from multihead._ground.types import Tensor
from multihead._ground.validation import check_choice
from multihead.balancing._base import MANY_HEADS, Balancer
from multihead.balancing._rows import UnitRows, of_a_pair, unit_rows
from multihead.balancing._solvers.least_squares import dual_cone, nonnegative_least_squares
from multihead.balancing._solvers.pivoting import nonnegative, quickly, well_inside

NORMALIZATIONS = ("none", "l2", "loss", "loss+")


@keras.saving.register_keras_serializable(package="multihead")
class MGDA(Balancer):
    """Takes the convex combination of the heads' gradients with the smallest norm.

    The update improves every head by at least its own squared norm, and is zero where no update improves all of them
    (at a Pareto-stationary point). It follows the *smallest* gradients: unless you want that, scale the gradients
    first, as in `Chain(EqualNorms(), MGDA())`, or choose a `normalization`.

    Formula: `d = sum_k w_k g_k`, `w = argmin |sum_k w_k g_k / c_k|^2` subject to `w >= 0`, `sum_k w_k = 1`. The `c_k`
    depend on `normalization`: 1 for `"none"`, `|g_k|` for `"l2"`, the head's loss `L_k` for `"loss"`, and `L_k |g_k|` for
    `"loss+"`.

    What it fixes: direction (`d . g_k >= |d|^2` for every head) and magnitude. Size of the update: at most that of the
    smallest gradient. The coefficients sum to 1. At a Pareto-stationary point they are 0 if rounding would leave a
    residual in a random direction. With a normalization, the weights are computed from the normalized gradients and applied
    to the original ones, as in the authors' code. The guarantees above then do not hold: the update may conflict with a
    head. With two heads, `"l2"` is half the plain sum, and `"loss+"` gives the larger weight to the head with the larger
    loss.

    Args:
        normalization: `"none"`, `"l2"`, `"loss"` or `"loss+"`, as in the authors' code.
        name: Name of the layer.

    Raises:
        ValueError: There are more than 1024 heads, or `normalization` is not one of the four.

    Example:
        >>> MGDA()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.0, 1.0, 1.0]

    Source: Desideri, Multiple-gradient descent algorithm, Comptes Rendus Mathematique 350, 2012; Sener and Koltun,
    Multi-Task Learning as Multi-Objective Optimization, NeurIPS 2018. `L_k` is 1 for a head whose loss is not above 0, or if
    `losses` is not given.
    """

    max_heads = MANY_HEADS

    def __init__(self, normalization: str = "none", *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.normalization = check_choice("normalization", normalization, NORMALIZATIONS)
        if normalization in ("loss", "loss+"):
            self.uses = ("losses",)

    def coefficients(self, gramian: tf.Tensor, *, losses: Tensor = None) -> tf.Tensor:
        rows = unit_rows(gramian)
        norms = tf.ones_like(rows.norms) if self.normalization in ("l2", "loss+") else rows.norms
        if losses is not None:
            losses = tf.cast(losses, tf.float64)
            norms /= where(losses > 0, losses, 1.0)
        rows = rows._replace(norms=norms)  # those of the gradients divided by the c_k
        smallest = tf.reduce_min(where(rows.active > 0, rows.norms, tf.float64.max))
        ratios = rows.active * smallest / rows.norms
        if rows.num_heads == 2:
            return self._of_a_pair(rows, ratios, gramian)

        # In unit rows: min |sum_k y_k u_k|^2 + (1 - sum_k ratio_k y_k)^2 over y >= 0, which gives the solution up to a
        # factor. Both squares have the same order of magnitude, however much the norms of the rows differ.
        lift = tf.expand_dims(ratios, 1) * ratios

        def quick(matrix: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            weights, is_solved = nonnegative(matrix + lift, tf.expand_dims(-ratios, 0), rows.noise)
            return _scaled(rows, well_inside(rows, matrix, weights[0])), is_solved

        def exact() -> tf.Tensor:
            linear, one = tf.expand_dims(-ratios, 0), tf.ones([1], tf.float64)
            weights = nonnegative_least_squares(rows.cosines + lift, linear, one, rows.noise, rows.tolerance)[0]
            cone = dual_cone(rows)
            is_stationary = tf.reduce_any(cone.opposed)
            return _unless_rest(rows, gramian, where(is_stationary, weights, cone.inside(weights)), is_stationary)

        return rows.coefficients(quickly(rows, quick, exact))

    @staticmethod
    def _of_a_pair(rows: UnitRows, ratios: tf.Tensor, gramian: tf.Tensor) -> tf.Tensor:
        weights = tf.maximum(ratios - rows.cosines[0, 1] * tf.reverse(ratios, [0]), 0.0)
        weights = where(tf.reduce_any(weights > 0), weights, ratios)  # equal gradients
        moved = of_a_pair(rows, weights)
        is_stationary = tf.reduce_all(moved == 0) & tf.reduce_any(weights > 0)
        return rows.coefficients(_unless_rest(rows, gramian, where(is_stationary, weights, moved), is_stationary))


def _scaled(rows: UnitRows, weights: tf.Tensor) -> tf.Tensor:
    """Weights of unit rows, scaled so that the coefficients sum to 1."""
    return tf.math.divide_no_nan(weights, tf.reduce_sum(weights / rows.norms * rows.active))


def _unless_rest(rows: UnitRows, gramian: tf.Tensor, weights: tf.Tensor, is_stationary: tf.Tensor) -> tf.Tensor:
    """Scaled weights; zero at a stationary point where their combination is not exactly zero."""
    weights = _scaled(rows, weights)
    coefficients = tf.cast(rows.coefficients(weights), tf.float64)
    products = tf.linalg.matvec(tf.cast(gramian, tf.float64), coefficients)
    return where(is_stationary & tf.reduce_any(products != 0), tf.zeros_like(weights), weights)
