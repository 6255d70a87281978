"""Layers that exchange values between replicas train in a head as in Keras, or are refused in words."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from multihead import Head, MultiHeadTrainer

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


def test_a_head_with_synchronized_batch_normalization_trains_as_in_keras(two_replicas):
    with two_replicas.scope():
        _, _, plain = parts()
        plain.compile("sgd", "mse")
    plain.fit(X, Y, **FIT)
    trainer, model = a_trainer(two_replicas)
    trainer.fit(X, Y, **FIT)
    for expected, found in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("case", ["missing labels", "sample weights", "micro-batches"])
def test_where_replicas_cannot_exchange_values_it_is_said_in_words(case, two_replicas):
    trainer, _ = a_trainer(two_replicas, micro_batches=2 if case == "micro-batches" else 1)
    y, weights = dict(Y), None
    if case == "missing labels":
        y["a"] = np.where(np.arange(16)[:, None] == 3, np.nan, y["a"])
    elif case == "sample weights":
        weights = {"a": np.ones(16, "float32")}
    with pytest.raises(
        ValueError, match=r"^`strategy` must not have several replicas if .*Received: 2 replicas, .*'batch_norm"
    ):
        trainer.fit(X, y, sample_weight=weights, **FIT)
