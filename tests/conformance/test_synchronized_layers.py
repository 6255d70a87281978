"""Layers that exchange values between replicas train in a head as in Keras, or are rejected."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import ByPath, Head, MultiHeadTrainer

layers = keras.layers
X = np.random.default_rng(0).normal(size=(16, 6)).astype("float32")
Y = {"a": X[:, :1], "b": X[:, 1:2]}
FIT = {"epochs": 2, "batch_size": 8, "shuffle": False, "verbose": 0}


def parts():
    keras.utils.set_random_seed(0)
    encoder = layers.Dense(8, "tanh")
    heads = {"a": keras.Sequential([layers.BatchNormalization(synchronized=True), layers.Dense(1)]), "b": layers.Dense(1)}
    symbol = keras.Input((6,))
    hidden = encoder(symbol)
    return encoder, heads, keras.Model(symbol, {name: head(hidden) for name, head in heads.items()})


def a_trainer(strategy, **options):
    with strategy.scope():
        encoder, heads, model = parts()
        trainer = MultiHeadTrainer(encoder, {name: Head(head, "mse") for name, head in heads.items()})
        trainer.compile("sgd", **options)
    return trainer, model


@pytest.mark.parametrize("weights", [None, {"b": np.ones(16, "float32")}], ids=["plain", "weights of another head"])
def test_a_head_with_synchronized_batch_normalization_trains_as_in_keras(weights, two_replicas):
    with two_replicas.scope():
        _, _, plain = parts()
        plain.compile("sgd", "mse")
    plain.fit(X, Y, **FIT)
    trainer, model = a_trainer(two_replicas)
    trainer.fit(X, Y, sample_weight=weights, **FIT)
    for expected, found in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("case", ["missing labels", "sample weights", "micro-batches"])
def test_where_replicas_cannot_exchange_values_it_is_said_in_words(case, two_replicas):
    trainer, _ = a_trainer(two_replicas, micro_batches=2 if case == "micro-batches" else 1)
    y, weights = dict(Y), None
    if case == "missing labels":
        y["a"] = np.where(np.arange(16)[:, None] == 3, np.nan, y["a"])
    elif case == "sample weights":
        weights = {"a": np.arange(16, dtype="float32")}  # one of them is 0
    with pytest.raises(
        ValueError, match=r"^`strategy` must not have several replicas if .*Received: 2 replicas, .*'batch_norm"
    ):
        trainer.fit(X, y, sample_weight=weights, **FIT)


class Exchanging(layers.Layer):
    """Waits for the other replicas, in the forward pass."""

    def call(self, x):
        context = tf.distribute.get_replica_context()
        return x if context is None else x + 0.0 * context.all_reduce("SUM", tf.reduce_mean(x))


class InTraining(layers.BatchNormalization):
    """Adds 1000 while it trains."""

    def __init__(self, inner=None, **options):
        super().__init__(**options)
        self.inner = inner

    def call(self, x, training=False):
        x = x if self.inner is None else self.inner(x)
        return super().call(x, training=training) + (1000.0 if training else 0.0)


FROZEN = {
    "before": lambda: keras.Sequential([InTraining(name="still"), Exchanging(), layers.Dense(4)], name="net"),
    "after": lambda: keras.Sequential([Exchanging(), InTraining(name="still"), layers.Dense(4)], name="net"),
    "twice": lambda: keras.Sequential([InTraining(name="still"), Exchanging(), InTraining(name="still_too")], name="net"),
    "around": lambda: keras.Sequential([InTraining(Exchanging(), name="still"), layers.Dense(4)], name="net"),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("where", FROZEN)
def test_a_frozen_layer_stays_in_inference_mode_while_replicas_wait_for_each_other(where, two_replicas):
    with two_replicas.scope():
        trainer = MultiHeadTrainer(FROZEN[where](), {name: Head(layers.Dense(1), "mse") for name in Y})
        trainer.compile("sgd", encoder_learning_rate_multiplier=ByPath({"still": 0}))
    logs = trainer.fit(X, Y, **FIT).history
    assert max(logs["loss"]) < 1000
    assert not any("call" in vars(layer) for layer in trainer.encoder.layers)
