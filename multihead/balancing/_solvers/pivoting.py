"""The quick method: principal pivoting, for matrices that are safely positive definite, in a few large steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from multihead._ground.tensors import where
from multihead.balancing._rows import UnitRows, inside, inverse_norms, times

MOST_ROUNDS = 200
"""Solutions take 2 to 8 rounds; more rounds mean cycling."""

MOST_EXACT = 128
"""The largest number of heads for which there is an exact method where pivoting fails."""


def pivot(
    matrix: tf.Tensor, start: tf.Tensor, trial: Callable[..., tuple[tf.Tensor, tf.Tensor]], noise: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds weights `v >= 0` with slopes `s >= 0` of which one is 0 for each index, for several problems at once.

    Each round computes the weights of the passive set, then exchanges at the same time every index whose weight or slope has
    the wrong sign. When none has, the weights solve the problem: the signs are the certificate. Usually the number of rounds
    hardly depends on the number of indices; where it exceeds `MOST_ROUNDS`, the caller needs another method.

    The matrix is positive definite (see `definiteness`); `start`, `[..., n]` booleans, is the first passive set: where it is
    empty, 0 is the solution. `trial` gets the matrix with the identity outside of the passive set, and the set; it returns
    the weights, 0 outside of the set, and the slopes. Returns the weights, and whether they solve all problems.

    Source: Kostreva, Block Pivot Methods for Solving the Complementarity Problem, Linear Algebra Appl. 21, 1978; with the
    safeguard of Portugal, Judice and Vicente, Math. Comput. 63, 1994.
    """
    size = int(matrix.shape[-1])
    identity = tf.constant(np.eye(size))

    def step(
        count: tf.Tensor, passive: tf.Tensor, wrong: tf.Tensor, _: tf.Tensor, fewest: tf.Tensor, left: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        # Once the number of wrong indices has not fallen for three rounds, only the last is exchanged: this cannot cycle.
        number = tf.reduce_sum(tf.cast(wrong, tf.int32))
        left = where(number < fewest, tf.constant(3), left - 1)
        is_last = tf.cumsum(tf.cast(wrong, tf.int32), axis=-1, reverse=True) <= 1
        passive = tf.math.logical_xor(passive, wrong & ((left >= 0) | is_last))
        both = tf.expand_dims(passive, -1) & tf.expand_dims(passive, -2)
        weights, slopes = trial(where(both, matrix, identity), passive)
        wrong = where(passive, weights < -1e-13, slopes < -noise)
        return count + 1, passive, wrong, weights, tf.minimum(fewest, number), left

    zero, nothing = tf.constant(0), tf.zeros(start.shape, tf.float64)
    _, _, wrong, weights, *_ = tf.while_loop(
        lambda count, _, wrong, *__: (count < MOST_ROUNDS) & tf.reduce_any(wrong),
        step,
        (zero, tf.zeros_like(start), start, nothing, zero + start.shape.num_elements() + 1, zero),
    )
    return tf.maximum(weights, 0.0), ~tf.reduce_any(wrong)


def nonnegative(matrix: tf.Tensor, linear: tf.Tensor, noise: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Solves `min v . matrix v / 2 + v . linear` over `v >= 0`, for `[num_targets, n]` linear terms; returns as `pivot`."""

    def trial(masked: tf.Tensor, passive: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        weights = tf.squeeze(tf.linalg.solve(masked, tf.expand_dims(where(passive, -linear, 0.0), -1)), -1)
        return weights, linear + tf.matmul(weights, matrix)

    return pivot(matrix, linear < -noise, trial, noise)


def completed(rows: UnitRows) -> tf.Tensor:
    """The cosines, with 1 in the diagonal of idle heads."""
    return tf.linalg.set_diag(rows.cosines, tf.ones_like(rows.active))


def definiteness(rows: UnitRows) -> tf.Tensor:
    """Whether the rows are so far from being linearly dependent that rounding does not matter, a boolean scalar.

    With `e` the smallest eigenvalue of the cosines, every unit row keeps a squared norm of at least `e / num_heads` in its
    projection onto the dual cone, and this is above what counts as opposed; and the vector with product 1 with each row has
    products above 1/2 despite rounding.
    """
    limit = max(rows.num_heads * (2 * rows.noise ** (2 / 3) + rows.tolerance), 1e-6)
    return tf.linalg.eigvalsh(completed(rows))[0] > limit


def quickly(
    rows: UnitRows, quick: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]], exact: Callable[[], tf.Tensor]
) -> tf.Tensor:
    """The weights of a quick method where the rows are clearly independent and it succeeds, otherwise of an exact one.

    `quick` makes weights of the completed cosines, and says whether they are the solution. Exact methods need memory for the
    third power of the number of heads. So with more than 128, the quick method is always taken, of rows with small
    components of their own; see `well_inside` for what then holds of the result.
    """
    if rows.num_heads > MOST_EXACT:
        # As if each row had a component that no other has, larger than what rounding can take from the smallest eigenvalue.
        own = max(2 * rows.num_heads * rows.noise, 1e-9)
        return quick(completed(rows) + own * tf.eye(rows.num_heads, dtype=tf.float64))[0]
    nothing = tf.zeros_like(rows.norms), tf.constant(False)
    weights, is_solved = tf.cond(definiteness(rows), lambda: quick(completed(rows)), lambda: nothing)
    return tf.cond(is_solved, lambda: tf.identity(weights), exact)


def well_inside(rows: UnitRows, matrix: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """`inside` for rows that are clearly independent, or for many rows; `matrix` are the cosines that `quick` was given.

    Of many rows, the shortest vector in their convex hull is the one that leads inwards. Where they leave no room for a
    vector that conflicts with none, and rounding has moved the weights outwards, the result is zero.
    """
    if rows.num_heads <= MOST_EXACT:
        inner = tf.reshape(tf.linalg.solve(matrix, tf.reshape(rows.active, [-1, 1])), [-1])
        return inside(rows, weights, inner, rows.active > 0)
    lift = tf.expand_dims(rows.active, 1) * rows.active
    shortest = nonnegative(matrix + lift, -tf.expand_dims(rows.active, 0), rows.noise)[0][0]
    least = tf.reduce_min(where(rows.active > 0, times(rows.cosines, shortest), tf.float64.max))
    exists = least > 64 * rows.noise * tf.reduce_sum(shortest)
    inner = where(exists, shortest / where(exists, least, 1.0), tf.zeros_like(shortest))
    return inside(rows, weights, inner, rows.active > 0)


def shifted(
    rows: UnitRows, matrix: tf.Tensor, products: tf.Tensor, level: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Weights `v >= 0` of the displacement from `t` to a point of the path, by principal pivoting.

    If the heads with the smallest improvement `m` are known, `v = m x - y`, where `x` and `y` solve linear equations.
    `level` yields `m` from `x . Gx`, `x . Gy` and `y . Gy`; the caller checks that the point that it asks for has been
    reached. Returns also whether no head improves less than those with `v_k > 0`.
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
