"""Random draws as functions of a seed and the update count: a resumed run repeats them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from multihead._draws import uniform

MAX_HEADS = 16


def other_heads_in_random_order(num_heads: int, seed: int, update: Any) -> tf.Tensor:
    """For each head, the other heads in an order of its own.

    The order of two heads does not depend on how many further heads follow.

    Returns:
        `[num_heads, num_heads - 1]` int32.
    """
    keys = uniform([MAX_HEADS, MAX_HEADS], seed, update)[:num_heads, :num_heads]
    return tf.argsort(tf.linalg.set_diag(keys, tf.fill([num_heads], 2.0)), axis=1)[:, : num_heads - 1]
