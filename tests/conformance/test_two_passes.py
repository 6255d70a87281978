"""Several micro-batches that are balanced at the representation: a second pass where it is exact, and only there."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead._ground.layers import run_in_graphs, use_seed_variables
from multihead._trainer import building
from multihead._update.network import Network
from multihead._update.two_passes import Repeatable, TwoPasses
from tests.helpers import tiny
from tests.helpers.cases import quick

X = np.random.default_rng(0).normal(size=(11, 4)).astype("float32")


class Counter(keras.layers.Layer):
    """Counts its calls."""

    def build(self, input_shape):
        self.count = self.add_weight(name="count", shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.count.assign_add(1.0)
        return x * 1.0


class Noise(keras.layers.Layer):
    """Adds random numbers of a generator that it has as an attribute."""

    def __init__(self):
        super().__init__()
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, x):
        return x + self.generator.normal(tf.shape(x))


def hidden(x, count=tf.Variable(0.0)):  # noqa: B008 - one for all calls
    count.assign_add(1.0)
    return x + 0.0 * count


def looked_up(x):
    with tf.init_scope():
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.range(4), tf.range(4.0)), 0.0)
    return x + table.lookup(tf.range(tf.shape(x)[1]))


def in_a_loop(x):
    return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y + tf.random.normal(tf.shape(y))), (0, x))[1]


EXACT = {
    "dropout": (lambda: [keras.layers.Dropout(0.5)], True),
    "batch normalization": (lambda: [keras.layers.BatchNormalization()], True),
    "random operation": (lambda: [tiny.Calling(lambda x: x + tf.random.normal(tf.shape(x)))], False),
    "in a loop": (lambda: [tiny.Calling(in_a_loop)], False),
    "Python": (lambda: [tiny.Calling(lambda x: tf.ensure_shape(tf.py_function(lambda y: y, [x], x.dtype), x.shape))], False),
    "random number of Python": (lambda: [tiny.Calling(lambda x: x * np.random.uniform())], False),  # noqa: NPY002
    "hidden variable": (lambda: [tiny.Calling(hidden)], False),
    "generator": (lambda: [Noise()], False),
    "seed of the call": (lambda: [tiny.Calling(lambda x: x + tf.random.stateless_uniform(tf.shape(x), [1, 2]))], True),
    "plain": (lambda: [keras.layers.LayerNormalization()], True),
    "counter": (lambda: [Counter()], True),
    "spectral normalization": (lambda: [keras.layers.SpectralNormalization(keras.layers.Dense(5))], True),
    "GRU with dropout": (
        lambda: [keras.layers.Reshape((1, 5)), keras.layers.GRU(3, dropout=0.1, recurrent_dropout=0.1)],
        True,
    ),
    "GRU": (lambda: [keras.layers.Reshape((1, 5)), keras.layers.GRU(3), keras.layers.Dropout(0.1)], True),
    "lookup": (lambda: [tiny.Calling(looked_up)], True),
    "frozen": (lambda: [keras.layers.BatchNormalization(trainable=False)], True),
}
"""Layers of an encoder, and whether it can be repeated."""


def repeatable(*layers):
    made = keras.Sequential([keras.layers.Dense(5, activation="tanh"), *layers])
    made(X)
    run_in_graphs(made)
    return Repeatable.of(Network.of(made, [], {}), tf.TensorSpec([None, 4]))


@pytest.mark.parametrize("kind", EXACT)
def test_an_encoder_is_repeated_only_if_that_is_exact(kind):
    make, expected = EXACT[kind]
    assert (repeatable(*make()) is not None) == expected


def trained(make, *, repeats=True, **options):
    """The variables after `fit` and the logs; with a shared variable, added losses and micro-batches without examples."""
    keras.utils.set_random_seed(0)
    inner = keras.layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l2")
    trainer = MultiHeadTrainer(keras.Sequential([inner, *make()]))
    with pytest.MonkeyPatch.context() as patch:
        if not repeats:
            patch.setattr(building.Repeatable, "of", lambda network, _: (use_seed_variables(network.encoder), None)[1])
        for k in range(2):
            trainer.add_head(f"head_{k}", keras.layers.Dense(1, activity_regularizer="l2"), "mse")
        trainer.add_head("tied", keras.Sequential([keras.layers.Dense(4), inner, keras.layers.Dense(1)]), "mse")
        trainer.compile(keras.optimizers.SGD(0.02), **{"balancer": "UPGrad", "micro_batches": 3, **options})
        y = {name: (X[:, :1] * k).astype("float32") for k, name in enumerate(trainer.heads, start=1)}
        trainer.compute_gradients([(X, y)])
        assert isinstance(trainer.update_spec.methods.backward, TwoPasses) == repeats
    history = trainer.fit(X, y, batch_size=4, shuffle=False, verbose=0).history
    return tiny.values(trainer.variables), history


LAYERS = {
    "both": lambda: [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)],
    "spectral": lambda: [keras.layers.SpectralNormalization(keras.layers.Dense(5)), Counter()],
}
OPTIONS = {
    "graph, reused": {"balance_every": 2},
    "eager": {"run_eagerly": True},
    "eager, reused": {"balance_every": 2, "run_eagerly": True},
    "graph": {},
    "weighting": {"balancer": None, "weighting": "LogLoss"},
    "batches": {"micro_batches": 2, "gradient_accumulation_steps": 2, "telemetry": "full"},
}


@pytest.mark.parametrize(
    ("layers", "options"),
    quick(1, [*zip(["both"] * 6, OPTIONS), *zip(["spectral"] * 3, ["graph", "eager", "graph, reused"])]),
)
def test_the_update_is_that_of_a_backward_pass_per_head(layers, options):
    (actual, logs), (expected, wanted) = (
        trained(LAYERS[layers], repeats=repeats, **OPTIONS[options]) for repeats in (True, False)
    )
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=3e-6)
    assert logs.keys() == wanted.keys()
    for name, values in logs.items():
        np.testing.assert_allclose(values, wanted[name], rtol=1e-4, atol=1e-6, err_msg=name)
