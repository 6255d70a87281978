"""Projecting conflicting gradients (PCGrad)."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead._ground.random import uniform
from multihead._ground.tensors import one_after_another
from multihead._ground.types import Tensor
from multihead._ground.validation import check_whole
from multihead.balancing._base import MANY_HEADS, Balancer
from multihead.balancing._rows import unit_rows


@keras.saving.register_keras_serializable(package="multihead")
class PCGrad(Balancer):
    """Projects each head's gradient onto the normal plane of every other gradient it conflicts with, one after another.

    Formula: for each head i, start with `x = g_i`; for the other heads j in random order, if `x . g_j < 0`, then
    `x <- x - (x . g_j / |g_j|^2) g_j`; the update is the sum of the results.

    What it fixes: direction, but completely only for two heads: with three, a later projection may reintroduce an
    earlier conflict, and the order of the projections matters. `UPGrad` has neither problem. Size of the update: that
    of the sum if no two heads conflict, smaller otherwise.

    The order is a function of `seed` and the step, so a resumed run repeats it.

    Args:
        seed: Seed of the random order, a whole number.
        name: Name of the layer.

    Raises:
        ValueError: `seed` is not a whole number, or there are more than 1024 heads.

    Example:
        >>> PCGrad()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.5848, 3.8012, 3.8012]

    Source: Yu et al., Gradient Surgery for Multi-Task Learning, NeurIPS 2020, algorithm 1.
    """

    uses = ("step",)
    max_heads = MANY_HEADS

    def __init__(self, seed: int = 0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.seed = check_whole("seed", seed)

    def coefficients(self, gramian: tf.Tensor, *, step: Tensor = 0) -> tf.Tensor:
        rows = unit_rows(gramian)
        weights = tf.linalg.diag(rows.active)
        orders = tf.transpose(other_heads_in_random_order(rows.num_heads, self.seed, step))

        def project(weights: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
            mark = tf.one_hot(others, rows.num_heads, dtype=tf.float64)
            products = tf.reduce_sum(weights * tf.gather(rows.cosines, others), axis=1)
            return weights - tf.minimum(products, 0.0)[:, None] * mark

        weights = one_after_another(project, weights, orders)
        return rows.coefficients(tf.linalg.matvec(weights, rows.norms, transpose_a=True))


def other_heads_in_random_order(num_heads: int, seed: int, step: Tensor) -> tf.Tensor:
    """For each head, the other heads in an independent random order, a function of the seed and the step.

    Up to 16 heads, the relative order of two heads does not depend on the number of heads after them.

    Returns:
        `[num_heads, num_heads - 1]` int32.
    """
    drawn = max(num_heads, 16)
    keys = uniform([drawn, drawn], seed, step)[:num_heads, :num_heads]
    return tf.argsort(tf.linalg.set_diag(keys, tf.fill([num_heads], 2.0)), axis=1)[:, : num_heads - 1]
