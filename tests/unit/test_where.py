"""A choice between tensors, compared with NumPy's and with TensorFlow's own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from multihead._ground.tensors import where

pytestmark = pytest.mark.mathematics

SHAPES = ((), (3,), (2, 3))
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "bool")


def values(shape, dtype, first):
    return tf.cast(tf.reshape(tf.range(first, first + int(np.prod(shape, dtype=int))), shape), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_numpys_choice(dtype):
    for shapes in itertools.product(SHAPES, repeat=3):
        condition = tf.constant(np.arange(np.prod(shapes[0], dtype=int)).reshape(shapes[0]) % 2 == 0)
        arguments = [condition, values(shapes[1], dtype, 1), values(shapes[2], dtype, 100)]
        wanted = np.where(*(each.numpy() for each in arguments))
        for found in (where(*arguments), tf.function(where, autograph=False)(*arguments)):
            assert found.dtype == dtype
            np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_gradients_flow_to_what_was_chosen(jit_compile):
    @tf.function(jit_compile=jit_compile)
    def gradients(choose, condition, x, y):
        with tf.GradientTape() as tape:
            tape.watch((x, y))
            total = tf.reduce_sum(choose(condition, x * x, y) * tf.range(1.0, 4.0))
        return tape.gradient(total, (x, y))

    for condition in (True, False, [True, False, True]):
        arguments = tf.constant(condition), tf.constant([1.0, 2.0, 3.0]), tf.constant([4.0, np.inf, 6.0])
        for found, wanted in zip(gradients(where, *arguments), gradients(tf.where, *arguments)):
            np.testing.assert_array_equal(found, wanted)
