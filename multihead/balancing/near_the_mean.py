"""Balancers that look for the best update near the mean gradient: CAGrad and ConicGrad."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from multihead._ground.tensors import where
from multihead._ground.validation import check_between
from multihead.balancing._base import MAX_HEADS
from multihead.balancing._kinds import PreferenceBalancer
from multihead.balancing._rows import fast_matvec, mean_of, unit_rows
from multihead.balancing._solvers.least_squares import dual_cone, follow_path


@keras.saving.register_keras_serializable(package="multihead")
class CAGrad(PreferenceBalancer):
    """Maximizes the smallest improvement over all heads, within a ball around the mean gradient.

    Formula: `d = argmax min_k d . g_k` subject to `|d - g_0| <= c |g_0|`, with `g_0 = sum_k p_k g_k / sum_k p_k` and
    `p` the `preference`.

    What it fixes: direction, increasingly with `c`: `c = 0` gives the mean gradient; with `c < 1` the update may still
    conflict with a head; with `c >= 1` it conflicts with none. Size of the update: between `1 - c` and `1 + c` times
    the norm of the *mean* gradient (`Sum` gives `num_heads` times the mean). `|d - g_0| = c |g_0|`, unless some heads
    exactly oppose each other: `d` is then the point of the dual cone closest to `g_0`, if that is closer. A single head
    gets `1 + c` times its gradient. At most 128 heads.

    Args:
        c: Radius of the ball relative to the norm of the mean gradient, at least 0.
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.

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
        mean, products, unit, exists = mean_of(rows, self._numbers(rows.num_heads))
        if rows.num_heads == 1 or self.c == 0:
            return rows.coefficients((1.0 + self.c) * mean)
        # `d - g_0` is the displacement of the mean's direction whose norm is `c`, or, where the path ends, to the dual cone.
        shift = follow_path(rows, products, bend=0.0, slope=0.0, start=self.c**2, weight=1.0)
        weights = where(exists, mean + unit * shift, mean)
        if self.c >= 1:  # the update conflicts with no head, which rounding can spoil if heads conflict
            conflict = tf.reduce_any(rows.cosines < -rows.noise)
            weights = tf.cond(conflict, lambda: dual_cone(rows).inside(weights), lambda: tf.identity(weights))
        return rows.coefficients(weights)


@keras.saving.register_keras_serializable(package="multihead")
class ConicGrad(PreferenceBalancer):
    """Maximizes the smallest improvement over all heads, within an angle of the mean gradient and at its norm.

    Like `CAGrad`, but within a cone around the mean gradient instead of a ball, so that the size of the update does not
    depend on the heads' conflict.

    Formula: `d = argmax min_k d . g_k` subject to `d . g_0 >= c |d| |g_0|` and `|d| = |g_0|`, with
    `g_0 = sum_k p_k g_k / sum_k p_k` and `p` the `preference`.

    What it fixes: direction, the more so the lower `c`: `c = 1` gives the mean gradient, `c = 0` the direction of `MGDA`.
    The update may still conflict with a head. Size of the update: the norm of the *mean* gradient; 0 if heads oppose each
    other such that the gradients with the smallest improvement cancel. At most 128 heads.

    Args:
        c: The smallest cosine between the update and the mean gradient, from 0 to 1.
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.

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
        mean, products, unit, exists = mean_of(rows, self._numbers(rows.num_heads))
        if rows.num_heads == 1 or self.c == 1:
            return rows.coefficients(mean)
        # The displacement of the mean's direction, of norm 1, after which its cosine is `c`.
        square = self.c**2
        weights = mean / unit + follow_path(rows, products, bend=1.0, slope=1.0 - square, start=1.0 - square, weight=square)
        square = tf.reduce_sum(weights * fast_matvec(rows.cosines, weights))
        is_nothing = square <= rows.noise * tf.reduce_sum(tf.abs(weights)) ** 2
        scale = where(is_nothing, 0.0 * unit, unit / tf.sqrt(where(is_nothing, 1.0 + 0.0 * square, square)))
        return rows.coefficients(where(exists, weights * scale, mean))
