"""Keras's own `fit` and `predict`: teacher forcing, normalization and dropout."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, losses
from tests.helpers import tiny


class Echo(keras.layers.Layer):
    """A decoder that reads its targets in training."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(tiny.VOCABULARY)

    def call(self, representation, targets, training=None):
        assert training is not None
        return self.dense(representation["outputs"]) + tf.one_hot(targets, tiny.VOCABULARY)

    def generate(self, representation):
        return tf.argmax(self.dense(representation["outputs"]), axis=-1)


def test_teacher_forcing_trains_on_targets_and_predicts_by_generating():
    inputs, targets = tiny.data(8, missing=False)
    encoder, heads = tiny.modules()
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("echo", Echo(), losses.SequenceCrossentropy(), teacher_forcing=True)
    trainer.add_head("price", heads["price"], "sparse_categorical_crossentropy", ignore_label=-1)
    trainer.compile("adam")
    tiny.fit_once(trainer, inputs, {"echo": targets["tag"], "price": targets["price"]})
    predictions = trainer.predict(inputs, verbose=0, batch_size=3)
    assert predictions["echo"].shape == (8, 6) and predictions["price"].shape == (8, 3)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("options", [{"micro_batches": 3, "gradient_accumulation_steps": 2}, {"micro_batches": 9}])
def test_batch_normalization_and_dropout_work_in_micro_batches(options):
    encoder = keras.Sequential(
        [keras.layers.Dense(4), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.5)]
    )
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("a", keras.Sequential([keras.layers.Dropout(0.2), keras.layers.Dense(1)]), "mse")
    trainer.add_head("b", keras.layers.Dense(1), "mse")
    trainer.compile("sgd", balancer="UPGrad", **options)
    x = np.random.default_rng(0).normal(size=(7, 3)).astype("float32")
    y = {"a": x[:, :1], "b": x[:, 1:2]}
    trainer.fit(x, y, batch_size=5, verbose=0, shuffle=False)
    for value in tiny.values(trainer.encoder.weights):
        assert np.isfinite(value).all()  # micro-batches without examples are left out
    moved = tiny.values(encoder.layers[1].non_trainable_variables)
    assert np.abs(moved[0]).max() > 0
