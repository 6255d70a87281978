"""Gradient sign dropout (GradDrop)."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from multihead._ground.random import uniform
from multihead._ground.tensors import where
from multihead._ground.types import Tensor
from multihead._ground.validation import check_between, check_whole
from multihead.balancing._base import Balancer


@keras.saving.register_keras_serializable(package="multihead")
class GradDrop(Balancer):
    """Samples one sign per coordinate, in proportion to the gradients with that sign, and drops the opposite sign.

    Formula, per coordinate: `P = (1 + sum_k g_k / sum_k |g_k|) / 2` and `U` uniform in (0, 1). Each head's gradient is
    kept where it is positive and `U < P`, or negative and `U > P`; elsewhere it is multiplied by `leak`. The update is
    the sum of the results.

    What it fixes: direction, per coordinate and on average. Size of the update: that of the sum where signs agree; in
    other coordinates it may be larger or smaller. The sample depends on `seed`, the step and the number of coordinates.

    Args:
        leak: Fraction of each head's gradient that is always kept, from 0 to 1.
        seed: Seed of the random signs, a whole number.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> GradDrop()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [-4.0, 2.0, 2.0]

    Source: Chen et al., Just Pick a Sign, NeurIPS 2020, algorithm 1, applied to the gradients directly (the paper first
    multiplies activation gradients by the signs of the activations and sums over the batch).
    """

    uses = ("gradients", "step")
    rescales = False

    def __init__(self, leak: float = 0.0, seed: int = 0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.leak = check_between("leak", leak, 0.0, 1.0)
        self.seed = check_whole("seed", seed)

    def combine(self, gradients: Sequence[tf.Tensor], *, step: Tensor = 0) -> list[tf.Tensor]:
        return [self._dropped(tf.stop_gradient(rows), step, stream) for stream, rows in enumerate(gradients)]

    def _dropped(self, rows: tf.Tensor, step: Tensor, stream: int) -> tf.Tensor:
        # Half a unit in the last place keeps the sample above 0, so that a coordinate of one sign is never dropped.
        draw = tf.cast(uniform(tf.shape(rows)[1:], self.seed, step, stream), rows.dtype) + 2.0**-25
        total, size = tf.reduce_sum(rows, axis=0), tf.reduce_sum(tf.abs(rows), axis=0)
        positive = 0.5 * (1.0 + tf.math.divide_no_nan(total, size))
        kept = where(draw < positive, tf.maximum(rows, 0.0), tf.minimum(rows, 0.0))
        return tf.reduce_sum(self.leak * rows + (1.0 - self.leak) * kept, axis=0)
