"""Impartial multi-task learning by losses (IMTL-L)."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead.weighting._base import Weighting, sum_over, values


@keras.saving.register_keras_serializable(package="multihead")
class IMTLL(Weighting):
    """Learns weights that bring all weighted losses to the same scale.

    Formula: `total = sum_k (exp(s_k) L_k - s_k)`, so `w_k = exp(s_k)`. For a fixed `L_k`, the learned `s_k` converges to
    `-log L_k`, where `w_k L_k = 1`.

    What it fixes: the scales of losses. The total may be negative; the regularizer, `-sum_k s_k`, is logged separately.

    State: one learned scalar per head, `log_scale_{head}`, the `s_k`, initially 0.

    Args:
        name: Name of the layer.

    Example:
        >>> IMTLL()([4.0, 0.5]).numpy().tolist()
        [1.0, 1.0]

    Source: Liu et al., Towards Impartial Multi-task Learning, ICLR 2021, section 3.2. The optimizer's weight decay, if
    any, also applies to the `s_k`.
    """

    uses = ()

    def create_state(self, num_heads: int) -> None:
        self.log_scales = self.add_learned("log_scale", num_heads)

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        return sum_over(tf.exp(values(self.log_scales)) * losses, active) + self.regularizer(active)

    def regularizer(self, active: tf.Tensor) -> tf.Tensor:
        return -sum_over(values(self.log_scales), active)
