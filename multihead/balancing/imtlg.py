"""Impartial multi-task learning by gradients (IMTL-G)."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead._ground.tensors import where
from multihead.balancing._base import Balancer
from multihead.balancing._rows import unit_rows
from multihead.balancing._solvers.least_squares import pseudo_inverse


@keras.saving.register_keras_serializable(package="multihead")
class IMTLG(Balancer):
    """Finds the update with equal projections onto all heads' gradients.

    Formula: `d = sum_k w_k g_k` with `d . g_k / |g_k|` equal for all k and `sum_k w_k = 1`, that is,
    `w = G^+ n / sum(G^+ n)`, with `G` the Gramian, `n` the gradient norms and `+` the pseudo-inverse.

    What it fixes: direction and magnitude; the direction does not depend on the loss weights. Size of the update: the
    coefficients sum to 1. They may be negative. If `sum(G^+ n)` is negative, which happens when a small gradient
    conflicts with a large one, the update conflicts with every head; `ConFIG` has the same direction without this
    problem. If no such update exists (the heads exactly oppose each other), all coefficients are 0.

    Args:
        name: Name of the layer.

    Example:
        >>> IMTLG()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.0767, 1.0, 1.0]

    Source: Liu et al., Towards Impartial Multi-Task Learning, ICLR 2021; with the pseudo-inverse as in Quinton and Rey,
    arXiv 2406.16232, so that linearly dependent gradients are handled.
    """

    scale_invariant = True

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        weights = tf.linalg.matvec(pseudo_inverse(rows.cosines, rows.tolerance), rows.active)
        parts = rows.active * weights / rows.norms
        total, size = tf.reduce_sum(parts), tf.reduce_sum(tf.abs(parts))
        reached = tf.reduce_sum(rows.active * weights)  # |sum of active rows' projections|^2, 0 if none exists
        exists = (tf.abs(total) > rows.noise * size) & (reached > rows.tolerance)
        return rows.coefficients(where(exists, weights / where(exists, total, 1.0), tf.zeros_like(weights)))
