"""Saving what Keras alone does not restore: variables of `tf.Module`, and layers in several modules."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from multihead import MultiHeadTrainer
from tests.helpers import tiny

X = np.random.default_rng(0).normal(size=(6, 5)).astype("float32")
Y = {"a": X[:, :1], "b": X[:, 1:2]}


class Linear(tf.Module):
    def __init__(self, inputs, units):
        super().__init__()
        self.kernel = tf.Variable(tf.ones([inputs, units]) * 0.1)

    def __call__(self, inputs):
        return tf.matmul(inputs, self.kernel)


def trained(encoder, **modules):
    trainer = MultiHeadTrainer(encoder)
    for name, module in modules.items():
        trainer.add_head(name, module, "mse")
    trainer.compile(keras.optimizers.SGD(0.1))
    trainer.apply_gradients(trainer.compute_gradients((X, Y)))
    return trainer


def test_weights_of_tf_modules_are_saved(tmp_path):
    make = lambda: trained(Linear(5, 4), a=Linear(4, 1), b=keras.layers.Dense(1))  # noqa: E731
    trainer, other = make(), make()
    trainer.apply_gradients(trainer.compute_gradients((X, Y)))
    trainer.save_weights(tmp_path / "all.weights.h5")
    other.load_weights(tmp_path / "all.weights.h5")
    for of in (lambda t: t.encoder, lambda t: t.heads["a"].module):
        np.testing.assert_array_equal(of(other).kernel.numpy(), of(trainer).kernel.numpy())
    assert tiny.values([other.update_count]) == [2]
