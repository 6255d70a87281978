"""Equal norms for the heads' gradients."""

from __future__ import annotations

import tensorflow as tf

from multihead._keras import keras
from multihead.balancing._base import Balancer
from multihead.balancing._rows import unit_rows


@keras.saving.register_keras_serializable(package="multihead")
class EqualNorms(Balancer):
    """Scales every head's gradient to the same norm: the mean of their norms.

    For heads whose losses have different scales. Conflicts in direction remain; add `UPGrad` after it with `Chain` to
    remove them as well.

    Formula: `d = sum_k (m / |g_k|) g_k`, with `m` the mean of `|g_k|` over the heads that have a gradient.

    What it fixes: magnitude. Size of the update: at most the sum of the norms; the gradient of a single head is
    unchanged. The direction does not depend on the loss weights.

    Args:
        name: Name of the layer.

    Example:
        >>> EqualNorms()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.1588, 2.0706, 2.0706]
    """

    scale_invariant = True

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        mean = tf.math.divide_no_nan(tf.reduce_sum(rows.norms * rows.active), tf.reduce_sum(rows.active))
        return rows.coefficients(tf.ones_like(rows.norms) * mean)
