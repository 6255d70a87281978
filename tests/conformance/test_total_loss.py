"""Promise 1: without a balancer, an update is the gradient of one weighted total loss."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, losses
from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("optimizer", "eagerly"), [("sgd", True), ("adam", False), ("rmsprop", True)])
def test_one_head_and_nothing_else_is_keras_fit(optimizer, eagerly):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 4)).astype("float32"), rng.integers(0, 3, 50)

    def layers():
        keras.utils.set_random_seed(2)
        return keras.layers.Dense(6, activation="relu", kernel_regularizer="l2"), keras.layers.Dense(3, activation="softmax")

    encoder, head = layers()
    plain = keras.Sequential([encoder, head])
    plain.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    wanted = plain.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0).history
    encoder_2, head_2 = layers()
    trainer = MultiHeadTrainer(encoder_2)
    trainer.add_head("price", head_2, "sparse_categorical_crossentropy", metrics=["accuracy"])
    trainer.compile(optimizer, run_eagerly=eagerly)
    history = trainer.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0).history
    for a, b in zip(tiny.values(plain.trainable_variables), tiny.weights_of(trainer), strict=True):
        np.testing.assert_allclose(b, a, atol=2e-7)
    np.testing.assert_allclose(history["price_accuracy"], wanted["accuracy"], atol=1e-6)


def test_heads_with_shared_variables_and_nested_representations():
    """A decoder that reuses the encoder's embedding: the direct path and the path through the representation add up."""
    keras.utils.set_random_seed(0)
    embed = keras.layers.Embedding(7, 4)

    class Encoder(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.embed = embed

        def call(self, tokens):
            vectors = self.embed(tokens)
            return [(vectors, tf.shape(tokens)[1]), {"deep": {"mean": tf.reduce_mean(vectors, axis=1)}}]

    class Tied(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.embed = embed

        def call(self, representation):
            (vectors, _), rest = representation
            return tf.matmul(
                vectors + rest["deep"]["mean"][:, None], tiny.tensor_variable(self.embed.embeddings), transpose_b=True
            )

    encoder, head = Encoder(), Tied()
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("copy", head, losses.SequenceCrossentropy())
    trainer.compile("sgd")
    tokens = np.random.default_rng(0).integers(1, 7, (5, 3))
    ((gradient, variable),) = trainer.compute_gradients((tokens, {"copy": tokens}))
    with tf.GradientTape() as tape:
        logits = head(encoder(tf.constant(tokens)))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tokens, logits=logits))
    wanted = tape.gradient(loss, tiny.tensor_variable(embed.embeddings))
    np.testing.assert_allclose(tf.convert_to_tensor(gradient), tf.convert_to_tensor(wanted), atol=1e-6)
