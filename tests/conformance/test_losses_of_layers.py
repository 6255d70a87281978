"""Losses that layers add count as in one `keras.Model` with the same layers, however parts share these layers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead._ground.keras import KERAS_3
from tests.helpers import tiny
from tests.helpers.cases import quick

pytestmark = pytest.mark.usefixtures("eager_updates")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 6)).astype("float32")
Y = {name: RNG.normal(size=(12, 1)).astype("float32") for name in "ab"}


def l2():
    return keras.regularizers.L2(0.1)


class Adding(keras.layers.Layer):
    """A layer that adds losses itself."""

    def __init__(self, of_inputs=True, of_weights=False):
        super().__init__()
        self.of_inputs, self.of_weights, self.dense = of_inputs, of_weights, keras.layers.Dense(6)

    def build(self, shape):
        self.dense.build(shape)
        if self.of_weights:
            self.add_loss(lambda: tf.reduce_sum(self.dense.kernel**2) / 10)
        self.built = True

    def call(self, inputs):
        outputs = self.dense(inputs)
        if self.of_inputs:
            self.add_loss(tf.reduce_mean(outputs**2))
            self.add_loss(tf.reduce_mean(tf.abs(inputs)))
        return outputs


class Embedded(keras.layers.Layer):
    """Inputs, and the embeddings of their signs."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(2, 1, embeddings_regularizer=l2())

    def build(self, shape):
        self.embedding.build(shape)
        self.built = True

    def call(self, inputs):
        return inputs + self.embedding(tf.cast(inputs > 0, "int64"))[..., 0]


class Scaled(keras.layers.Layer):
    """A layer whose own weight has a regularizer, beside one that is not trained."""

    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=(6,), initializer="ones", regularizer=l2())
        self.fixed = self.add_weight(name="fixed", shape=(6,), trainable=False, regularizer=l2())

    def call(self, inputs):
        return inputs * self.scale + self.fixed


def recurrent():
    cells = [keras.layers.SimpleRNNCell(6, recurrent_regularizer=l2()), keras.layers.GRUCell(6, kernel_regularizer=l2())]
    return keras.Sequential([keras.layers.Reshape((6, 1)), keras.layers.RNN(cells)])


def nested():
    inputs = keras.Input((6,))
    hidden = keras.Sequential([keras.layers.Dense(6, bias_regularizer="l1", bias_initializer="ones"), Adding()])(inputs)
    return keras.Model(inputs, keras.layers.Dense(6, kernel_regularizer=l2())(hidden))


def frozen():
    layer = keras.layers.Dense(6, kernel_regularizer=l2())
    layer.trainable = False
    return layer


OF_WEIGHTS = {
    "kernel": lambda: keras.layers.Dense(6, kernel_regularizer=l2()),
    "kernel and bias": lambda: keras.layers.Dense(
        6, kernel_regularizer=l2(), bias_regularizer=l2(), bias_initializer="ones"
    ),
    "embedding": Embedded,
    "own weight": Scaled,
    "recurrent cells": recurrent,
    "gamma": lambda: keras.layers.BatchNormalization(gamma_regularizer=l2()),
    "frozen": frozen,
}
MEANS = {"add_loss": Adding, "nested": nested}
if not KERAS_3:  # which takes no functions
    OF_WEIGHTS["add_loss of a function"] = lambda: Adding(of_inputs=False, of_weights=True)
    MEANS["add_loss of both"] = lambda: Adding(of_weights=True)
OF_CALLS = {
    "activity": lambda: keras.layers.Dense(6, activity_regularizer=l2()),
    "ActivityRegularization": lambda: keras.layers.ActivityRegularization(l2=0.1),
    "kernel and activity": lambda: keras.layers.Dense(6, kernel_regularizer=l2(), activity_regularizer=l2()),
}
KINDS = {**OF_WEIGHTS, **MEANS, **OF_CALLS}


def dense(units=6):
    return keras.layers.Dense(units, activation="tanh" if units > 1 else None)


def apart(make):
    return [keras.Sequential([dense(), make()]), *(keras.Sequential([make(), dense(1)]) for _ in Y)]


def layer_of_both_heads(make):
    layer = make()
    return [dense(), *(keras.Sequential([layer, dense(1)]) for _ in Y)]


def one_module(make):
    module = keras.Sequential([make(), dense(1)])
    return [dense(), module, module]


def layer_of_encoder_and_head(make):
    layer = make()
    return [keras.Sequential([dense(), layer]), keras.Sequential([layer, dense(1)]), dense(1)]


def encoder_in_head(make):
    encoder = keras.Sequential([dense(), make()])
    return [encoder, keras.Sequential([encoder, dense(1)]), dense(1)]


def everywhere(make):
    layer = make()
    return [keras.Sequential([dense(), layer]), *(keras.Sequential([layer, dense(1)]) for _ in Y)]


WAYS = [apart, layer_of_both_heads, one_module, layer_of_encoder_and_head, encoder_in_head, everywhere]


def whole(encoder, *heads):
    """One Keras model of an encoder and heads, all built."""
    inputs = keras.Input((6,))
    hidden = encoder(inputs)
    return keras.Model(inputs, {name: module(hidden) for name, module in zip("ab", heads)})


def loss_of(model, labels, training):
    outputs = model(X, training=training)
    errors = [tf.reduce_mean((outputs[name] - labels[name]) ** 2) for name in labels]
    return tf.add_n([*errors, *model.losses])


def as_in_keras(model, labels, rate=0.1):
    """The evaluated loss, the training loss and, after one step of gradient descent, the weights; the model is as before."""
    before = tiny.values(model.variables)
    evaluated = loss_of(model, labels, training=False)
    with tf.GradientTape() as tape:
        loss = loss_of(model, labels, training=True)
    variables = model.trainable_variables
    for variable, gradient in zip(variables, tape.gradient(loss, [v.value if KERAS_3 else v for v in variables])):
        if gradient is not None:
            variable.assign_sub(rate * tf.convert_to_tensor(gradient))
    after = tiny.values(model.variables)
    for variable, value in zip(model.variables, before):
        variable.assign(value)
    return float(evaluated), float(loss), after


def trainer_of(encoder, *heads, weights=(1.0, 1.0), **options):
    trainer = MultiHeadTrainer(encoder)
    for name, module, weight in zip("ab", heads, weights):
        trainer.add_head(name, module, "mse", weight=weight)
    trainer.compile(keras.optimizers.SGD(0.1), **options)
    return trainer


def check(trainer, model, labels=Y, *, expected=None, batch_size=12):
    """Compares losses and weights with those of Keras."""
    evaluated, loss, weights = expected or as_in_keras(model, labels)
    found = trainer.evaluate(X, labels, batch_size=batch_size, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["loss"], evaluated, rtol=1e-5)
    logs = trainer.fit(X, labels, batch_size=batch_size, shuffle=False, verbose=0).history
    np.testing.assert_allclose(logs["loss"], [loss], rtol=1e-5)
    for one, other in zip(tiny.values(model.variables), weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_that_of_one_keras_model(kind, way):
    modules = way(KINDS[kind])
    check(trainer_of(*modules), whole(*modules))


OPTIONS = {
    "in a graph": {"run_eagerly": False},
    "a balancer": {"balancer": "Sum"},
    "a balancer at the parameters": {"balancer": "Sum", "balance_at": "parameters"},
    "micro-batches": {"micro_batches": 3},
    "accumulated": {"accumulate_steps": 3},
    "two passes": {"balancer": "Sum", "micro_batches": 2, "run_eagerly": False},
    "by parts": {
        "balancer": "Sum",
        "balance_at": "parameters",
        "accumulate_steps": 2,
        "micro_batches": 2,
        "telemetry": "full",
    },
}
MEANS_OF_EXAMPLES = [kind for kind in {**OF_WEIGHTS, **MEANS} if kind != "gamma"]
CASES = [
    (option, WAYS[(i + j) % len(WAYS)], kind) for j, kind in enumerate(MEANS_OF_EXAMPLES) for i, option in enumerate(OPTIONS)
]


@pytest.mark.parametrize(("option", "way", "kind"), quick(14, CASES))
def test_however_an_update_is_computed(option, way, kind):
    modules, given = way(KINDS[kind]), OPTIONS[option]
    check(trainer_of(*modules, **given), whole(*modules), batch_size=12 // given.get("accumulate_steps", 1))


@pytest.mark.parametrize(("way", "kind"), quick(4, [(way, kind) for kind in ("kernel", "add_loss") for way in WAYS]))
@pytest.mark.parametrize("idle", ["weight", "labels"])
def test_those_of_idle_heads_do_not_count(way, kind, idle):
    modules = way(KINDS[kind])
    model, inputs = whole(*modules), keras.Input((6,))
    encoder, head, _ = modules
    of_a = as_in_keras(keras.Model(inputs, {"a": head(encoder(inputs))}), {"a": Y["a"]})
    labels = {**Y, "b": np.full([12, 1], np.nan)} if idle == "labels" else Y
    trainer = trainer_of(*modules, weights=(1.0, 0.0 if idle == "weight" else 1.0))
    of_b = tiny.values(model.layers[-1].variables)
    evaluated, loss, _ = of_a
    found = trainer.evaluate(X, labels, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["loss"], evaluated, rtol=1e-5)
    logs = trainer.fit(X, labels, batch_size=12, verbose=0).history
    np.testing.assert_allclose(logs["loss"], [loss], rtol=1e-5)
    found = keras.Model(inputs, {"a": head(encoder(inputs))})
    for one, other in zip(tiny.values(found.variables), of_a[2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    if way not in (one_module, layer_of_both_heads, everywhere):
        for one, other in zip(tiny.values(model.layers[-1].variables), of_b, strict=True):
            np.testing.assert_array_equal(one, other)
