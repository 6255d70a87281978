"""Conflict-free inverse gradients (ConFIG)."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead._ground.tensors import where
from multihead.balancing._base import Balancer
from multihead.balancing._rows import unit_rows
from multihead.balancing._solvers.least_squares import pseudo_inverse


@keras.saving.register_keras_serializable(package="multihead")
class ConFIG(Balancer):
    """Finds the direction with the same cosine to every head's gradient and scales it by their projections.

    Formula: `x = U^+ 1 / |U^+ 1|` and `d = (sum_k g_k . x) x`, where the rows of `U` are the gradients scaled to unit
    norm and `+` is the pseudo-inverse.

    What it fixes: direction (equal, positive cosines if the gradients are linearly independent; otherwise equal only in
    the least-squares sense, and the update may conflict with a head). The direction does not depend on the loss
    weights; the size does. Size of the update: the sum of the gradients' projections onto its direction.

    Args:
        name: Name of the layer.

    Example:
        >>> ConFIG()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.1588, 2.0706, 2.0706]

    Source: Liu, Chu and Thuerey, ConFIG: Towards Conflict-free Training of Physics Informed Neural Networks, arXiv
    2408.11104, 2024, equation 2.
    """

    scale_invariant = True

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        weights = tf.linalg.matvec(pseudo_inverse(rows.cosines, rows.tolerance), rows.active)
        square = tf.reduce_sum(weights * rows.active)  # |U^+ 1|^2
        exists = square > rows.tolerance
        projected = tf.reduce_sum(rows.active * rows.norms * tf.linalg.matvec(rows.cosines, weights))
        return rows.coefficients(where(exists, weights * projected / where(exists, square, 1.0), 0.0 * weights))
