"""Unconflicting projection of the gradients (UPGrad)."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead.balancing._base import MAX_HEADS
from multihead.balancing._kinds import PreferenceBalancer
from multihead.balancing._rows import of_a_pair, unit_rows, unless_none_conflict
from multihead.balancing._solvers.least_squares import dual_cone
from multihead.balancing._solvers.pivoting import nonnegative, quickly, well_inside


@keras.saving.register_keras_serializable(package="multihead")
class UPGrad(PreferenceBalancer):
    """Projects each head's gradient onto the closest update that conflicts with no head, and adds the results.

    The first choice when heads conflict in direction: exact for any number of heads, independent of their order, and
    equal to the plain sum if no heads conflict.

    Formula: `d = sum_k p_k P(g_k)`, where `P` is the projection onto the dual cone `{x: x . g_j >= 0 for all j}` and
    `p` the `preference`.

    What it fixes: direction (`d . g_k >= 0` for every head). Size of the update: that of the sum if no two heads
    conflict, smaller otherwise; each head's contribution scales with its gradient. Zero if the heads exactly oppose
    each other.

    Args:
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.
        name: Name of the layer.

    Raises:
        ValueError: A preference is negative or not finite, all are 0, or there are more than 128 heads.

    Example:
        >>> UPGrad()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.5848, 3.8012, 3.8012]

    Source: Quinton and Rey, Jacobian Descent for Multi-Objective Optimization, arXiv 2406.16232, 2024. There the
    projections are averaged; here they are added, so that `Sum` and `UPGrad` differ only if heads conflict.
    """

    max_heads = MAX_HEADS

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        sizes = self._preference_vector(rows.num_heads) * rows.norms * rows.active
        if rows.num_heads == 2:
            pull = tf.maximum(-rows.cosines[0, 1], 0.0)
            return rows.coefficients(of_a_pair(rows, sizes + pull * tf.reverse(sizes, [0])))

        def quick(matrix: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            lifts, is_solved = nonnegative(matrix, rows.cosines, rows.noise)
            return well_inside(rows, matrix, sizes + tf.linalg.matvec(lifts, sizes, transpose_a=True)), is_solved

        def exact() -> tf.Tensor:
            cone = dual_cone(rows)
            return cone.inside(cone.without_opposed(tf.linalg.matvec(cone.projections, sizes, transpose_a=True)))

        return rows.coefficients(unless_none_conflict(rows, sizes, lambda: quickly(rows, quick, exact)))
