"""Conflict-averse gradient descent (CAGrad)."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from multihead._ground.tensors import where
from multihead._ground.validation import check_between
from multihead.balancing._base import MAX_HEADS
from multihead.balancing._kinds import PreferenceBalancer
from multihead.balancing._rows import mean_of, unit_rows
from multihead.balancing._solvers.least_squares import dual_cone, end_of_path, followed
from multihead.balancing._solvers.pivoting import quickly, shifted, well_inside


@keras.saving.register_keras_serializable(package="multihead")
class CAGrad(PreferenceBalancer):
    """Maximizes the smallest improvement over all heads, within a ball around the mean gradient.

    Formula: `d = argmax min_k d . g_k` subject to `|d - g_0| <= c |g_0|`, with `g_0 = sum_k p_k g_k / sum_k p_k` and
    `p` the `preference`.

    What it fixes: direction, increasingly with `c`: `c = 0` gives the mean gradient; with `c < 1` the update may still
    conflict with a head; with `c >= 1` it conflicts with none. Size of the update: between `1 - c` and `1 + c` times
    the norm of the *mean* gradient (`Sum` gives `num_heads` times the mean). `|d - g_0| = c |g_0|`, unless some heads
    exactly oppose each other: `d` is then the point of the dual cone closest to `g_0`, if that is closer. A single head
    gets `1 + c` times its gradient.

    Args:
        c: Radius of the ball relative to the norm of the mean gradient, at least 0.
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.
        name: Name of the layer.

    Raises:
        ValueError: `c` or the preference is out of range, or there are more than 128 heads.

    Example:
        >>> CAGrad()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.3468, 1.1633, 1.1633]

    Source: Liu et al., Conflict-Averse Gradient Descent for Multi-Task Learning, NeurIPS 2021, equation 1. Unlike in
    some implementations, the update is not divided by `1 + c` or a similar factor.
    """

    max_heads = MAX_HEADS

    def __init__(self, c: float = 0.4, preference: Mapping[str, float] | None = None, *, name: str | None = None) -> None:
        super().__init__(preference, name=name)
        self.c = check_between("c", c, 0.0, float("inf"), with_high=False)

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        mean, products, unit, exists = mean_of(rows, self._preference_vector(rows.num_heads))
        if rows.num_heads == 1 or self.c == 0:
            return rows.coefficients((1.0 + self.c) * mean)
        goal = self.c**2

        def quick(matrix: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            shift, is_solved = shifted(rows, matrix, products, self._level)
            square = tf.reduce_sum(shift * tf.linalg.matvec(rows.cosines, shift))
            weights = mean + unit * shift
            weights = well_inside(rows, matrix, weights) if self.c >= 1 else weights
            return weights, is_solved & (tf.abs(square - goal) <= 1e-10 * goal)

        def exact() -> tf.Tensor:
            cone = dual_cone(rows)
            found = followed(rows, products, lambda _, squares: squares < goal, self._fraction)
            ends, distance = end_of_path(rows, products)
            shift = where(tf.reduce_any(cone.opposed) & (distance <= goal), ends, found)
            weights = mean + unit * shift
            return cone.inside(weights) if self.c >= 1 else weights

        return rows.coefficients(where(exists, quickly(rows, quick, exact), mean))

    def _level(self, a: tf.Tensor, b: tf.Tensor, d: tf.Tensor) -> tf.Tensor:
        """The `m` at which the radius is reached."""
        return (b + tf.sqrt(tf.maximum(b * b - a * (d - self.c**2), 0.0))) / a

    def _fraction(self, first: tf.Tensor, step: tf.Tensor, pulled: tf.Tensor, square: tf.Tensor) -> tf.Tensor:
        """Where between two displacements the radius is reached."""
        half, short = tf.reduce_sum(first * pulled), self.c**2 - square
        root = tf.sqrt(tf.maximum(half**2 + tf.reduce_sum(step * pulled) * short, 0.0))
        return tf.math.divide_no_nan(short, half + root)
