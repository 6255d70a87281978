"""Gradient sign dropout (GradDrop)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from multihead._draws import uniform
from multihead._keras import keras
from multihead._validation import check_between, check_seed
from multihead.balancing._base import Balancer


@keras.saving.register_keras_serializable(package="multihead")
class GradDrop(Balancer):
    """Picks one sign for every coordinate, at random by how much of the gradients has it, and drops the other.

    Formula, coordinate by coordinate: `P = (1 + sum_k g_k / sum_k |g_k|) / 2`, `U` uniform in (0, 1); of each head's
    gradient the positive part is kept where `U < P` and the negative where `U > P`, but at least the part `leak` of it.
    The update is the sum of what is kept.

    What it fixes: direction, coordinate by coordinate and on average. Size of the update: that of the sum where signs
    agree; in other coordinates it may be larger or smaller. It is random: the draw depends on `seed`, the update count
    and the number of coordinates.

    Args:
        leak: Part of a head's gradient that is always kept, from 0 to 1.
        seed: Seed of the draw.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> GradDrop()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [-4.0, 2.0, 2.0]

    Source: Chen et al., Just Pick a Sign, NeurIPS 2020, algorithm 1, on the gradients as they are (the paper first
    multiplies gradients of activations by the activations' signs and adds up the batch).
    """

    needs = "gradients"
    uses = ("update",)
    rescales = False

    def __init__(self, leak: float = 0.0, seed: int = 0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.leak = check_between("leak", leak, 0.0, 1.0)
        self.seed = check_seed(seed)

    def combine(self, gradients: Sequence[tf.Tensor], *, update: Any = 0) -> list[tf.Tensor]:
        return [self._dropped(tf.stop_gradient(rows), update, stream) for stream, rows in enumerate(gradients)]

    def _dropped(self, rows: tf.Tensor, update: Any, stream: int) -> tf.Tensor:
        # Halves of units in the last place keep the draw off 0, so that a coordinate of one sign is never dropped.
        draw = tf.cast(uniform(tf.shape(rows)[1:], self.seed, update, stream), rows.dtype) + 2.0**-25
        total, size = tf.reduce_sum(rows, axis=0), tf.reduce_sum(tf.abs(rows), axis=0)
        positive = 0.5 * (1.0 + tf.math.divide_no_nan(total, size))
        kept = tf.where(draw < positive, tf.maximum(rows, 0.0), tf.minimum(rows, 0.0))
        return tf.reduce_sum(self.leak * rows + (1.0 - self.leak) * kept, axis=0)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "leak": self.leak, "seed": self.seed}
