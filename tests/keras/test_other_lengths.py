"""Arrays and batches whose sequences are longer or shorter than those of the first batch."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from tests.helpers import tiny

LENGTHS = (5, 9, 1, 5)


def batch(length, num_examples=3):
    rng = np.random.default_rng(length)
    x = rng.normal(size=(num_examples, length, 2)).astype("float32")
    return x, {"tag": rng.integers(0, 4, (num_examples, length)), "size": x.sum((1, 2))[:, None]}


class Fixed(keras.layers.Layer):
    """An encoder that must know the length before it runs."""

    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

    def call(self, x):
        return self.scale * tf.reshape(x, [-1, x.shape[1], 2])


def made(encoder, **options):
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("tag", keras.layers.Dense(4, activation="softmax"), "sparse_categorical_crossentropy")
    pooled = keras.Sequential([keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
    trainer.add_head("size", pooled, "mse")
    trainer.compile("sgd", **options)
    return trainer


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("encoder", "run_eagerly"), [("any", True), ("any", False), ("known", True)])
def test_every_length_is_trained_and_evaluated(encoder, run_eagerly):
    """Where an encoder must know the length, as when Keras runs eagerly: in its graphs it does not, from the second on."""
    encoder = keras.layers.SimpleRNN(3, return_sequences=True) if encoder == "any" else Fixed()
    trainer = made(encoder, run_eagerly=run_eagerly)
    for length in LENGTHS:
        x, targets = batch(length)
        pairs = trainer.compute_gradients((x, targets))
        with tf.GradientTape() as tape:
            tags, sizes = (trainer.heads[name].module(encoder(x)) for name in ("tag", "size"))
            of_tags = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(targets["tag"], tags))
            of_sizes = tf.reduce_mean(tf.square(sizes - targets["size"]))
            total = of_tags + of_sizes
        found = trainer.evaluate(x, targets, return_dict=True, verbose=0)
        np.testing.assert_allclose([found["tag_loss"], found["size_loss"]], [of_tags, of_sizes], rtol=1e-5)
        by_tape = tape.gradient(total, [tiny.tensor_variable(variable) for _, variable in pairs])
        for (gradient, _), other in zip(pairs, by_tape, strict=True):
            np.testing.assert_allclose(gradient, other, rtol=1e-4, atol=1e-6)
        assert trainer.apply_gradients(pairs)
        trainer.fit(x, targets, verbose=0)
    assert int(trainer.update_count) == 2 * len(LENGTHS)


@pytest.mark.thorough
def test_validation_data_have_a_length_of_their_own():
    trainer = made(keras.layers.SimpleRNN(3, return_sequences=True))
    (x, targets), (longer, of_longer) = batch(5), batch(9)
    found = trainer.fit(x, targets, validation_data=(longer, of_longer), verbose=0).history
    expected = trainer.evaluate(longer, of_longer, return_dict=True, verbose=0)
    np.testing.assert_allclose(found["val_tag_loss"], [expected["tag_loss"]], rtol=1e-5)


def test_another_length_that_the_encoder_cannot_take_is_its_own_error():
    encoder = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(6), keras.layers.Reshape((3, 2))])
    trainer = made(encoder)
    x, targets = batch(5)
    targets["tag"] = targets["tag"][:, :3]
    trainer.fit(x, targets, verbose=0)
    longer, targets_of_longer = batch(9)
    targets_of_longer["tag"] = targets_of_longer["tag"][:, :3]
    for call in (trainer.fit, trainer.evaluate, lambda *given, verbose: trainer.compute_gradients(given)):
        with pytest.raises(ValueError, match="`encoder` must take the inputs of the data. Received: "):
            call(longer, targets_of_longer, verbose=0)
    assert trainer.fit(x, targets, verbose=0) and int(trainer.update_count) == 2
