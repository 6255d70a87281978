"""Equal lengths for the heads' gradients."""

from __future__ import annotations

import tensorflow as tf

from multihead._keras import keras
from multihead.balancing._base import Balancer
from multihead.balancing._rows import unit_rows


@keras.saving.register_keras_serializable(package="multihead")
class EqualNorms(Balancer):
    """Gives every head's gradient the same length: the mean of their lengths.

    For heads whose losses live on different scales. Conflicts of direction stay; put `UPGrad` behind it with `Chain`
    to remove these too.

    Formula: `d = sum_k (m / |g_k|) g_k`, with `m` the mean of `|g_k|` over the heads that have a gradient.

    What it fixes: magnitude. Size of the update: at most the sum of the lengths; one head alone is left as it is.
    The direction does not depend on the weights of the losses.

    Args:
        name: Name of the layer.

    Example:
        >>> EqualNorms()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.1588, 2.0706, 2.0706]
    """

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        mean = tf.math.divide_no_nan(tf.reduce_sum(rows.norms * rows.active), tf.reduce_sum(rows.active))
        return rows.coefficients(tf.ones_like(rows.norms) * mean)
