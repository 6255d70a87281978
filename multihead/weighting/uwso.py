"""Weights in a softmax of the inverse losses."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead._ground.tensors import where
from multihead._ground.validation import check_positive
from multihead.weighting._base import Weighting, softmax_over, sum_over, valid


@keras.saving.register_keras_serializable(package="multihead")
class UWSO(Weighting):
    """Gives each head the weight that learned uncertainties would end with, made less extreme by a softmax.

    Soft optimal uncertainty weighting: `1 / L_k` is the weight at the optimum of uncertainty weighting, so nothing is
    learned. The softmax keeps the sum of the weights at 1.

    Formula: `total = sum_k w_k L_k`, with `w = softmax(1 / (temperature L_k))` over the active heads (with 1e-8 added to
    `L_k`); the weights are constants in the gradient.

    What it fixes: heads whose losses are far above the others'. The weights depend on the unit of the losses: they are
    nearly equal where `temperature` is far above `1 / L_k`, and all of the weight is on the smallest loss where it is far
    below, so it must be chosen for each data set. Losses must not be negative: an update with a negative loss is skipped.

    State: none.

    Args:
        temperature: Above 0; a higher temperature makes the weights more equal.
        name: Name of the layer.

    Raises:
        ValueError: `temperature` is out of range.

    Example:
        >>> UWSO()([4.0, 0.5]).numpy().round(4).tolist()
        [0.148, 0.852]

    Source: Kirchdorfer et al., Analytical Uncertainty-Based Loss Weighting in Multi-Task Learning, GCPR 2024
    (arXiv:2408.07985), there UW-SO.
    """

    def __init__(self, temperature: float = 1.0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.temperature = check_positive("temperature", temperature)

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        losses = valid(losses)
        inverse = 1.0 / (where(active, losses, 1.0) + 1e-8)
        weights = softmax_over(inverse / self.temperature, active)
        return sum_over(tf.stop_gradient(weights) * losses, active)
