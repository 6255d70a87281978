"""Random draws as functions of a seed and the update count: a resumed run repeats them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


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


def normal(shape: Sequence[Any], seed: int, update: Any) -> tf.Tensor:
    """Numbers of the standard normal distribution, float32; arguments as for `uniform`."""
    key = tf.stack([tf.constant(seed, tf.int64), tf.cast(update, tf.int64)])
    return tf.random.stateless_normal(shape, key, alg="philox")
