"""The exact method: non-negative least squares for rows of any kind, and what is computed with it.

The dual cone `{x: x . g_k >= 0 for all k}` holds the updates that conflict with no head.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from multihead._ground.tensors import where
from multihead.balancing._rows import UnitRows, fast_matvec, inside, inverse_norms


def nonnegative_least_squares(gramian: tf.Tensor, linear: tf.Tensor, noise: float, tolerance: float) -> tf.Tensor:
    """Solves `min |t + sum_k v_k a_k|^2` subject to `v >= 0`, for several targets `t` of unit norm at once.

    Lawson and Hanson's active-set method. Its tableau holds `[C | q]` with the passive set exchanged by principal pivots, so
    that an iteration is one rank-one update and needs no linear solver. A column enters only if it is linearly independent
    of the passive set, so that equal and opposite columns are handled.

    Args:
        gramian: `[n, n]`, `a_i . a_j` of columns of about unit norm, or one for each target, `[num_targets, n, n]`.
        linear: `[num_targets, n]`, `a_k . t`.
        noise: Magnitude of the rounding errors in `gramian`: smaller slopes are treated as zero.
        tolerance: Squared norm below which a vector is treated as zero.

    Source: Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23.
    """
    num_targets, size = linear.shape
    gramian = tf.broadcast_to(gramian, [num_targets, size, size])
    infinity = tf.constant(tf.float64.max, tf.float64)

    def step(tableau: tf.Tensor, solution: tf.Tensor, passive: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, ...]:
        last = tableau[..., size]  # the least-squares solution where passive, the slope elsewhere
        goal = where(passive, last, 0.0)
        leaves = passive & (goal <= 0)
        is_blocked = tf.reduce_any(leaves, axis=-1)
        ratios = where(leaves, tf.math.divide_no_nan(solution, solution - goal), infinity)
        fraction = where(is_blocked, tf.reduce_min(ratios, axis=-1), 1.0)[:, None]
        moved = where(is_blocked[:, None], solution + fraction * (goal - solution), goal)

        remainder = 1.0 + tf.reduce_sum(linear * goal, axis=-1)
        free = tf.linalg.diag_part(tableau[..., :size])
        enters = ~passive & (last < -noise) & (free > tolerance)
        changes = is_blocked | (tf.reduce_any(enters, axis=-1) & (remainder > tolerance))
        chosen = where(is_blocked, tf.argmin(ratios, axis=-1), tf.argmin(where(enters, last, infinity), axis=-1))
        mark = tf.one_hot(chosen, size, on_value=True, off_value=False) & changes[:, None]
        solution = where(leaves & mark, 0.0, tf.maximum(moved, 0.0))
        return _exchange(tableau, mark), solution, passive ^ mark, tf.reduce_any(changes)

    start = (tf.concat([gramian, linear[..., None]], -1), tf.zeros_like(linear), tf.zeros_like(linear, tf.bool), True)
    tableau, solution, passive, _ = tf.while_loop(lambda *state: state[3], step, start, maximum_iterations=8 * size + 8)
    # One refinement with the inverse in the tableau removes the rounding errors accumulated by the pivots.
    slope = where(passive, tf.linalg.matvec(gramian, solution) + linear, 0.0)
    correction = where(passive, tf.linalg.matvec(tableau[..., :size], slope), 0.0)
    return tf.maximum(solution - correction, 0.0)


def _exchange(tableau: tf.Tensor, mark: tf.Tensor) -> tf.Tensor:
    """Principal pivots at the marked indices of tableaus; a tableau without a mark does not change."""
    chosen, in_column = tf.cast(mark, tableau.dtype), tf.concat([mark, tf.zeros_like(mark[:, :1])], axis=-1)
    row = tf.reduce_sum(tableau * chosen[..., None], axis=-2)
    column = tf.reduce_sum(tableau[..., :-1] * chosen[:, None, :], axis=-1)
    pivot = tf.reduce_sum(column * chosen, axis=-1, keepdims=True)
    pivot = where(tf.reduce_any(mark, axis=-1, keepdims=True), pivot, 1.0)
    others = where(mark[..., None] | in_column[:, None, :], 0.0, tableau)
    return others - where(mark, 1.0, column)[..., None] * (where(in_column, -1.0, row) / pivot)[:, None, :]


def pseudo_inverse(matrix: tf.Tensor, tolerance: float) -> tf.Tensor:
    """The Moore-Penrose inverse of a positive semidefinite float64 matrix; eigenvalues up to the tolerance are zero."""
    values, vectors = tf.linalg.eigh(matrix)
    keeps = values > tolerance
    root = vectors * where(keeps, tf.math.rsqrt(where(keeps, values, 1.0)), 0.0)
    return tf.matmul(root, root, transpose_b=True)


class DualCone(NamedTuple):
    """The dual cone of unit rows."""

    rows: UnitRows
    # `[num_heads]` booleans: the rows whose projection onto the cone is zero, because a combination of the others points
    # exactly in the opposite direction. Everything in the cone is orthogonal to them.
    opposed: tf.Tensor
    # `[num_heads, num_heads]` float64: a matrix that turns the weights of a vector into those of its component orthogonal to
    # the opposed rows
    removal: tf.Tensor
    # `[num_heads]` float64: weights of a vector whose inner product is at least 1 with every row that is not opposed
    inner: tf.Tensor

    def inside(self, weights: tf.Tensor) -> tf.Tensor:
        """Moves a vector in the cone off its boundary: see `inside` of `multihead.balancing._rows`.

        First removes its component in the span of the opposed rows, and with it the rounding error of what cancels.
        """
        return inside(self.rows, fast_matvec(self.removal, weights), self.inner, (self.rows.active > 0) & ~self.opposed)


def dual_cone(rows: UnitRows) -> DualCone:
    """The dual cone of all rows.

    If the shortest vector in the rows' convex hull has positive products with all of them, no row is opposed, and the vector
    leads into the cone. Otherwise the projections of all rows tell which are opposed.
    """
    lift = rows.active[:, None] * rows.active
    shortest = nonnegative_least_squares(rows.cosines + lift, -rows.active[None], rows.noise, rows.tolerance)[0]
    least = tf.reduce_min(where(rows.active > 0, fast_matvec(rows.cosines, shortest), tf.float64.max))

    def without_opposed() -> tuple[tf.Tensor, ...]:
        return tf.zeros_like(rows.active, tf.bool), tf.eye(rows.num_heads, dtype=tf.float64), shortest / least

    is_open = least > 64 * rows.noise * tf.reduce_sum(shortest)
    return DualCone(rows, *tf.cond(is_open, without_opposed, lambda: _with_opposed(rows)))


def projections(rows: UnitRows) -> tf.Tensor:
    """`[num_heads, num_heads]` float64: row i holds the weights of the projection of `u_i` onto the dual cone."""
    lifts = nonnegative_least_squares(rows.cosines, rows.cosines, rows.noise, rows.tolerance)
    return tf.linalg.diag(rows.active) + lifts


def _with_opposed(rows: UnitRows) -> tuple[tf.Tensor, ...]:
    """`opposed`, `removal` and `inner` of `DualCone`."""
    # `|x|^2 = x . u_i` for the projection x of u_i; the right-hand side is more accurate.
    weights = projections(rows)
    terms = weights * rows.cosines
    squares, error = tf.reduce_sum(terms, axis=1), rows.noise * tf.reduce_sum(tf.abs(terms), axis=1)
    limit = rows.tolerance + error
    opposed = (rows.active > 0) & (squares <= limit)
    # If a combination of rows is zero, each row in it is opposed by the others, even if its own projection is not zero.
    weighty = weights**2 > (limit / (16 * rows.tolerance))[:, None]
    opposed |= tf.reduce_any(weighty & opposed[:, None], axis=0)

    among = tf.cast(opposed, tf.float64)
    inverse = pseudo_inverse(rows.cosines * among[:, None] * among[None, :], rows.tolerance)
    removal = tf.linalg.diag(1.0 - among) - tf.matmul(inverse, rows.cosines * (1.0 - among))
    free = (rows.active > 0) & ~opposed
    share = where(free, 1.0 / where(free, squares, 1.0), 0.0)
    return opposed, removal, fast_matvec(removal, tf.linalg.matvec(weights, share, transpose_a=True))


# Initial grid of the search: from levels at which only the heads with the largest gradients matter to levels at which
# all heads do.
_LEVELS = (*(-(10.0**power) for power in range(13, -7, -1)), 0.0, *(10.0**power for power in range(-3, 8)))


def search_along_path(
    rows: UnitRows, products: tf.Tensor, bend: float, slope: float, start: float, weight: float
) -> tf.Tensor:
    """Weights `v >= 0` of the displacement from `t`, of unit norm, to a point of a path, by search along the path.

    The point is the projection of `t` onto `{x: x . u_k >= b_k m for all k}`, with `b_k` the inverse norm of row k. With `m`
    as an additional coordinate this set is a cone, and `v` solves a non-negative least-squares problem with the target `(t,
    level)`: the higher the level, the longer the displacement. `products` are the `u_k . t`. With `s` the square of the
    displacement's norm and `a` its product with `t`, the point is where `bend a^2 + 2 slope a + start - weight s` has fallen
    to 0, or `bend a` to -1.
    """
    inverses = inverse_norms(rows)
    parts = tf.linspace(tf.constant(0.0, tf.float64), 1.0, len(_LEVELS))

    def narrow(count: tf.Tensor, levels: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Refines the grid between the two levels whose displacements bracket the point."""
        # The unit of the additional coordinate is arbitrary; this one keeps all terms at the same order of magnitude.
        units = tf.maximum(-levels, 1.0)
        heights = units[:, None] * inverses[None, :]
        sizes = tf.sqrt(1.0 + heights**2)
        reach = tf.sqrt(1.0 + (levels / units) ** 2)
        gramians = rows.cosines[None] + heights[:, :, None] * heights[:, None, :]
        gramians = gramians / sizes[:, :, None] / sizes[:, None, :]
        linear = (products[None, :] - levels[:, None] * inverses[None, :]) / sizes / reach[:, None]
        lifts = nonnegative_least_squares(gramians, linear, rows.noise, rows.tolerance) * reach[:, None] / sizes
        squares, along = tf.reduce_sum(lifts * tf.matmul(lifts, rows.cosines), axis=1), tf.linalg.matvec(lifts, products)
        left = bend * along**2 + 2.0 * slope * along + start - weight * squares
        are_short = (left > 0) & (1.0 + bend * along > 0)
        above = tf.minimum(tf.reduce_sum(tf.cast(are_short, tf.int32)), len(_LEVELS) - 1)
        below = tf.maximum(above - 1, 0)
        finer = levels[below] + (levels[above] - levels[below]) * parts
        return count + 1, finer, lifts[below], lifts[above] - lifts[below], left[below]

    def is_open(count: tf.Tensor, _: tf.Tensor, first: tf.Tensor, step: tf.Tensor, __: tf.Tensor) -> tf.Tensor:
        return (count == 0) | ((count < 5) & tf.reduce_any((first > 0) != (first + step > 0)))

    nothing = tf.zeros_like(inverses)
    state = (tf.constant(0), tf.constant(_LEVELS, tf.float64), nothing, nothing, tf.reduce_sum(nothing))
    _, _, first, step, left = tf.while_loop(is_open, narrow, state)
    # Between levels with the same passive set the displacement is linear: the point is at the smallest positive root of a
    # quadratic.
    pulled, more = fast_matvec(rows.cosines, step), tf.reduce_sum(products * step)
    half = (bend * tf.reduce_sum(products * first) + slope) * more - weight * tf.reduce_sum(first * pulled)
    root = tf.sqrt(tf.maximum(half**2 - (bend * more**2 - weight * tf.reduce_sum(step * pulled)) * left, 0.0))
    return first + step * tf.clip_by_value(tf.math.divide_no_nan(left, root - half), 0.0, 1.0)
