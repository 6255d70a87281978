"""The update with the largest smallest improvement, at a distance or an angle from the mean gradient (CAGrad, ConicGrad).

Both are points of one path: `d = t + sum_k v_k u_k` with the mean gradient's direction `t` and `v >= 0`, where `v_k > 0`
only for heads with the smallest improvement, `d . g_k = m`. The larger `m`, the longer the displacement, and the larger the
angle.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from multihead._ground.where import where
from multihead.balancing._least_squares import nonnegative_least_squares
from multihead.balancing._pivoting import pivot
from multihead.balancing._rows import UnitRows


def mean_of(rows: UnitRows, preference: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The mean gradient.

    Args:
        rows: The unit rows.
        preference: `[num_heads]` float64, at least 0.

    Returns:
        `[num_heads]` weights of the unit rows; `[num_heads]`, the inner products of the unit rows with its direction; its
        norm, 1 if it is zero; whether it is not zero up to rounding.
    """
    preference = preference * rows.active
    mean = tf.math.divide_no_nan(preference, tf.reduce_sum(preference)) * rows.norms
    products = tf.linalg.matvec(rows.cosines, mean)
    norm = tf.sqrt(tf.maximum(tf.reduce_sum(mean * products), 0.0))
    exists = norm > tf.sqrt(tf.constant(rows.noise, tf.float64)) * tf.reduce_sum(mean)
    unit = where(exists, norm, 1.0)
    return mean, products / unit, unit, exists


def inverse_norms(rows: UnitRows) -> tf.Tensor:
    """`[num_heads]` float64: the inverse norms, in units of the largest; 0 for idle heads."""
    smallest = tf.reduce_min(where(rows.active > 0, rows.norms, tf.float64.max))
    return rows.active * smallest / rows.norms


def lesser_of_a_pair(rows: UnitRows, own: tf.Tensor, other: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Which of two rows improves less; where an update depends on the row, the one that still improves less in its own.

    Args:
        rows: The two unit rows.
        own: `[2]` float64, the inner product of each row with the update.
        other: `[2]` float64, that of the other row with the same update.

    Returns:
        `[2]` each: the inverse norms; those of the other row; how much more the other row improves, times both of these; and
        1 for the row that improves less, 0 for the other.
    """
    inverses = inverse_norms(rows)
    others = tf.reverse(inverses, [0])
    lead = other * inverses - own * others
    return inverses, others, lead, tf.one_hot(tf.argmax(lead), 2, dtype=tf.float64)


def shifted(
    rows: UnitRows, matrix: tf.Tensor, products: tf.Tensor, level: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Weights `v >= 0` of the displacement from `t` to a point of the path, by principal pivoting.

    If the heads with the smallest improvement `m` are known, `v = m x - y`, where `x` and `y` solve linear equations.

    Args:
        rows: The unit rows, clearly independent.
        matrix: Their completed cosines.
        products: `[num_heads]` float64, `u_k . t`.
        level: Yields `m` from the inner products `x . Gx`, `x . Gy` and `y . Gy`. The caller checks that the point that it
            asks for has been reached.

    Returns:
        `[num_heads]` float64, and whether no head improves less than those with `v_k > 0`.
    """
    inverses = inverse_norms(rows)
    both = tf.stack([inverses, products], axis=-1)

    def trial(masked: tf.Tensor, passive: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        solved = tf.linalg.solve(masked, where(tf.expand_dims(passive, -1), both, 0.0))
        products_of_both = tf.matmul(both, solved, transpose_a=True)
        m = level(tf.maximum(products_of_both[0, 0], 1e-300), products_of_both[0, 1], products_of_both[1, 1])
        weights = m * solved[:, 0] - solved[:, 1]
        return weights, tf.linalg.matvec(rows.cosines, weights) + products - m * inverses

    improvements = where(rows.active > 0, products / where(rows.active > 0, inverses, 1.0), tf.float64.max)
    start = tf.one_hot(tf.argmin(improvements), rows.num_heads, on_value=True, off_value=False)
    return pivot(matrix, start, trial, max(rows.noise, 1e-13))


# Initial grid of the search: from levels at which only the heads with the largest gradients matter to levels at which
# all heads do.
_LEVELS = (*(-(10.0**power) for power in range(13, -7, -1)), 0.0, *(10.0**power for power in range(-3, 8)))


def followed(
    rows: UnitRows,
    products: tf.Tensor,
    is_short: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    fraction: Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Weights `v >= 0` of the displacement to a point of the path, by search along the path: for rows of any kind.

    The point is the projection of `t` onto `{x: x . u_k >= b_k m for all k}`, with `b_k` the inverse norm of row k. With `m`
    as an additional coordinate this set is a cone, and `v` solves a non-negative least-squares problem with the target
    `(t, level)`: the higher the level, the longer the displacement.

    Args:
        rows: The unit rows.
        products: `[num_heads]` float64, `u_k . t`.
        is_short: From the inner products with `t` and the squared norms of displacements, whether they end before the point.
        fraction: From a displacement before the point, the step to one behind it, the inner products of the unit rows with
            this step, and the squared norm of the first: the fraction of the step to go.
    """
    inverses = inverse_norms(rows)

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

    parts = tf.linspace(tf.constant(0.0, tf.float64), 1.0, len(_LEVELS))

    def narrow(
        count: tf.Tensor, levels: tf.Tensor, *_: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Refines the grid between the two levels whose displacements bracket the point."""
        lifts, squares = ways(levels)
        are_short = is_short(tf.linalg.matvec(lifts, products), squares)
        above = tf.minimum(tf.reduce_sum(tf.cast(are_short, tf.int32)), len(_LEVELS) - 1)
        below = tf.maximum(above - 1, 0)
        finer = levels[below] + (levels[above] - levels[below]) * parts
        return count + 1, finer, lifts[below], lifts[above] - lifts[below], squares[below]

    nothing = tf.zeros_like(inverses)
    state = (tf.constant(0), tf.constant(_LEVELS, tf.float64), nothing, nothing, tf.reduce_sum(nothing))
    _, _, first, step, square = tf.while_loop(lambda count, *_: count < 5, narrow, state)
    # Between adjacent levels the displacement is linear.
    pulled = tf.linalg.matvec(rows.cosines, step)
    return first + step * tf.clip_by_value(fraction(first, step, pulled, square), 0.0, 1.0)


def end_of_path(rows: UnitRows, products: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The displacement from `t` to the dual cone, where the path of heads that exactly oppose each other ends.

    Args:
        rows: The unit rows.
        products: `[num_heads]` float64, `u_k . t`.

    Returns:
        `[num_heads]` float64 weights, and their squared norm.
    """
    ones = tf.ones([1], tf.float64)
    ends = nonnegative_least_squares(rows.cosines[None], products[None], ones, rows.noise, rows.tolerance)[0]
    return ends, tf.reduce_sum(ends * tf.linalg.matvec(rows.cosines, ends))
