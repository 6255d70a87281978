"""A multiplier that is a function returning 0 leaves what layers write in their forward pass as it is, too."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, rates

pytestmark = pytest.mark.usefixtures("eager_updates")

X = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
Y = {"a": X[:, :1], "b": X[:, 1:2]}


@keras.saving.register_keras_serializable(package="tests")
class Counting(keras.layers.Layer):
    """A dense layer that counts its calls in training."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(3)

    def build(self, shape):
        self.dense.build(shape)
        self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)
        self.built = True

    def call(self, inputs, training=None):
        if training:
            self.calls.assign(self.calls + 1.0)
        return self.dense(inputs)


LAYERS = {
    "batch normalization": keras.layers.BatchNormalization,
    "spectral normalization": lambda: keras.layers.SpectralNormalization(keras.layers.Dense(3)),
    "a layer of the user's own": Counting,
}

FREEZES = {
    "a function": lambda step: tf.where(tf.equal(step % 2, 1), 0.0, 1.0),
    "a decay of a function": rates.LayerwiseDecay(0.5, top=lambda step: tf.where(tf.equal(step % 2, 1), 0.0, 1.0)),
}


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("frozen", FREEZES)
@pytest.mark.parametrize("part", ["encoder", "head"])
@pytest.mark.parametrize("name", LAYERS)
def test_what_a_forward_pass_writes_stays(name, part, frozen):
    layer = LAYERS[name]()
    encoder = keras.Sequential([keras.layers.Dense(4), *([layer] if part == "encoder" else [])])
    trainer = MultiHeadTrainer(encoder)
    of_head = {"learning_rate_multiplier": FREEZES[frozen]} if part == "head" else {}
    trainer.add_head("a", keras.Sequential([*([layer] if part == "head" else []), keras.layers.Dense(1)]), "mse", **of_head)
    trainer.add_head("b", keras.layers.Dense(1), "mse")
    of_encoder = {"encoder_learning_rate_multiplier": FREEZES[frozen]} if part == "encoder" else {}
    trainer.compile(keras.optimizers.AdamW(0.1, weight_decay=0.1), **of_encoder)
    values = []
    for _ in range(5):
        trainer.train_on_batch(X, Y)
        values.append(layer.get_weights())
    same = [all(np.array_equal(a, b) for a, b in zip(one, other)) for one, other in zip(values, values[1:])]
    assert same == [True, False, True, False]
