"""The plain sum of the heads' gradients."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead.balancing._kinds import PreferenceBalancer


@keras.saving.register_keras_serializable(package="multihead")
class Sum(PreferenceBalancer):
    """Adds the heads' gradients: the gradient of the total loss, as without a balancer.

    The baseline. A plain sum with tuned weights is often as good as any method (Kurin et al., NeurIPS 2022).

    Formula: `d = sum_k p_k g_k`, with `p` the `preference`.

    What it fixes: nothing. Size of the update: that of the sum.

    Args:
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.
        name: Name of the layer.

    Raises:
        ValueError: A preference is negative or not finite, or all are 0.

    Example:
        >>> Sum()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [2.0, 2.0, 2.0]
    """

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        gramian = tf.convert_to_tensor(gramian)
        return tf.cast(self._preference_vector(int(gramian.shape[0])), gramian.dtype)
