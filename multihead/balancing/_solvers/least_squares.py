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
        gramian: `[n, n]`, `a_i . a_j` of columns of about unit norm, or one per target, `[num_targets, n, n]`.
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


def dual_cone(rows: UnitRows, projected: tf.Tensor | None = None) -> DualCone:
    """The dual cone of all rows; `projected` are their `projections`, if they are known, which tell all.

    If the shortest vector in the rows' convex hull has positive products with all of them, no row is opposed, and the vector
    leads into the cone. Otherwise the projections of all rows tell which are opposed.
    """
    if projected is not None:
        return DualCone(rows, *_with_opposed(rows, projected))
    lift = rows.active[:, None] * rows.active
    shortest = nonnegative_least_squares(rows.cosines + lift, -rows.active[None], rows.noise, rows.tolerance)[0]
    least = tf.reduce_min(where(rows.active > 0, fast_matvec(rows.cosines, shortest), tf.float64.max))
    none_opposed = tf.zeros_like(rows.active, tf.bool), tf.eye(rows.num_heads, dtype=tf.float64)
    is_open = least > 64 * rows.noise * tf.reduce_sum(shortest)
    return DualCone(
        rows, *tf.cond(is_open, lambda: (*none_opposed, shortest / least), lambda: _with_opposed(rows, projections(rows)))
    )


def projections(rows: UnitRows) -> tf.Tensor:
    """`[num_heads, num_heads]` float64: row i holds the weights of the projection of `u_i` onto the dual cone."""
    lifts = nonnegative_least_squares(rows.cosines, rows.cosines, rows.noise, rows.tolerance)
    return tf.linalg.diag(rows.active) + lifts


def _with_opposed(rows: UnitRows, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """`opposed`, `removal` and `inner` of `DualCone`, from the `projections` of its rows."""
    # `|x|^2 = x . u_i` for the projection x of u_i; the right-hand side is more accurate.
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


# The level at which a path without an end is left, in units of the largest norm: the displacement is then so long that its
# direction does not change any more.
_FARTHEST = 1e9


def follow_path(rows: UnitRows, products: tf.Tensor, bend: float, slope: float, start: float, weight: float) -> tf.Tensor:
    """Weights `v >= 0` of the displacement from `t`, of unit norm, to a point of a path, by following the path.

    The path is that of the projections of `t` onto `{x: x . u_k >= b_k m for all k}`, with `b_k` the inverse norm of row k,
    for rising levels `m`. `products` are the `u_k . t`. With `s` the square of the displacement's norm and `a` its product
    with `t`, the point is where `bend a^2 + 2 slope a + start - weight s` has fallen to 0, or `bend a` to -1; or the end of
    the path.

    The path begins at `t`, where the first row is reached, and is linear between levels at which a row is reached or is
    left: parametric principal pivots, as in `nonnegative_least_squares`, each to the next such level. A row that is reached
    and depends on those before takes the place of one of them; if there is none to give way, the path ends.
    """
    size, inverses = rows.num_heads, inverse_norms(rows)
    infinity, none = tf.constant(tf.float64.max, tf.float64), tf.constant(-1, tf.int64)
    linear = tf.stack([products, -inverses], axis=1)  # the slopes at `t`, and what they change by with the level
    farthest = _FARTHEST / tf.reduce_min(where(inverses > 0, inverses, 1.0))
    marks, least = tf.eye(size, size + 2, dtype=tf.bool), tf.maximum(inverses, 1e-30)

    def left_at(weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """What has fallen to 0 at the point, the product with `t`, and the products with the rows."""
        pulled, along = fast_matvec(rows.cosines, weights), tf.reduce_sum(products * weights)
        left = start - weight * tf.reduce_sum(weights * pulled)
        return (left + (bend * along + 2.0 * slope) * along if bend or slope else left), along, pulled

    def pivot(
        tableau: tf.Tensor,
        passive: tf.Tensor,
        level: tf.Tensor,
        rise: tf.Tensor,
        chosen: tf.Tensor,
        waiting: tf.Tensor,
        _: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        """Exchanges the chosen row, and looks for the next one, `rise` above the level; `passive` is 1 for passive rows."""
        level, mark = level + rise, tf.gather(marks, chosen)
        row, column, in_row = tf.gather(tableau, chosen), tf.gather(tableau, chosen, axis=1), mark[:size]
        others = where(in_row[:, None] | mark, 0.0, tableau)
        tableau = others - where(in_row, 1.0, column)[:, None] * (where(mark, -1.0, row) / tf.gather(row, chosen))
        passive = where(in_row, 1.0 - passive, passive)

        rates = tableau[:, size + 1]
        values, falls = tableau[:, size] + level * rates, -rates  # weights of passive rows, slopes of the others
        errors = 1e-14 * (least + tf.reduce_sum(passive * tf.abs(rates)))
        lengths = where(falls > errors, tf.maximum(values, 0.0) / tf.maximum(falls, errors), infinity)
        is_new = waiting < 0
        event = where(is_new, tf.argmin(lengths), waiting)
        rise = where(is_new, tf.minimum(tf.gather(lengths, event), farthest - level), 0.0)
        values = tf.maximum(values + rise * rates, 0.0)
        left, along, _ = left_at(passive * values)
        ends = (left <= 0) | (level + rise >= farthest)
        if bend:
            ends |= bend * along <= -1

        # A row that depends on the passive ones waits until one of them has left.
        diagonal, column = tf.linalg.diag_part(tableau), tf.gather(tableau, event, axis=1)
        depends = is_new & (tf.gather(diagonal, event) <= rows.tolerance)
        gains = -passive * column
        gives_way = gains * tf.abs(gains) > rows.tolerance * tf.abs(diagonal)
        other = tf.argmin(where(gives_way, values / where(gives_way, gains, 1.0), infinity))
        goes_on = ~(is_new & ends) & (tf.gather(gives_way, other) | ~depends)
        return tableau, passive, level, rise, where(depends, other, event), where(depends, event, none), goes_on

    starts = where(inverses > 0, products / where(inverses > 0, inverses, 1.0), infinity)
    first, zero = tf.reduce_min(starts), tf.zeros([], tf.float64)
    begin = (tf.concat([rows.cosines, linear], 1), 0.0 * inverses, first, zero, tf.argmin(starts), none, first < farthest)
    state = tf.while_loop(lambda *state: state[-1], pivot, begin, maximum_iterations=8 * size + 8)
    tableau, passive, level, rise, *_ = state
    # One refinement removes the rounding errors accumulated by the pivots.
    chosen = passive[:, None]
    weights = chosen * tableau[:, size:]
    slopes = chosen * (tf.matmul(rows.cosines, weights) + linear)
    fixed, more = tf.unstack(weights - chosen * tf.matmul(tableau[:, :size], slopes), axis=1)
    # On the last piece, the point is at the smallest positive root of a quadratic.
    here = fixed + level * more
    left, along, pulled = left_at(here)
    gain = tf.reduce_sum(products * more)
    half = (bend * along + slope) * gain - weight * tf.reduce_sum(more * pulled)
    square = bend * gain**2 - weight * tf.reduce_sum(more * fast_matvec(rows.cosines, more))
    falls = tf.sqrt(tf.maximum(half**2 - square * left, 0.0)) - half
    rise = where(falls * rise > left, left / where(falls > 0, falls, 1.0), rise)
    if bend:
        is_beyond = 1.0 + bend * (along + rise * gain) < 0
        rise = where(is_beyond, -(1.0 + bend * along) / where(is_beyond, bend * gain, -1.0), rise)
    return tf.maximum(here + tf.maximum(rise, 0.0) * more, 0.0)
