"""The sum of the logarithms of the losses."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead.weighting._base import Weighting, logarithm


@keras.saving.register_keras_serializable(package="multihead")
class LogLoss(Weighting):
    """Minimizes the sum of the logarithms of the losses, so that only relative changes of a loss matter.

    Formula: `total = sum_k log L_k`, so `w_k = 1 / L_k` (with 1e-8 added to `L_k`).

    What it fixes: the scales of losses: a loss in cents trains like one in dollars, and `weight=` of a head has no effect.
    Losses must not be negative: an update with a negative loss is skipped.

    State: none.

    Args:
        name: Name of the layer.

    Example:
        >>> LogLoss()([4.0, 0.5]).numpy().tolist()
        [0.25, 2.0]

    Source: the scale-invariant baseline of Navon et al., Multi-Task Learning as a Bargaining Game, ICML 2022.
    """

    scale_invariant = True

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(logarithm(losses, active))
