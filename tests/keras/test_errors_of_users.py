"""An error in a function, a metric or a layer of one's own is told, in a graph and eagerly, whoever calls it first."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import Head, MultiHeadTrainer
from tests.helpers.cases import by_turns

WORDS = "there is no such column"
X = np.random.default_rng(0).normal(size=(8, 5, 3)).astype("float32")
Y = np.full((8, 5, 1), 3.0, "float32")


def wrong(*args, **kwargs):
    raise RuntimeError(WORDS)


class Wrong(keras.layers.Layer):
    """A layer that fails, in one mode or in both."""

    def __init__(self, modes=(False, True)):
        super().__init__()
        self.modes, self.supports_masking = modes, True

    def call(self, x, training=None):
        return wrong() if bool(training) in self.modes else x + 0.0


class Masked(Wrong):
    """It has a mask, too."""

    def compute_mask(self, x, mask=None):
        return tf.ones(tf.shape(x)[:2], tf.bool)


class Average(keras.metrics.Metric):
    """A metric of which one method fails; with a variable from the beginning, or from its first update on."""

    def __init__(self, fails, is_late=False):
        super().__init__(name="average")
        self.fails, self.number = fails, None
        if not is_late:
            self.make()

    def make(self):
        self.number = self.add_weight(name="number", shape=(), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        if self.number is None:
            self.make()
        if self.fails == "update":
            wrong()
        self.number.assign_add(1.0)

    def result(self):
        return wrong() if self.fails == "result" else tf.convert_to_tensor(self.number)

    def reset_state(self):
        if self.number is not None:
            self.number.assign(0.0)


def of_values(y, p):
    """Cannot be traced, and fails for real rows only."""
    return wrong() if float(tf.reduce_max(y)) > 2.0 else (tf.abs(y - p), tf.ones_like(p))


def dense():
    return keras.layers.Dense(1)


class Chain(keras.Model):
    """Layers one after another; nothing is symbolic."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = list(parts)

    def call(self, x, training=None):
        for part in self.parts:
            x = part(x, training=training) if isinstance(part, Wrong) else part(x)
        return x


CASES = {
    "function of a metric": lambda: (None, Head(dense(), "mse", metrics=[keras.metrics.MeanMetricWrapper(wrong, "own")])),
    "weighted metric": lambda: (
        None,
        Head(dense(), "mse", weighted_metrics=[keras.metrics.MeanMetricWrapper(wrong, "own")]),
    ),
    "update of a metric": lambda: (None, Head(dense(), "mse", metrics=[Average("update")])),
    "update of a late metric": lambda: (None, Head(dense(), "mse", metrics=[Average("update", is_late=True)])),
    "result of a metric": lambda: (None, Head(dense(), "mse", metrics=[Average("result")])),
    "result of a late metric": lambda: (None, Head(dense(), "mse", metrics=[Average("result", is_late=True)])),
    "loss": lambda: (None, Head(dense(), wrong, couples_rows=False)),
    "loss that couples rows": lambda: (None, Head(dense(), wrong, couples_rows=True)),
    "module": lambda: (None, Head(Chain(Wrong(), dense()), "mse")),
    "module in training": lambda: (None, Head(Chain(dense(), Masked([True])), "mse")),
    "encoder": lambda: (Chain(Wrong()), Head(dense(), "mse")),
    "encoder in training": lambda: (Chain(dense(), Wrong([True])), Head(dense(), "mse")),
    "encoder of coupled rows": lambda: (
        Chain(dense(), Wrong([True])),
        Head(dense(), lambda y, p: tf.reduce_mean(tf.abs(y - p)), couples_rows=True),
    ),
}


def train(encoder, head, **options):
    heads = {"a": head, "b": Head(dense(), "mse")}
    trainer = MultiHeadTrainer(keras.layers.Dense(4) if encoder is None else encoder, heads)
    trainer.compile("sgd", balancer="UPGrad", micro_batches=1 if head.couples_rows else 2, **options)
    trainer.fit(X, {"a": Y, "b": Y}, batch_size=4, verbose=0)


@pytest.mark.parametrize(("name", "run_eagerly"), by_turns(CASES))
def test_it_is_told_at_the_first_batch(name, run_eagerly):
    with pytest.raises(Exception, match=WORDS):
        train(*CASES[name](), run_eagerly=run_eagerly)


def test_a_loss_that_fails_for_real_rows_alone():
    with pytest.raises(RuntimeError, match=WORDS):
        train(None, Head(dense(), of_values, couples_rows=False), run_eagerly=True)


def test_a_layer_of_a_model_that_cannot_be_traced():
    inputs = keras.Input((5, 3))
    hidden = keras.layers.Dense(4, name="hidden")(inputs)
    joint = Wrong([True])(hidden)
    model = keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(joint) for name in "ab"})
    model.compile("sgd", {"a": "mse", "b": "mse"})
    with pytest.raises(ValueError, match=f"`representation` must lie behind.*cannot be traced.*{WORDS}"):
        MultiHeadTrainer.from_model(model, representation="hidden")
