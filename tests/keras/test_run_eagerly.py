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


def batches():
    for start in range(0, 12, 4):
        yield X[start : start + 4], {name: y[start : start + 4] for name, y in Y.items()}


def by_tape(encoder, heads):
    """Three updates of the sum of both losses."""
    for x, y in batches():
        with tf.GradientTape() as tape:
            representation = encoder(x)
            losses = [
                tf.reduce_mean((heads["a"](representation)[:, 0] - y["a"]) ** 2),
                -tf.reduce_mean(tf.math.log(tf.gather(heads["b"](representation), y["b"], axis=1, batch_dims=1))),
            ]
            loss = tf.add_n(losses)
        modules = [encoder, *heads.values()]
        variables = [tiny.tensor_variable(v) for module in modules for v in module.trainable_variables]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)
    return [variable.numpy() for variable in variables]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("data", ["arrays", "generator"])
def test_an_encoder_whose_python_depends_on_values_trains_as_by_hand(data):
    keras.utils.set_random_seed(1)
    trainer = trainer_on(ByValue())
    given = {
        "arrays": lambda: {"x": X, "y": Y, "batch_size": 4, "shuffle": False},
        "generator": lambda: {"x": batches(), "steps_per_epoch": 3},
    }
    keras.utils.set_random_seed(2)
    twin, heads = ByValue(), {"a": keras.layers.Dense(1), "b": keras.layers.Dense(2, activation="softmax")}
    for module in heads.values():
        module(twin(X))
    wanted = [*twin.get_weights(), *(weight for module in heads.values() for weight in module.get_weights())]
    trainer.compute_gradients((X, Y))  # builds
    for module, count in ((trainer.encoder, 4), (trainer.heads["a"].module, 2), (trainer.heads["b"].module, 2)):
        module.set_weights(wanted[:count])
        wanted = wanted[count:]
    trainer.fit(**given[data](), verbose=0)
    for one, other in zip(tiny.weights_of(trainer), by_tape(twin, heads), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


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
