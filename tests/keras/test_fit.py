"""Keras's own `fit` and `predict`: teacher forcing, normalization and dropout."""

from __future__ import annotations

import keras
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
