"""Helpers on tensors: random numbers that a resumed run repeats."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from multihead._ground.types import Config, Tensor

_GOLDEN = 0x9E3779B97F4A7C15


def _mixed(bits: tf.Tensor) -> tf.Tensor:
    """The finalizer: every bit of the result depends on every bit of the input."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        shifted = tf.bitwise.right_shift(bits, tf.constant(shift, tf.uint64))
        bits = tf.bitwise.bitwise_xor(bits, shifted) * tf.constant(factor, tf.uint64)
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, tf.constant(31, tf.uint64)))


def uniform(shape: Sequence[Tensor], seed: int, step: Tensor, stream: int = 0) -> tf.Tensor:
    """Uniform numbers in [0, 1), float32; the first ones do not depend on how many are drawn."""
    # Scalars, because a vector of such constants loses its highest bits in graphs of TensorFlow 2.21.
    seed_bits, stream_bits = (tf.constant((number + 1) * _GOLDEN % 2**64, tf.uint64) for number in (seed, stream))
    key = _mixed(_mixed(_mixed(seed_bits) + stream_bits) + tf.cast(tf.cast(step, tf.int64), tf.uint64))
    counter = tf.cast(tf.range(tf.cast(tf.reduce_prod(shape), tf.int64)), tf.uint64)
    bits = _mixed(key + (counter + tf.constant(1, tf.uint64)) * tf.constant(_GOLDEN, tf.uint64))
    # 24 bits, the precision of float32; through int64, which every kernel can convert.
    high = tf.cast(tf.bitwise.right_shift(bits, tf.constant(40, tf.uint64)), tf.int64)
    return tf.reshape(tf.cast(high, tf.float32) * 2.0**-24, shape)


def normal(shape: Sequence[Tensor], seed: int, step: Tensor) -> tf.Tensor:
    """Standard normal numbers, float32, by the Box-Muller method; arguments as for `uniform`."""
    radius = tf.sqrt(-2.0 * tf.math.log(1.0 - uniform(shape, seed, step, 1)))
    return radius * tf.cos(2.0 * math.pi * uniform(shape, seed, step, 2))


@contextmanager
def without_global_seed() -> Iterator[None]:
    """A context in which what has a seed of its own draws the same numbers whatever the global seed of TensorFlow is."""
    holder = context.context()
    holder._seed, before = None, holder._seed
    try:
        yield
    finally:
        holder._seed = before


def random_numbers() -> Config:
    """The state of Python's and NumPy's global random numbers, as JSON."""
    version, numbers, gauss = random.getstate()
    name, key, *others = np.random.get_state(legacy=True)
    return {"python": [version, list(numbers), gauss], "numpy": [name, np.asarray(key).tolist(), *others]}


def restore_random_numbers(saved: Config) -> None:
    version, numbers, gauss = saved["python"]
    name, key, *others = saved["numpy"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state((name, np.array(key, np.uint32), *others))
