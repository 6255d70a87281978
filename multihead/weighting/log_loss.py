"""The sum of the losses' logarithms."""

from __future__ import annotations

import tensorflow as tf

from multihead._keras import keras
from multihead.weighting._base import Weighting, logarithm


@keras.saving.register_keras_serializable(package="multihead")
class LogLoss(Weighting):
    """Adds up logarithms, so that each head counts by how much its loss falls relative to itself.

    Formula: `total = sum_k log L_k`, so `w_k = 1 / L_k` (with 1e-8 added to `L_k`).

    What it fixes: the scales of losses: a loss in cents trains as one in dollars, and the heads' `weight=` has no effect.
    The losses must not be negative: an update with one that is, is skipped.

    State: none.

    Args:
        name: Name of the layer.

    Example:
        >>> LogLoss()([4.0, 0.5]).numpy().tolist()
        [0.25, 2.0]

    Source: the scale-invariant baseline of Navon et al., Multi-Task Learning as a Bargaining Game, ICML 2022.
    """

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(logarithm(losses, active))
