"""Weighting by homoscedastic uncertainty."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead.weighting._base import Weighting, sum_over, values


@keras.saving.register_keras_serializable(package="multihead")
class Uncertainty(Weighting):
    """Learns each head's homoscedastic noise and gives less weight to noisier heads.

    Formula: `total = sum_k (exp(-s_k) L_k + s_k) / 2`, so `w_k = exp(-s_k) / 2`. For a fixed `L_k`, the learned `s_k`
    converges to `log L_k`, where `w_k = 1 / (2 L_k)`.

    What it fixes: the scales of losses. The total may become negative, which is not an error: watch the heads' own
    losses. The regularizer, `sum_k s_k / 2`, is logged separately.

    State: one learned scalar per head, `log_variance_{head}`, the `s_k`, initially 0.

    Args:
        name: Name of the layer.

    Example:
        >>> Uncertainty()([4.0, 0.5]).numpy().tolist()
        [0.5, 0.5]

    Source: Kendall, Gal and Cipolla, Multi-Task Learning Using Uncertainty to Weigh Losses, CVPR 2018, equation 7, with
    the factor 1/2 for every kind of loss. The optimizer's weight decay, if any, also applies to the `s_k`.
    """

    uses = ()

    def create_state(self, num_heads: int) -> None:
        self.log_variances = self.add_learned("log_variance", num_heads)

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        return sum_over(0.5 * tf.exp(-values(self.log_variances)) * losses, active) + self.regularizer(active)

    def regularizer(self, active: tf.Tensor) -> tf.Tensor:
        return sum_over(0.5 * values(self.log_variances), active)
