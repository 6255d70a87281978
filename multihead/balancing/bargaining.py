"""Balancers by the utility of the heads' improvements: Nash-MTL and FairGrad."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead._ground.tensors import where
from multihead._ground.validation import check_positive
from multihead.balancing._base import MANY_HEADS, Balancer
from multihead.balancing._rows import UnitRows, of_a_pair, unit_rows
from multihead.balancing._solvers.least_squares import dual_cone
from multihead.balancing._solvers.pivoting import quickly, well_inside


@keras.saving.register_keras_serializable(package="multihead")
class NashMTL(Balancer):
    """Takes the Nash bargaining solution: the update that maximizes the product of the heads' improvements.

    Formula: `d = sum_k w_k g_k` with `w > 0` and `(G w)_k = 1 / w_k`, where `G` is the Gramian, `G_jk = g_j . g_k`.

    What it fixes: direction (`d . g_k > 0` for every head) and magnitude; the update does not change when a head's loss
    is scaled, so loss weights have no effect. Size of the update: the square root of the number of heads, regardless of
    the gradients; set the learning rate accordingly.

    Heads that exactly oppose each other have no bargaining solution. The update is then orthogonal to their gradients
    and solves the problem for the other heads in the remaining subspace; it is zero if there are no other heads.

    Args:
        name: Name of the layer.

    Raises:
        ValueError: There are more than 1024 heads.

    Example:
        >>> NashMTL()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.0766, 0.9985, 0.9985]

    Source: Navon et al., Multi-Task Learning as a Bargaining Game, ICML 2022, claim 3.2. The equation is solved exactly
    and the update is not clipped (use `multihead.clipping`).
    """

    scale_invariant = True
    max_heads = MANY_HEADS

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        return rows.coefficients(bargaining_weights(rows, tf.ones_like(rows.norms), power=1.0))


def bargaining_weights(rows: UnitRows, scales: tf.Tensor, power: float) -> tf.Tensor:
    """Finds weights `y > 0` of the unit rows with `(cosines y)_k = scales_k / y_k^power` for the heads that are not opposed.

    The weights of opposed heads make the result orthogonal to them.
    """
    if rows.num_heads == 2 and power == 1.0:  # by symmetry, both weights of unit rows are equal
        return of_a_pair(rows, scales / tf.sqrt(tf.maximum(1.0 + rows.cosines[0, 1], rows.tolerance)))

    def quick(matrix: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        solution = _solve(matrix, where(rows.active > 0, scales, 1.0), power)
        return well_inside(rows, matrix, solution * rows.active), tf.constant(True)

    def exact() -> tf.Tensor:
        cone = dual_cone(rows)
        takes_part = (rows.active > 0) & ~cone.opposed
        reduced = tf.matmul(cone.removal, tf.matmul(rows.cosines, cone.removal), transpose_a=True)  # without the opposed
        diagonal = where(takes_part, tf.linalg.diag_part(reduced), 1.0)
        solution = _solve(tf.linalg.set_diag(reduced, diagonal), where(takes_part, scales, 1.0), power)
        return cone.inside(cone.without_opposed(where(takes_part, solution, 0.0)))

    return quickly(rows, quick, exact)


def _solve(gramian: tf.Tensor, scales: tf.Tensor, power: float) -> tf.Tensor:
    """Finds `y > 0` with `(gramian y)_k = scales_k / y_k^power`, for positive `scales` and `power`.

    The solution minimizes the convex function `y . gramian y / 2 - sum_k scales_k y_k^(1 - power) / (1 - power)` (a
    logarithm for `power == 1`). A Newton step is shortened if it would leave `y > 0` or overshoot the minimum along its
    direction. All quantities are relative to the size of each `y_k`, so that the method does not depend on scale. The matrix
    is positive semidefinite with a positive diagonal, and `gramian y = 0` for no `y >= 0` other than 0.
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


@keras.saving.register_keras_serializable(package="multihead")
class FairGrad(Balancer):
    """Maximizes the alpha-fair utility of the heads' improvements.

    Formula: `d = sum_k w_k g_k` with `w > 0` and `(G w)_k = w_k^(-1 / alpha)`, where `G` is the Gramian, `G_jk = g_j . g_k`.
    `alpha = 1` is `NashMTL`; `alpha -> 0` is the plain sum; a larger `alpha` favors the head that improves least.

    What it fixes: direction (`d . g_k > 0` for every head) and, increasingly with `alpha`, magnitude. Size of the
    update: `|d|^2 = sum_k w_k^(1 - 1/alpha)`, which differs from that of the sum; set the learning rate accordingly.

    Heads that exactly oppose each other are handled as in `NashMTL`.

    Args:
        alpha: A number above 0.
        name: Name of the layer.

    Raises:
        ValueError: `alpha` is not above 0, or there are more than 1024 heads.

    Example:
        >>> FairGrad()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.0313, 0.7908, 0.7908]

    Source: Ban and Ji, Fair Resource Allocation in Multi-Task Learning, ICML 2024, equation 4. The paper tunes `alpha`
    for each dataset; the default is its value for NYU-v2.
    """

    max_heads = MANY_HEADS

    def __init__(self, alpha: float = 2.0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.alpha = check_positive("alpha", alpha)
        self.scale_invariant = self.alpha == 1

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        power = 1.0 / self.alpha
        return rows.coefficients(bargaining_weights(rows, tf.pow(rows.norms, power - 1.0), power))
