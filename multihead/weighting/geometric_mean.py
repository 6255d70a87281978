"""The geometric mean of the losses."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead.weighting._base import Weighting, count_of, logarithm


@keras.saving.register_keras_serializable(package="multihead")
class GeometricMean(Weighting):
    """Minimizes the geometric mean of the losses, in which the same relative decrease of any loss counts equally.

    Formula: `total = (prod_k L_k)^(1/K)`, computed as `exp(mean_k log L_k)` (with 1e-8 added to `L_k`), so `w_k = total /
    (K L_k)`, over the `K` active heads.

    What it fixes: the scales of losses: scaling a loss changes the size of the update, not its direction. Losses must
    not be negative: an update with a negative loss is skipped.

    State: none.

    Args:
        name: Name of the layer.

    Example:
        >>> GeometricMean()([4.0, 1.0]).numpy().tolist()
        [0.25, 1.0]

    Source: Chennupati et al., MultiNet++: Multi-Stream Feature Aggregation and Geometric Loss Strategy, CVPR workshops
    2019.
    """

    scale_invariant = True

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        return tf.exp(tf.math.divide_no_nan(tf.reduce_sum(logarithm(losses, active)), count_of(active)))
