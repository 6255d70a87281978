"""Non-negative least squares and the pseudo-inverse, exact and in pure TensorFlow."""

from __future__ import annotations

import tensorflow as tf

from multihead._ground.where import where


def nonnegative_least_squares(
    gramian: tf.Tensor, linear: tf.Tensor, square: tf.Tensor, noise: float, tolerance: float
) -> tf.Tensor:
    """Solves `min |t + sum_k v_k a_k|^2` subject to `v >= 0`, for several targets `t` at once.

    Lawson and Hanson's active-set method. Its tableau holds `[C | q]` with the passive set exchanged by principal
    pivots, so that an iteration is one rank-one update and needs no linear solver. A column enters only if it is
    linearly independent of the passive set within `tolerance`, so that equal and opposite columns are handled.

    Args:
        gramian: `[num_targets, n, n]` float64, `a_i . a_j`; the columns have about unit norm.
        linear: `[num_targets, n]` float64, `a_k . t`.
        square: `[num_targets]` float64, `|t|^2`, about 1.
        noise: Magnitude of the rounding errors in `gramian`: smaller slopes are treated as zero.
        tolerance: Squared norm below which a vector is treated as zero.

    Returns:
        `[num_targets, n]` float64: `v`.

    Source: Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23.
    """
    size = int(gramian.shape[-1])
    zero, infinity = tf.constant(0.0, tf.float64), tf.constant(tf.float64.max, tf.float64)
    tableau = tf.concat([gramian, linear[..., None]], axis=-1)
    solution = tf.zeros_like(linear)
    passive = tf.zeros_like(linear, dtype=tf.bool)
    done = tf.zeros_like(square, dtype=tf.bool)

    def step(
        tableau: tf.Tensor, solution: tf.Tensor, passive: tf.Tensor, done: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        last = tableau[..., size]  # the least-squares solution where passive, the slope elsewhere
        goal = where(passive, last, 0.0)
        leaves = passive & (goal <= 0)
        is_blocked = tf.reduce_any(leaves, axis=-1)
        ratios = where(solution > 0, solution / where(leaves, solution - goal, 1.0), 0.0)
        ratios = where(leaves, ratios, infinity)
        fraction = where(is_blocked, tf.reduce_min(ratios, axis=-1), 1.0)[:, None]
        moved = where(is_blocked[:, None], solution + fraction * (goal - solution), goal)

        remainder = square + tf.reduce_sum(linear * goal, axis=-1)
        free = tf.linalg.diag_part(tableau[..., :size])
        enters = ~passive & (last < -noise) & (free > tolerance)
        may_enter = tf.reduce_any(enters, axis=-1) & (remainder > tolerance * square)
        changes = ~done & (is_blocked | may_enter)
        chosen = where(is_blocked, tf.argmin(ratios, axis=-1), tf.argmin(where(enters, last, infinity), axis=-1))
        mark = tf.one_hot(chosen, size, on_value=True, off_value=False) & changes[:, None]
        solution = where(done[:, None], solution, where(leaves & mark, zero, tf.maximum(moved, zero)))
        return _exchange(tableau, mark), solution, passive ^ mark, ~changes

    def is_unfinished(*state: tf.Tensor) -> tf.Tensor:
        return ~tf.reduce_all(state[3])

    state = (tableau, solution, passive, done)
    tableau, solution, passive, _ = tf.while_loop(is_unfinished, step, state, maximum_iterations=8 * size + 8)
    # One refinement with the inverse in the tableau removes the rounding errors accumulated by the pivots.
    slope = where(passive, tf.linalg.matvec(gramian, solution) + linear, 0.0)
    correction = where(passive, tf.linalg.matvec(tableau[..., :size], slope), 0.0)
    return tf.maximum(solution - correction, 0.0)


def _exchange(tableau: tf.Tensor, mark: tf.Tensor) -> tf.Tensor:
    """Principal pivot at the marked index of each tableau; a tableau without a mark does not change."""
    chosen = tf.cast(mark, tableau.dtype)
    row = tf.reduce_sum(tableau * chosen[..., None], axis=-2)
    column = tf.reduce_sum(tableau[..., :-1] * chosen[..., None, :], axis=-1)
    pivot = tf.reduce_sum(column * chosen, axis=-1)[..., None]
    pivot = where(tf.reduce_any(mark, axis=-1, keepdims=True), pivot, 1.0)
    rest = tableau - column[..., None] * (row / pivot)[..., None, :]
    in_column = tf.concat([mark, tf.zeros_like(mark[..., :1])], axis=-1)[..., None, :]
    in_row = mark[..., None]
    of_row = where(in_column, (1.0 / pivot)[..., None], -(row / pivot)[..., None, :])
    return where(in_row, of_row, where(in_column, (column / pivot)[..., None], rest))


def pseudo_inverse(matrix: tf.Tensor, tolerance: float) -> tf.Tensor:
    """The Moore-Penrose inverse of a positive semidefinite float64 matrix `[n, n]` with a diagonal of ones and zeros.

    Args:
        matrix: The matrix.
        tolerance: Eigenvalues up to this value are treated as zero.
    """
    root = root_of_inverse(matrix, tolerance)
    return tf.matmul(root, root, transpose_b=True)


def root_of_inverse(matrix: tf.Tensor, tolerance: float) -> tf.Tensor:
    """The matrices that, times their transposes, yield the pseudo-inverses of matrices `[..., n, n]`."""
    values, vectors = tf.linalg.eigh(matrix)
    keeps = values > tolerance
    lengths = where(keeps, tf.math.rsqrt(where(keeps, values, 1.0)), 0.0)
    return vectors * tf.expand_dims(lengths, -2)
