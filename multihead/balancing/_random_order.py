"""The other heads in random order, as a function of a seed and the step, so that a resumed run repeats it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multihead._ground.random import uniform


def other_heads_in_random_order(num_heads: int, seed: int, step: Any) -> tf.Tensor:
    """For each head, the other heads in an independent random order.

    Up to 16 heads, the relative order of two heads does not depend on the number of heads after them.

    Returns:
        `[num_heads, num_heads - 1]` int32.
    """
    drawn = max(num_heads, 16)
    keys = uniform([drawn, drawn], seed, step)[:num_heads, :num_heads]
    return tf.argsort(tf.linalg.set_diag(keys, tf.fill([num_heads], 2.0)), axis=1)[:, : num_heads - 1]


def one_after_another(step: Callable[[Any, tf.Tensor], Any], state: Any, orders: tf.Tensor) -> Any:
    """`step(state, others)` for each row of `orders`: unrolled for few heads, which is faster, otherwise a loop."""
    count = int(orders.shape[0])
    if count < 16:
        for others in tf.unstack(orders):
            state = step(state, others)
        return state
    return tf.while_loop(
        lambda index, _: index < count, lambda index, state: (index + 1, step(state, orders[index])), (tf.constant(0), state)
    )[1]
