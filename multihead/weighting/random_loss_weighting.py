"""Random loss weighting (RLW)."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead._ground.random import normal
from multihead._ground.types import Tensor
from multihead._ground.validation import check_whole
from multihead.weighting._base import Weighting, softmax_over, sum_over


@keras.saving.register_keras_serializable(package="multihead")
class RandomLossWeighting(Weighting):
    """Draws random weights at every update: a baseline that any other method should beat.

    Formula: `total = sum_k w_k L_k`, with `w = softmax(z)` over the active heads and `z_k` drawn from the standard normal
    distribution. The weights sum to 1, and their mean is `1/K`.

    What it fixes: nothing, by design.

    State: none. The weights are a function of `seed` and the step, so a resumed run repeats them.

    Args:
        seed: Seed of the random weights, a whole number.
        name: Name of the layer.

    Raises:
        ValueError: `seed` is not a whole number.

    Example:
        >>> round(float(sum(RandomLossWeighting()([4.0, 0.5]))), 6)
        1.0

    Source: Lin et al., Reasonable Effectiveness of Random Weighting, TMLR 2022.
    """

    uses = ("step",)

    def __init__(self, seed: int = 0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.seed = check_whole("seed", seed)

    def total(self, losses: tf.Tensor, active: tf.Tensor, *, step: Tensor = 0) -> tf.Tensor:
        draws = normal([losses.shape[0]], self.seed, step)
        return sum_over(softmax_over(draws, active) * losses, active)
