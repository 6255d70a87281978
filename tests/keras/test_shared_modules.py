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


@keras.saving.register_keras_serializable("tests")
class On(keras.layers.Layer):
    """A layer of its own after one that may belong to other modules, too."""

    def __init__(self, shared, **options):
        super().__init__(**options)
        self.shared, self.own = shared, keras.layers.Dense(1)

    def build(self, shape):
        if not self.shared.built:
            self.shared.build(shape)
        self.own.build((None, 4))
        super().build(shape)

    def call(self, inputs):
        return self.own(self.shared(inputs))

    def get_config(self):
        return {**super().get_config(), "shared": keras.saving.serialize_keras_object(self.shared)}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "shared": keras.saving.deserialize_keras_object(config["shared"])})


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


def test_shared_layers_are_loaded_as_one(tmp_path):
    shared = keras.layers.Dense(4)
    encoder = keras.Sequential([keras.layers.Dense(4), shared])
    trainer = trained(encoder, a=On(shared), b=On(shared))
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.models.load_model(tmp_path / "trainer.keras")
    modules = [loaded.heads[name].module for name in "ab"]
    assert loaded.encoder.layers[1] is modules[0].shared is modules[1].shared
    for each in (trainer, loaded):
        each.apply_gradients(each.compute_gradients((X, Y)))
    for one, other in zip(tiny.weights_of(loaded), tiny.weights_of(trainer), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
