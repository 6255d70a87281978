"""Projection of the sum onto the dual cone (DualProj)."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead._ground.tensors import where
from multihead.balancing._base import MANY_HEADS
from multihead.balancing._kinds import PreferenceBalancer
from multihead.balancing._rows import of_a_pair, unit_rows, unless_none_conflict
from multihead.balancing._solvers.least_squares import dual_cone
from multihead.balancing._solvers.pivoting import nonnegative, quickly, well_inside


@keras.saving.register_keras_serializable(package="multihead")
class DualProj(PreferenceBalancer):
    """Projects the sum of the heads' gradients onto the closest update that conflicts with no head.

    `UPGrad` projects each head's gradient; this method projects their sum, so heads with large gradients dominate.

    Formula: `d = P(sum_k p_k g_k)`, where `P` is the projection onto the dual cone `{x: x . g_j >= 0 for all j}` and
    `p` the `preference`.

    What it fixes: direction (`d . g_k >= 0` for every head). Size of the update: that of the sum if it conflicts with
    no head, smaller otherwise.

    Args:
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.
        name: Name of the layer.

    Raises:
        ValueError: A preference is negative or not finite, all are 0, or there are more than 1024 heads.

    Example:
        >>> DualProj()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [1.1111, 2.2222, 2.2222]

    Source: Lopez-Paz and Ranzato, Gradient Episodic Memory for Continual Learning, NeurIPS 2017; for several heads as
    in Quinton and Rey, arXiv 2406.16232, but with the sum instead of the mean.
    """

    max_heads = MANY_HEADS

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        sizes = self._preference_vector(rows.num_heads) * rows.norms * rows.active
        if rows.num_heads == 2:  # of two rows, at most one conflicts with the sum
            return rows.coefficients(of_a_pair(rows, sizes + tf.maximum(-tf.linalg.matvec(rows.cosines, sizes), 0.0)))

        def quick(matrix: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            linear, unit = _direction(rows.cosines, sizes)
            lift, is_solved = nonnegative(matrix, linear, rows.noise)
            return well_inside(rows, matrix, sizes + unit * lift[0]), is_solved

        def exact() -> tf.Tensor:
            cone = dual_cone(rows)
            weights = cone.without_opposed(sizes)
            linear, unit = _direction(rows.cosines, weights)
            return cone.inside(cone.without_opposed(weights + unit * cone.lifts(linear)[0]))

        return rows.coefficients(unless_none_conflict(rows, sizes, lambda: quickly(rows, quick, exact)))


def _direction(cosines: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The unit rows' inner products with a vector of unit norm, `[1, num_heads]`, and the norm that it had."""
    products = tf.linalg.matvec(cosines, weights)
    norm = tf.sqrt(tf.maximum(tf.reduce_sum(weights * products), 0.0))
    unit = where(norm > 0, norm, 1.0)
    return tf.expand_dims(products / unit, 0), unit
