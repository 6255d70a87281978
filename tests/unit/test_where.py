"""A choice between tensors, compared with NumPy's and with TensorFlow's own."""

from __future__ import annotations

import ast
import itertools

import numpy as np
import pytest
import tensorflow as tf

from multihead._ground.tensors import where
from tests.helpers.sources import sources

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


def test_it_is_numpys_choice_of_tensors_of_unknown_shapes():
    unknown = tf.function(where, input_signature=[tf.TensorSpec(None, each) for each in ("bool", "float32", "float32")])
    for shapes in itertools.product(SHAPES, repeat=3):
        condition = tf.constant(np.arange(np.prod(shapes[0], dtype=int)).reshape(shapes[0]) % 2 == 0)
        arguments = condition, values(shapes[1], "float32", 1), values(shapes[2], "float32", 100)
        np.testing.assert_array_equal(unknown(*arguments), np.where(*(each.numpy() for each in arguments)))


@pytest.mark.parametrize("number", [0.0, 2.5, float("nan"), float("inf")])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_number_stands_for_a_tensor_of_it(shape, number):
    for condition in (tf.constant(True), tf.constant(False), tf.fill(shape, True)):
        given = values(shape, "float64", 1)
        for arguments in ((condition, given, number), (condition, number, given)):
            found = where(*arguments)
            np.testing.assert_array_equal(found, np.where(*(np.asarray(each) for each in arguments)))
            assert found.dtype == tf.float64 and found.shape == given.shape


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


def types(*arguments):
    graph = tf.function(where).get_concrete_function(*arguments).graph
    return {each.type for each in graph.get_operations() if each.type.startswith("Select")}


def test_the_operation_that_broadcasts_is_taken_only_where_that_is_needed():
    row, matrix = tf.constant([1.0, 2.0]), tf.constant([[1.0, 2.0], [3.0, 4.0]])
    assert types(tf.constant(True), matrix, matrix) == types(tf.constant([True, False]), row, row) == {"Select"}
    assert types(tf.constant(True), matrix, 0.0) == types(tf.constant([True, False]), 0.0, row) == {"Select"}
    assert types(tf.constant([True, False]), matrix, matrix) == types(tf.constant(True), matrix, row) == {"SelectV2"}
    assert types(tf.TensorSpec([None], tf.bool), tf.TensorSpec([None]), 0.0) == {"SelectV2"}


def test_every_choice_is_made_by_it():
    slow = []
    for path in sources("multihead"):
        calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
        number = [
            call.lineno for call in calls if ast.unparse(call.func) == "tf.where" and len(call.args) + len(call.keywords) > 1
        ]
        slow += [f"{path}:{line}" for line in number if path.name != "tensors.py"]
    assert not slow, f"use `where` of `multihead._ground.tensors` instead of `tf.where`: {slow}"
