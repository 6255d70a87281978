"""A safeguarded Newton method for the bargaining methods (NashMTL, FairGrad)."""

from __future__ import annotations

import tensorflow as tf

from multihead._ground.where import where


def solve_bargain(gramian: tf.Tensor, scales: tf.Tensor, power: float) -> tf.Tensor:
    """Finds `y > 0` with `(gramian y)_k = scales_k / y_k^power`.

    The solution minimizes the convex function `y . gramian y / 2 - sum_k scales_k y_k^(1 - power) / (1 - power)` (a
    logarithm for `power == 1`). A Newton step is shortened if it would leave `y > 0` or overshoot the minimum along its
    direction. All quantities are relative to the size of each `y_k`, so that the method does not depend on scale.

    Args:
        gramian: `[n, n]` float64, positive semidefinite, with a positive diagonal, and such that `gramian y = 0` for no
            `y >= 0` other than 0.
        scales: `[n]` float64, positive.
        power: Above 0.

    Returns:
        `[n]` float64.
    """
    diagonal = tf.linalg.diag_part(gramian)
    start = tf.pow(scales / diagonal, 1.0 / (1.0 + power))
    parts = tf.pow(tf.constant(0.5, tf.float64), tf.range(24, dtype=tf.float64))

    def step(count: tf.Tensor, solution: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        pull = solution * tf.linalg.matvec(gramian, solution)
        push = scales * tf.pow(solution, 1.0 - power)
        hessian = gramian * solution[:, None] * solution[None, :] + tf.linalg.diag(power * push)
        lengths = tf.sqrt(tf.linalg.diag_part(hessian))
        factor = tf.linalg.cholesky(hessian / lengths[:, None] / lengths[None, :])
        slope = (pull - push) / lengths
        change = -tf.linalg.cholesky_solve(factor, slope[:, None])[:, 0] / lengths  # relative to the solution

        largest = tf.minimum(0.9 / tf.maximum(tf.reduce_max(-change), 1e-300), 1.0)
        direction = solution * change
        curvature = tf.reduce_sum(direction * tf.linalg.matvec(gramian, direction))
        lengths_tried = largest * parts
        tried = 1.0 + lengths_tried[:, None] * change[None, :]
        slopes = tf.reduce_sum(pull * change) + lengths_tried * curvature
        slopes -= tf.reduce_sum(push * change * tf.pow(tried, -power), axis=1)
        falls = slopes <= 0.1 * tf.abs(tf.reduce_sum((pull - push) * change))
        chosen = tf.reduce_max(where(falls, lengths_tried, lengths_tried[-1]))
        solution = solution * (1.0 + chosen * change)
        return count + 1, solution, tf.reduce_max(tf.abs(change))

    state = (tf.constant(0), start, tf.constant(tf.float64.max, tf.float64))
    return tf.while_loop(lambda count, _, change: (count < 200) & (change > 1e-12), step, state)[1]
