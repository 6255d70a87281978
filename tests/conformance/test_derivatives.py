"""Encoders, heads and losses that take derivatives themselves: an update is that of a tape by hand around all of them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from tests.helpers import tiny

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(8, 2)).astype("float32")


class WithSlope(keras.layers.Layer):
    """A function of the inputs, and its derivative along the first of them, or along their sum."""

    def __init__(self, way):
        super().__init__()
        self.way, self.inner, self.outer = way, keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)

    def call(self, x):
        if self.way == "tape":
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = self.outer(self.inner(x))
            slope = tape.gradient(y, x)[:, :1]
        elif self.way == "accumulator":
            with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
                y = self.outer(self.inner(x))
            slope = accumulator.jvp(y)
        else:
            y = self.outer(self.inner(x))
            slope = y**2
        return tf.concat([y, slope], axis=1)


def penalized(y, p):
    """A squared error and the square of its own derivative."""
    with tf.GradientTape() as tape:
        tape.watch(p)
        values = tf.reduce_sum((p - y) ** 4, axis=1)
    return values + tf.reduce_sum(tape.gradient(values, p) ** 2, axis=1)


def parts(where, way):
    keras.utils.set_random_seed(1)
    slope = WithSlope("neither" if where == "loss" else way)
    if where == "encoder":
        return slope, keras.layers.Dense(2), "mse"
    return keras.layers.Dense(3, activation="tanh"), slope, penalized if where == "loss" else "mse"


def by_hand(encoder, head, loss):
    """The weights after one update with a learning rate of 0.1."""
    with tf.GradientTape() as tape:
        predictions = head(encoder(tf.constant(X)))
        values = penalized(Y, predictions) if callable(loss) else tf.reduce_mean((predictions - Y) ** 2, axis=1)
        mean = tf.reduce_mean(values)
    variables = [tiny.tensor_variable(v) for v in (*encoder.trainable_variables, *head.trainable_variables)]
    return [v - 0.1 * g for v, g in zip(variables, tape.gradient(mean, variables))]


OPTIONS = [{}, {"run_eagerly": True}, {"micro_batches": 2, "balancer": "UPGrad"}]
CASES = [
    (where, way, options) for options in OPTIONS for where in ("head", "encoder", "loss") for way in ("tape", "accumulator")
]


@pytest.mark.first_cases(5)
@pytest.mark.parametrize(
    ("where", "way", "options"), [case for case in CASES if case[:2] != ("loss", "accumulator")], ids=str
)
def test_an_update_is_that_of_a_tape_around_them(where, way, options):
    encoder, head, loss = parts(where, way)
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("a", head, loss, couples_rows=False if callable(loss) else None)
    trainer.compile(keras.optimizers.SGD(0.1), **options)
    trainer.fit(X, {"a": Y}, batch_size=8, verbose=0)
    wanted = by_hand(*parts(where, way))
    for found, value in zip(tiny.weights_of(trainer), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("where", ["head", "encoder", "loss"])
def test_they_are_built_inside_of_a_graph(where):
    encoder, head, loss = parts(where, "tape")
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("a", head, loss, couples_rows=False if callable(loss) else None)
    trainer.compile("sgd")

    @tf.function
    def norm(x, y):
        with tf.GradientTape():  # which is not in the way
            return tf.linalg.global_norm([gradient for gradient, _ in trainer.compute_gradients((x, {"a": y}))])

    found = norm(tf.constant(X), tf.constant(Y))
    again = tf.linalg.global_norm([gradient for gradient, _ in trainer.compute_gradients((X, {"a": Y}))])
    np.testing.assert_allclose(found, again, rtol=1e-5)
