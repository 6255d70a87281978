"""The other heads in random order, as a function of a seed and the step, so that a resumed run repeats it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from multihead._ground.random import uniform
from multihead.balancing._base import MAX_HEADS


def other_heads_in_random_order(num_heads: int, seed: int, step: Any) -> tf.Tensor:
    """For each head, the other heads in an independent random order.

    The relative order of two heads does not depend on the number of heads after them.

    Returns:
        `[num_heads, num_heads - 1]` int32.
    """
    keys = uniform([MAX_HEADS, MAX_HEADS], seed, step)[:num_heads, :num_heads]
    return tf.argsort(tf.linalg.set_diag(keys, tf.fill([num_heads], 2.0)), axis=1)[:, : num_heads - 1]
