"""Balancers by the utility of the heads' improvements: Nash-MTL and FairGrad."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead._ground.tensors import where
from multihead._ground.validation import check_positive
from multihead.balancing._base import MAX_HEADS, Balancer
from multihead.balancing._rows import fast_matvec, inside_of_two, unit_rows
from multihead.balancing._solvers.least_squares import dual_cone


class BargainingBalancer(Balancer):
    """Finds `w > 0` with `(G w)_k = w_k^(-1 / alpha)`, where `G` is the Gramian.

    Heads that exactly oppose each other have no solution. The update is then orthogonal to their gradients and solves the
    problem for the other heads in the remaining subspace; it is zero if there are no other heads.
    """

    max_heads = MAX_HEADS
    alpha = 1.0

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        # In unit rows: `y > 0` with `(cosines y)_k = scales_k / y_k^power`.
        power = 1.0 / self.alpha
        scales = tf.pow(rows.norms, power - 1.0)
        if rows.num_heads == 2 and power == 1.0:  # by symmetry, both weights of unit rows are equal
            weights = scales / tf.sqrt(tf.maximum(1.0 + rows.cosines[0, 1], rows.tolerance))
            return rows.coefficients(inside_of_two(rows, weights))
        cone = dual_cone(rows)
        takes_part = (rows.active > 0) & ~cone.opposed
        reduced = tf.matmul(cone.removal, tf.matmul(rows.cosines, cone.removal), transpose_a=True)  # without the opposed
        diagonal = where(takes_part, tf.linalg.diag_part(reduced), 1.0)
        solution = _solve(tf.linalg.set_diag(reduced, diagonal), where(takes_part, scales, 1.0), power)
        return rows.coefficients(cone.inside(where(takes_part, solution, 0.0)))


def _solve(gramian: tf.Tensor, scales: tf.Tensor, power: float) -> tf.Tensor:
    """Finds `y > 0` with `(gramian y)_k = scales_k / y_k^power`, for positive `scales` and `power`.

    The solution minimizes the convex function `y . gramian y / 2 - sum_k scales_k y_k^(1 - power) / (1 - power)` (a
    logarithm for `power == 1`). A Newton step is shortened if it would leave `y > 0` or overshoot the minimum along its
    direction. All quantities are relative to the sizes of the `y_k`, so that the method does not depend on scale. The matrix
    is positive semidefinite with a positive diagonal, and `gramian y = 0` for no `y >= 0` other than 0.
    """
    diagonal = tf.linalg.diag_part(gramian)
    start = tf.pow(scales / diagonal, 1.0 / (1.0 + power))
    parts = tf.pow(tf.constant(0.5, tf.float64), tf.range(24, dtype=tf.float64))

    def step(count: tf.Tensor, solution: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        pull = solution * fast_matvec(gramian, solution)
        push = scales * tf.pow(solution, 1.0 - power)
        hessian = gramian * solution[:, None] * solution[None, :] + tf.linalg.diag(power * push)
        lengths = tf.sqrt(tf.linalg.diag_part(hessian))
        factor = tf.linalg.cholesky(hessian / lengths[:, None] / lengths[None, :])
        slope = (pull - push) / lengths
        change = -tf.linalg.cholesky_solve(factor, slope[:, None])[:, 0] / lengths  # relative to the solution

        largest = tf.minimum(0.9 / tf.maximum(tf.reduce_max(-change), 1e-300), 1.0)
        direction = solution * change
        curvature = tf.reduce_sum(direction * fast_matvec(gramian, direction))
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


@keras.saving.register_keras_serializable(package="multihead")
class NashMTL(BargainingBalancer):
    """Takes the Nash bargaining solution: the update that maximizes the product of the heads' improvements.

    Formula: `d = sum_k w_k g_k` with `w > 0` and `(G w)_k = 1 / w_k`, where `G` is the Gramian, `G_jk = g_j . g_k`.

    What it fixes: direction (`d . g_k > 0` for every head) and magnitude; the update does not change when a head's loss
    is scaled, so loss weights have no effect. Size of the update: the square root of the number of heads, regardless of
    the gradients; set the learning rate accordingly. At most 128 heads.

    Heads that exactly oppose each other have no bargaining solution. The update is then orthogonal to their gradients
    and solves the problem for the other heads in the remaining subspace; it is zero if there are no other heads.

    Example:
        >>> NashMTL()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.0766, 0.9985, 0.9985]

    Source: Navon et al., Multi-Task Learning as a Bargaining Game, ICML 2022, claim 3.2. The equation is solved exactly
    and the update is not clipped (use `multihead.clipping`).
    """

    scale_invariant = True


@keras.saving.register_keras_serializable(package="multihead")
class FairGrad(BargainingBalancer):
    """Maximizes the alpha-fair utility of the heads' improvements.

    Formula: `d = sum_k w_k g_k` with `w > 0` and `(G w)_k = w_k^(-1 / alpha)`, where `G` is the Gramian, `G_jk = g_j . g_k`.
    `alpha = 1` is `NashMTL`; `alpha -> 0` is the plain sum; a larger `alpha` favors the head that improves least.

    What it fixes: direction (`d . g_k > 0` for every head) and, increasingly with `alpha`, magnitude. Size of the update:
    `|d|^2 = sum_k w_k^(1 - 1/alpha)`, which differs from that of the sum; set the learning rate accordingly. At most 128
    heads.

    Heads that exactly oppose each other are handled as in `NashMTL`.

    Args:
        alpha: A number above 0.

    Example:
        >>> FairGrad()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.0313, 0.7908, 0.7908]

    Source: Ban and Ji, Fair Resource Allocation in Multi-Task Learning, ICML 2024, equation 4. The paper tunes `alpha`
    per dataset; the default is its value for NYU-v2.
    """

    def __init__(self, alpha: float = 2.0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.alpha = check_positive("alpha", alpha)
        self.scale_invariant = self.alpha == 1
