"""Balancers that look for the best update near the mean gradient: CAGrad and ConicGrad."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import keras
import tensorflow as tf

from multihead._ground.tensors import where
from multihead._ground.validation import check_between
from multihead.balancing._base import MAX_HEADS
from multihead.balancing._kinds import PreferenceBalancer
from multihead.balancing._rows import inverse_norms, mean_of, unit_rows
from multihead.balancing._solvers.least_squares import dual_cone, end_of_path, followed
from multihead.balancing._solvers.pivoting import nonnegative, quickly, shifted, well_inside


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
        TypeError: `preference` is not a mapping.
        ValueError: `c` is out of range, `preference` has a negative or non-finite number or is 0 for all heads, or there are
            more than 128 heads.

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


@keras.saving.register_keras_serializable(package="multihead")
class ConicGrad(PreferenceBalancer):
    """Maximizes the smallest improvement over all heads, within an angle of the mean gradient and at its norm.

    Like `CAGrad`, but within a cone around the mean gradient instead of a ball, so that the size of the update does not
    depend on the heads' conflict.

    Formula: `d = argmax min_k d . g_k` subject to `d . g_0 >= c |d| |g_0|` and `|d| = |g_0|`, with
    `g_0 = sum_k p_k g_k / sum_k p_k` and `p` the `preference`.

    What it fixes: direction, the more so the lower `c`: `c = 1` gives the mean gradient, `c = 0` the direction of `MGDA`.
    The update may still conflict with a head. Size of the update: the norm of the *mean* gradient; 0 if heads oppose each
    other such that the gradients with the smallest improvement cancel.

    Args:
        c: The smallest cosine between the update and the mean gradient, from 0 to 1.
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.
        name: Name of the layer.

    Raises:
        TypeError: `preference` is not a mapping.
        ValueError: `c` is out of range, `preference` has a negative or non-finite number or is 0 for all heads, or there are
            more than 128 heads.

    Example:
        >>> ConicGrad()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.2836, 1.2082, 1.2082]

    Source: Hassanpour et al., Fantastic Multi-Task Gradient Updates and How to Find Them In a Cone, arXiv 2502.00217, 2025.
    There the angle enters by a Lagrange multiplier that is not determined, and the heads' weights by gradient steps; here
    the stated problem is solved exactly. The default of `c` is not from the paper: its angle is about the largest angle of
    `CAGrad(c=0.4)`.
    """

    max_heads = MAX_HEADS

    def __init__(self, c: float = 0.9, preference: Mapping[str, float] | None = None, *, name: str | None = None) -> None:
        super().__init__(preference, name=name)
        self.c = check_between("c", c, 0.0, 1.0)

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        mean, products, unit, exists = mean_of(rows, self._preference_vector(rows.num_heads))
        if rows.num_heads == 1 or self.c == 1:
            return rows.coefficients(mean)
        direction = mean / unit

        def cosine_of(weights: tf.Tensor) -> tf.Tensor:
            square = tf.reduce_sum(weights * tf.linalg.matvec(rows.cosines, weights))
            return tf.math.divide_no_nan(tf.reduce_sum(weights * products), tf.sqrt(tf.maximum(square, 0.0)))

        def quick(matrix: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            inverses = inverse_norms(rows)
            lifted = matrix + tf.expand_dims(inverses, 1) * inverses
            shortest, is_shortest = nonnegative(lifted, tf.expand_dims(-inverses, 0), rows.noise)  # the direction of MGDA
            is_within = is_shortest & (cosine_of(shortest[0]) >= self.c)
            shift, is_solved = shifted(rows, matrix, products, self._level)
            turned = direction + shift
            is_solved &= is_shortest & (tf.abs(cosine_of(turned) - self.c) <= 1e-10)
            return where(is_within, shortest[0], turned), is_within | is_solved

        def is_within(along: tf.Tensor, squares: tf.Tensor) -> tf.Tensor:
            """Whether displacements have this inner product with the mean's direction and still leave a larger cosine."""
            return 1.0 + along > self.c * tf.sqrt(tf.maximum(1.0 + 2.0 * along + squares, 0.0))

        def exact() -> tf.Tensor:
            return direction + followed(rows, products, is_within, functools.partial(_fraction, self.c, products))

        weights = quickly(rows, quick, exact)
        square = tf.reduce_sum(weights * tf.linalg.matvec(rows.cosines, weights))
        is_nothing = square <= rows.noise * tf.reduce_sum(tf.abs(weights)) ** 2
        scale = where(is_nothing, 0.0 * unit, unit / tf.sqrt(where(is_nothing, 1.0 + 0.0 * square, square)))
        return rows.coefficients(where(exists, weights * scale, mean))

    def _level(self, a: tf.Tensor, b: tf.Tensor, d: tf.Tensor) -> tf.Tensor:
        """The `m` at which the cosine is `c`: the larger root of a quadratic."""
        rest = tf.maximum(1.0 - d, 0.0)  # the squared distance of the mean's direction from the heads' span
        root = self.c * tf.sqrt(tf.maximum(rest * (b * b + a * (rest - self.c**2)), 0.0))
        below = self.c**2 * a - b * b
        falling = tf.math.divide_no_nan(rest * (rest - self.c**2), root - rest * b)
        rising = where(below > 0, (rest * b + root) / where(below > 0, below, 1.0), 1e6 / tf.sqrt(a))
        return where(b < 0, falling, rising)


def _fraction(
    c: float, products: tf.Tensor, first: tf.Tensor, step: tf.Tensor, pulled: tf.Tensor, square: tf.Tensor
) -> tf.Tensor:
    """Where between two displacements the cosine is `c`: the smallest positive root of a quadratic."""
    along, more = tf.reduce_sum(products * first), tf.reduce_sum(products * step)
    constant = (1.0 + along) ** 2 - c**2 * (1.0 + 2.0 * along + square)
    half = (1.0 + along) * more - c**2 * (more + tf.reduce_sum(first * pulled))
    root = tf.sqrt(tf.maximum(half**2 - (more**2 - c**2 * tf.reduce_sum(step * pulled)) * constant, 0.0))
    return tf.math.divide_no_nan(constant, root - half)
