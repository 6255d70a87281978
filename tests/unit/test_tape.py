"""Gradients of the same outputs as often as needed, beside a persistent tape of TensorFlow."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.tape import PersistentTape
from tests.helpers import tiny
from tests.helpers.operations import operations

IDS = tf.constant(np.random.default_rng(0).integers(0, 9, (4, 5)))


@tf.custom_gradient
def halved(x):
    return x * 1.0, lambda upstream: upstream / 2.0


def derivative(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.sin(x)
    return tape.gradient(y, x)


def looped(x):
    return tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, x * x), (tf.constant(0), x))[1]


def either(x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: 3.0 * x, lambda: x)


LAYERS = {
    "GRU": lambda: keras.layers.GRU(3, return_sequences=True),
    "LSTM": lambda: keras.layers.Bidirectional(keras.layers.LSTM(2, return_sequences=True)),
    "normalization": keras.layers.LayerNormalization,
    "function": lambda: tiny.Calling(tf.function(tf.tanh)),
    "custom gradient": lambda: tiny.Calling(halved),
    "derivative": lambda: tiny.Calling(derivative),
    "loop": lambda: tiny.Calling(looped),
    "condition": lambda: tiny.Calling(either),
}


def built(*layers):
    model = keras.Sequential([keras.layers.Embedding(9, 4), *layers])
    model(IDS)
    return model, list(map(tensor_variable, model.trainable_variables))


@pytest.mark.first_cases(6)
@pytest.mark.parametrize("where", ("branch", "graph", "eager"))
@pytest.mark.parametrize("name", LAYERS)
def test_two_gradients_are_those_of_a_tape(name, where):
    model, variables = built(LAYERS[name](), keras.layers.Dense(2))

    def both(ids):
        with tf.GradientTape(persistent=True) as known, PersistentTape(variables) as tape:
            y = model(ids)
        upstream = [tf.cos(y), 2.0 + tf.sin(y)]

        def gradients():
            asked = [tape.gradient([y], [one]) for one in upstream]
            expected = [known.gradient(y, variables, output_gradients=one) for one in upstream]
            return [tf.convert_to_tensor(one) for one in tf.nest.flatten([asked, expected])]

        if where != "branch":
            return gradients()
        return tf.cond(tf.reduce_sum(ids) > 0, gradients, lambda: [tf.zeros_like(one) for one in variables * 4])

    results = (both if where == "eager" else tf.function(both, autograph=False))(IDS)
    half = len(results) // 2
    assert half == 2 * len(variables) and all(np.abs(one).max() > 0 for one in results)
    for asked, expected in zip(results[:half], results[half:], strict=True):
        np.testing.assert_allclose(asked, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("in_graph", (False, True))
def test_tensors_are_sources_and_what_no_output_depends_on_has_no_gradient(in_graph):
    unused = tf.Variable(1.0)

    def gradients(x):
        with PersistentTape([x, unused]) as tape:
            y, z = x * x, 3.0 * x
        return tape.gradient([y, z], [tf.ones_like(y), 2.0 * tf.ones_like(y)])

    at_x, at_unused = (tf.function(gradients) if in_graph else gradients)(tf.constant(2.0))
    assert at_unused is None and float(at_x) == 10.0


def test_through_a_recurrent_layer_as_many_operations_as_with_a_tape_that_is_not_persistent():
    model, variables = built(keras.layers.GRU(3))

    def with_tape(ids):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            y = model(ids)
        return tape.gradient(y, variables)

    def persistent(ids):
        with PersistentTape(variables) as tape:
            y = model(ids)
        return tape.gradient([y], [tf.ones_like(y)])

    functions = [tf.function(one, autograph=False).get_concrete_function(IDS) for one in (with_tape, persistent)]
    least, most = (len(operations(one)) for one in functions)
    assert 300 < least and most <= least + 3
