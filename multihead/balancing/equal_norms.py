"""Equal norms for the heads' gradients."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead.balancing._kinds import PreferenceBalancer
from multihead.balancing._rows import unit_rows


@keras.saving.register_keras_serializable(package="multihead")
class EqualNorms(PreferenceBalancer):
    """Scales every head's gradient to the same norm: the mean of their norms.

    For heads whose losses have different scales. Conflicts in direction remain; add `UPGrad` after it with `Chain` to
    remove them as well.

    Formula: `d = sum_k (m p_k / |g_k|) g_k`, with `p` the `preference` and `m = sum_k |g_k| / sum_k p_k`, both sums over the
    heads that have a gradient. The share of a head in the sum of the norms is then its share in the preference.

    What it fixes: magnitude. Size of the update: at most the sum of the norms; the gradient of a single head is
    unchanged. The direction does not depend on the loss weights: use the preference instead.

    Args:
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.
        name: Name of the layer.

    Raises:
        ValueError: A number is negative or not finite, or all are 0.

    Example:
        >>> EqualNorms()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.1588, 2.0706, 2.0706]
    """

    scale_invariant = True

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        preference = self._preference_vector(rows.num_heads) * rows.active
        mean = tf.math.divide_no_nan(tf.reduce_sum(rows.norms * rows.active), tf.reduce_sum(preference))
        return rows.coefficients(preference * mean)
