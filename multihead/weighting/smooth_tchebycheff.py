"""Smooth Tchebycheff scalarization (STCH)."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from multihead._ground.tensors import where
from multihead._ground.validation import check_positive
from multihead.weighting._base import BoundedWeighting


@keras.saving.register_keras_serializable(package="multihead")
class SmoothTchebycheff(BoundedWeighting):
    """Minimizes a smooth maximum of the losses above the least ones, so that every Pareto optimum can be reached.

    Formula: `total = mu log sum_k exp((L_k - z_k) / mu)`, so `w = softmax((L - z) / mu)`. The total lies between the
    largest `L_k - z_k` and that plus `mu log K`; as `mu` goes to 0, only the worst head counts. To prefer a head, raise
    its `weight=`, since `L_k` is the weighted loss.

    What it fixes: heads that are left behind. It does not correct the scales of the losses.

    State: none.

    Args:
        mu: Smoothness of the maximum, in units of the losses; above 0.
        least_losses: The lower bounds `z_k` of the losses by head name, multiplied by the head's `weight=` as `L_k` is. A
            missing head has 0.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of range, or `least_losses` names an unknown head.

    Example:
        >>> SmoothTchebycheff(mu=1.0)([1.0, 1.0]).numpy().tolist()
        [0.5, 0.5]

    Source: Lin et al., Smooth Tchebycheff Scalarization for Multi-Objective Optimization, ICML 2024, equation 8.
    """

    def __init__(self, mu: float = 1.0, least_losses: Mapping[str, float] | None = None, *, name: str | None = None) -> None:
        super().__init__(least_losses, name=name)
        self.mu = check_positive("mu", mu)

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        above = self._above(losses) / self.mu
        return self.mu * tf.reduce_logsumexp(where(active, above, above.dtype.min))
