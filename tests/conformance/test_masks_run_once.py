"""A layer that keeps a state advances once per batch, also where masks are needed before the heads run."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from tests.helpers import tiny
from tests.helpers.cases import quick

TOKENS = np.array([[1, 2, 3, 0], [4, 5, 0, 0]])
Y = np.ones((2, 4, 1), "float32")


@keras.saving.register_keras_serializable(package="once")
class Counting(keras.layers.Layer):
    """Counts its calls, in training and in inference."""

    def __init__(self, inside_a_condition=False):
        super().__init__()
        self.supports_masking, self.inside = True, inside_a_condition
        self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)
        self.untouched = self.add_weight(name="untouched", shape=(3,), initializer="zeros", trainable=False)

    def call(self, inputs):
        def count():
            tiny.tensor_variable(self.calls).assign_add(1.0)
            return True

        if self.inside:
            tf.cond(tf.reduce_sum(inputs) < 1e9, count, lambda: False)
        else:
            count()
        return inputs + tf.reduce_sum(tf.convert_to_tensor(self.untouched))


class Chain(keras.layers.Layer):
    """Layers one after another, which pass a mask on."""

    def __init__(self, *layers):
        super().__init__()
        self.supports_masking, self.inner = True, list(layers)

    def build(self, shape=None):
        self.built = True

    def call(self, inputs):
        for layer in self.inner:
            inputs = layer(inputs)
        return inputs


def recurrent():
    """A layer that carries its state from batch to batch."""
    layer = keras.layers.SimpleRNN(3, stateful=True, return_sequences=True)
    layer.build((2, 4, 3))
    return layer


STATEFUL = {"a counter": Counting, "a counter in a condition": lambda: Counting(True), "a recurrent layer": recurrent}


class Network:
    """A layer with a state in the encoder, and one in a head, between layers that pass a mask on; all states are zero."""

    def __init__(self, kind, like=None):
        self.layers = STATEFUL[kind](), STATEFUL[kind]()
        self.encoder = Chain(keras.layers.Embedding(9, 3, mask_zero=True), self.layers[0])
        self.head = Chain(self.layers[1], keras.layers.Dense(1))
        self()
        for state in self.states:
            state.assign(tf.zeros_like(state))
        if like is not None:
            self.encoder.set_weights(like.encoder.get_weights())
            self.head.set_weights(like.head.get_weights())

    def __call__(self):
        return self.head(self.encoder(TOKENS))

    @property
    def states(self):
        of_layer = [[layer.calls] if isinstance(layer, Counting) else layer.states for layer in self.layers]
        return [tiny.tensor_variable(state) for states in of_layer for state in states]

    @property
    def values(self):
        return tiny.values(self.states)


WAYS = [("a counter in a condition", False), ("a recurrent layer", True)]
WAYS += [(kind, eagerly) for kind in STATEFUL for eagerly in (True, False) if (kind, eagerly) not in WAYS]


@pytest.mark.parametrize(("kind", "eagerly"), quick(2, WAYS))
def test_a_state_advances_once_per_batch(kind, eagerly):
    network = Network(kind)
    alone, batch = Network(kind, like=network), (TOKENS, {"a": Y})
    trainer = MultiHeadTrainer(network.encoder)
    trainer.add_head("a", network.head, "mse")
    trainer.compile(keras.optimizers.SGD(0.0), run_eagerly=eagerly)
    for step in (trainer.train_on_batch, trainer.train_on_batch, trainer.test_on_batch):
        alone()
        step(*batch)
        np.testing.assert_allclose(network.values, alone.values, rtol=1e-5)
        assert np.any(network.values[0]) and np.any(network.values[1])
    assert trainer._built.spec.predictions[0].masked
