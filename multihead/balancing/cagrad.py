"""Conflict-averse gradient descent (CAGrad)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from multihead._ground.keras import keras
from multihead._ground.validation import check_between
from multihead.balancing._base import MAX_HEADS
from multihead.balancing._cone import DualCone, dual_cone
from multihead.balancing._least_squares import nonnegative_least_squares
from multihead.balancing._preference import PreferenceBalancer
from multihead.balancing._rows import UnitRows, unit_rows


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
        preference: One number of at least 0 per head, as a sequence or as a dict by name. Default: 1 for every head.
        name: Name of the layer.

    Raises:
        ValueError: `c` or the preference is out of range, or there are more than 16 heads.

    Example:
        >>> CAGrad()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.3468, 1.1633, 1.1633]

    Source: Liu et al., Conflict-Averse Gradient Descent for Multi-Task Learning, NeurIPS 2021, equation 1. Unlike in
    some implementations, the update is not divided by `1 + c` or a similar factor.
    """

    max_heads = MAX_HEADS

    def __init__(
        self,
        c: float = 0.4,
        preference: Sequence[float] | Mapping[str, float] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(preference, name=name)
        self.c = check_between("c", c, 0.0, float("inf"), with_high=False)

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        preference = self._preference_vector(rows.num_heads) * rows.active
        mean = tf.math.divide_no_nan(preference, tf.reduce_sum(preference)) * rows.norms
        products = tf.linalg.matvec(rows.cosines, mean)
        norm = tf.sqrt(tf.maximum(tf.reduce_sum(mean * products), 0.0))
        exists = norm > tf.sqrt(tf.constant(rows.noise, tf.float64)) * tf.reduce_sum(mean)
        unit = tf.where(exists, norm, 1.0)
        cone = dual_cone(rows)
        weights = mean + unit * _shift(rows, cone, products / unit, self.c)
        weights = cone.inside(weights) if self.c >= 1 else weights
        return rows.coefficients(tf.where(exists, weights, mean))


# Initial grid of the search: from levels at which only the heads with the largest gradients matter to levels at which
# all heads do.
_LEVELS = (*(-(10.0**power) for power in range(13, -7, -1)), 0.0, *(10.0**power for power in range(-3, 8)))


def _shift(rows: UnitRows, cone: DualCone, products: tf.Tensor, radius: float) -> tf.Tensor:
    """Weights `v >= 0` of the displacement of norm `radius` from the unit vector `t` to the optimum.

    The optimum is the projection of `t` onto `{x: x . u_k >= b_k m for all k}`, with `b_k` the inverse norm of row k,
    for the largest improvement `m` that can be reached. With `m` as an additional coordinate this set is a cone, and
    `v` solves a non-negative least-squares problem with the target `(t, level)`: the higher the level, the longer the
    displacement.

    Args:
        rows: The unit rows.
        cone: Their dual cone.
        products: `[num_heads]` float64, `u_k . t`.
        radius: Norm of the displacement.
    """
    smallest = tf.reduce_min(tf.where(rows.active > 0, rows.norms, tf.float64.max))
    inverses = rows.active * smallest / rows.norms

    def ways(levels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Weights `[n, num_heads]` and squared norms `[n]` of the displacements for `[n]` levels."""
        # The unit of the additional coordinate is arbitrary; this one keeps all terms at the same order of magnitude.
        units = tf.maximum(-levels, 1.0)
        heights = units[:, None] * inverses[None, :]
        sizes = tf.sqrt(1.0 + heights**2)
        reach = tf.sqrt(1.0 + (levels / units) ** 2)
        gramians = rows.cosines[None] + heights[:, :, None] * heights[:, None, :]
        gramians = gramians / sizes[:, :, None] / sizes[:, None, :]
        linear = (products[None, :] - levels[:, None] * inverses[None, :]) / sizes / reach[:, None]
        ones = tf.ones_like(levels)
        lifts = nonnegative_least_squares(gramians, linear, ones, rows.noise, rows.tolerance)
        lifts = lifts * reach[:, None] / sizes
        return lifts, tf.reduce_sum(lifts * tf.matmul(lifts, rows.cosines), axis=1)

    goal = radius**2
    parts = tf.linspace(tf.constant(0.0, tf.float64), 1.0, len(_LEVELS))

    def narrow(
        count: tf.Tensor, levels: tf.Tensor, *_: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Refines the grid between the two levels whose displacements bracket the radius."""
        lifts, squares = ways(levels)
        above = tf.minimum(tf.reduce_sum(tf.cast(squares < goal, tf.int32)), len(_LEVELS) - 1)
        below = tf.maximum(above - 1, 0)
        finer = levels[below] + (levels[above] - levels[below]) * parts
        return count + 1, finer, lifts[below], lifts[above] - lifts[below], squares[below]

    nothing = tf.zeros_like(inverses)
    state = (tf.constant(0), tf.constant(_LEVELS, tf.float64), nothing, nothing, tf.reduce_sum(nothing))
    _, _, first, step, square = tf.while_loop(lambda count, *_: count < 5, narrow, state)
    # Between adjacent levels the displacement is linear: it reaches the radius at the root of a quadratic.
    pulled = tf.linalg.matvec(rows.cosines, step)
    half, short = tf.reduce_sum(first * pulled), goal - square
    root = tf.sqrt(tf.maximum(half**2 + tf.reduce_sum(step * pulled) * short, 0.0))
    found = first + step * tf.clip_by_value(tf.math.divide_no_nan(short, half + root), 0.0, 1.0)

    # Heads that exactly oppose each other cannot improve: the displacement ends at the dual cone.
    ones = tf.ones([1], tf.float64)
    ends = nonnegative_least_squares(rows.cosines[None], products[None], ones, rows.noise, rows.tolerance)[0]
    distance = tf.reduce_sum(ends * tf.linalg.matvec(rows.cosines, ends))
    return tf.where(tf.reduce_any(cone.opposed) & (distance <= goal), ends, found)
