"""Random draws as functions of a seed and the update count: a resumed run repeats them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

MAX_HEADS = 16


def uniform(shape: Sequence[Any], seed: int, update: Any, stream: int = 0) -> tf.Tensor:
    """Numbers in [0, 1), float32.

    Args:
        shape: Their shape.
        seed: The method's seed.
        update: The count of updates so far, a whole scalar.
        stream: Tells apart several draws at one update.
    """
    key = tf.stack([tf.constant(seed, tf.int64) + stream * 1_000_003, tf.cast(update, tf.int64)])
    return tf.random.stateless_uniform(shape, key, alg="philox")


def other_heads_in_random_order(num_heads: int, seed: int, update: Any) -> tf.Tensor:
    """For each head, the other heads in an order of its own.

    The order of two heads does not depend on how many further heads follow.

    Returns:
        `[num_heads, num_heads - 1]` int32.
    """
    keys = uniform([MAX_HEADS, MAX_HEADS], seed, update)[:num_heads, :num_heads]
    return tf.argsort(tf.linalg.set_diag(keys, tf.fill([num_heads], 2.0)), axis=1)[:, : num_heads - 1]
