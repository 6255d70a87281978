"""Several micro-batches that are balanced at the representation: a second forward pass where it is exact, and only there."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead._ground.keras import KERAS_3
from multihead._ground.layers import seed_variables, use_seed_variables
from multihead._trainer import second_pass
from tests.helpers import tiny

X = np.random.default_rng(0).normal(size=(11, 4)).astype("float32")


class Noisy(keras.layers.Layer):
    """Adds random numbers of an operation."""

    def call(self, x):
        return x + 0.01 * tf.random.normal(tf.shape(x))


class Lucky(keras.layers.Layer):
    """Is traced with another number each time."""

    def call(self, x):
        return x * np.random.uniform(1.0, 2.0)  # noqa: NPY002 - the global random numbers


class Counter(keras.layers.Layer):
    """Counts its calls."""

    def build(self, input_shape):
        self.count = self.add_weight(name="count", shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.count.assign_add(1.0)
        return x * 1.0


class Steps(keras.layers.Layer):
    """Gives several vectors per example."""

    def call(self, x):
        return tf.stack([x, 2 * x], axis=1)


def with_seed_variables(rate=0.5):
    layer = keras.layers.Dropout(rate)
    use_seed_variables(layer)
    return layer


def encoder(*layers, frozen=0):
    large = [keras.layers.Dense(32, trainable=False) for _ in range(frozen)]
    return keras.Sequential([*large, keras.layers.Dense(5, activation="tanh"), *layers])


def compiled(made, heads=2, **options):
    trainer = MultiHeadTrainer(made)
    for k in range(heads):
        module = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
        trainer.add_head(f"head_{k}", module, "mse")
    trainer.compile(keras.optimizers.SGD(0.1), **{"balancer": "UPGrad", "micro_batches": 3, "telemetry": None, **options})
    return trainer


def is_repeated(trainer, x=X):
    y = {name: np.ones((len(x), 1), "float32") for name in trainer.heads}
    trainer.compute_gradients((x, y))  # builds
    return trainer._built.spec.combiner.repeatable is not None


EXACT = {
    "plain": (lambda: encoder(keras.layers.LayerNormalization()), True),
    "dropout": (lambda: encoder(keras.layers.Dropout(0.5)), KERAS_3),  # Keras 2 draws in the operation
    "dropout from variables": (lambda: encoder(with_seed_variables()), True),
    "batch normalization": (lambda: encoder(keras.layers.BatchNormalization()), False),
    "frozen batch normalization": (lambda: encoder(keras.layers.BatchNormalization(trainable=False)), True),
    "counter": (lambda: encoder(Counter()), False),
    "random operation": (lambda: encoder(Noisy()), False),
    "random number of Python": (lambda: encoder(Lucky()), False),
    "sequence": (lambda: encoder(Steps()), False),
    "mostly frozen": (lambda: encoder(frozen=2), False),
}


@pytest.mark.first_cases(6)
@pytest.mark.parametrize("kind", EXACT)
def test_the_encoder_runs_twice_only_where_that_is_exact_and_pays(kind):
    make, expected = EXACT[kind]
    assert is_repeated(compiled(make())) == expected


def test_it_does_not_run_twice_where_there_is_no_need():
    for heads, options in ((1, {}), (2, {"micro_batches": 1}), (2, {"balancer": None}), (2, {"run_eagerly": True})):
        assert not is_repeated(compiled(encoder(), heads, **options))
    assert is_repeated(compiled(encoder(), balancer=None, weighting="LogLoss"))


def test_an_encoder_of_tokens_runs_twice_also_if_heads_read_sequences():
    trainer = tiny.shared("sgd", balancer="UPGrad", micro_batches=2)
    assert trainer._built.spec.combiner.repeatable is not None


class Tied(keras.layers.Layer):
    """Multiplies by the encoder's kernel."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.last = inner, keras.layers.Dense(1, activity_regularizer="l2")

    def call(self, hidden):
        return self.last(self.inner(hidden[:, :4]))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("options", [{}, {"balancer": None, "weighting": "LogLoss"}], ids=["balancer", "weighting"])
def test_the_update_is_that_of_a_backward_pass_per_head(monkeypatch, options):
    """With dropout, added losses, a variable that a head shares, and micro-batches without examples."""

    def trained(fewest):
        monkeypatch.setattr(second_pass, "FEWEST_HEADS", fewest)
        keras.utils.set_random_seed(0)
        inner = keras.layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l2")
        made = keras.Sequential([inner, with_seed_variables()])
        trainer = compiled(made, **options)
        trainer.add_head("tied", Tied(inner), "mse")
        trainer.compile(keras.optimizers.SGD(0.01), **{"balancer": "UPGrad", "micro_batches": 3, **options})
        y = {name: (X[:, :1] * k).astype("float32") for k, name in enumerate(trainer.heads, start=1)}
        assert is_repeated(trainer) == (fewest == 2)
        trainer.fit(X, y, batch_size=5, shuffle=False, verbose=0)
        return tiny.values([*trainer.trainable_variables, *seed_variables(made)])

    wanted = trained(fewest=9)
    for actual, expected in zip(trained(fewest=2), wanted, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
