"""`compile(run_eagerly=True)`: nothing is traced, so the Python of modules and losses may depend on values."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from tests.helpers import tiny

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype("float32")
Y = {"a": X[:, 0], "b": (X[:, 1] > 0).astype("int64")}


@keras.saving.register_keras_serializable("tests")
class ByValue(keras.layers.Layer):
    """Two layers, of which values decide how often the second is used."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first, self.second = keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(4, activation="tanh")

    def call(self, x):
        x = self.first(x * float(tf.convert_to_tensor(x).numpy().std()))
        for _ in range(1 + int(tf.reduce_max(tf.abs(x)) * 3)):
            x = self.second(x)
        return x


def trainer_on(encoder, run_eagerly=True, **options):
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    softmax = keras.layers.Dense(2, activation="softmax")
    trainer.add_head("b", softmax, "sparse_categorical_crossentropy", metrics=["accuracy"])
    trainer.compile(keras.optimizers.SGD(0.1), run_eagerly=run_eagerly, **options)
    return trainer


def test_an_encoder_whose_python_depends_on_values_trains_as_by_a_tape():
    trainer = trainer_on(ByValue())
    trainer.compute_gradients((X, Y))  # builds
    heads = {name: head.module for name, head in trainer.heads.items()}
    modules = [trainer.encoder, *heads.values()]
    variables = [tiny.tensor_variable(v) for module in modules for v in module.trainable_variables]
    for start in range(0, 12, 4):
        x, y = X[start : start + 4], {name: labels[start : start + 4] for name, labels in Y.items()}
        with tf.GradientTape() as tape:
            hidden = trainer.encoder(x)
            loss = tf.reduce_mean((heads["a"](hidden)[:, 0] - y["a"]) ** 2)
            loss -= tf.reduce_mean(tf.math.log(tf.gather(heads["b"](hidden), y["b"], axis=1, batch_dims=1)))
        gradients = tape.gradient(loss, variables)
        wanted = [variable.numpy() - 0.1 * gradient for variable, gradient in zip(variables, gradients, strict=True)]
        trainer.fit(x, y, verbose=0)
        for one, other in zip(variables, wanted, strict=True):
            np.testing.assert_allclose(one.numpy(), other, atol=1e-6)


FIXED = {
    "a stateful RNN": lambda inputs: keras.layers.LSTM(3, stateful=True)(keras.layers.Reshape((4, 1))(inputs)),
    "a reshape": lambda inputs: keras.layers.Lambda(lambda x: tf.reshape(x, (4, 4)), output_shape=(4,))(inputs),
    "a dense layer": keras.layers.Dense(3),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("first", ["fit", "evaluate"])
@pytest.mark.parametrize("name", FIXED)
def test_an_encoder_of_a_fixed_batch_size_takes_arrays(name, first):
    inputs = keras.Input((4,), batch_size=4)
    trainer = trainer_on(keras.Model(inputs, FIXED[name](inputs)))
    x = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
    y = {"a": x[:, 0], "b": (x[:, 1] > 0).astype("int64")}
    options = {"batch_size": 4, "verbose": 0}
    for call in (first, "fit", "evaluate"):
        getattr(trainer, call)(x, y, **options)
    assert trainer.predict(x, **options)["a"].shape == (12, 1)
    assert trainer.num_updates == (6 if first == "fit" else 3)


def test_it_is_saved_and_loaded(tmp_path):
    trainer = trainer_on(ByValue())
    trainer.fit(X, Y, verbose=0)
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.models.load_model(tmp_path / "trainer.keras")
    np.testing.assert_allclose(loaded.predict(X, verbose=0)["a"], trainer.predict(X, verbose=0)["a"], rtol=1e-5)
    assert loaded.run_eagerly and np.isfinite(loaded.fit(X, Y, verbose=0).history["loss"]).all()


def test_a_loss_whose_python_depends_on_values():
    def squared_or_absolute(y, p):
        return tf.square(y - p) if float(tf.reduce_max(y)) > 0 else tf.abs(y - p)

    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    trainer.add_head("a", keras.layers.Dense(2), squared_or_absolute)
    trainer.compile("sgd", run_eagerly=True)
    y = np.ones((12, 2), "float32")
    for sign, power in ((1, 2), (-1, 1)):
        logged = trainer.evaluate(X, sign * y, verbose=0)
        loss = np.mean(np.abs(trainer.predict(X, verbose=0)["a"] - sign * y) ** power)
        np.testing.assert_allclose(logged[0] if isinstance(logged, list) else logged, loss, rtol=1e-5)
