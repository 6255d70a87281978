"""Updates of large variables by one operation: those of Keras, and of NumPy in double precision."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead._ground.kernels import LARGE
from multihead._ground.optimizers import apply_reduced_gradients, build_optimizer
from tests.helpers.operations import operations

ROWS, WIDTH = 512, LARGE // 512
RNG = np.random.default_rng(0)
VALUE = RNG.normal(size=[ROWS, WIDTH])
STEPS = [RNG.normal(size=[ROWS, WIDTH]) * 10.0 ** RNG.integers(-6, 3, [ROWS, 1]) for _ in range(5)]
INDICES = np.array([3, 511, 40])

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=np.bool_(True)),
    "scheduled": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adam, other constants": lambda: keras.optimizers.Adam(0.01, beta_1=0.5, beta_2=0.9, epsilon=1e-3),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "averaged": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5),
}


def variable_of(dtype="float32", shape=(ROWS, WIDTH)):
    variable = keras.layers.Layer(dtype=dtype).add_weight(name="w", shape=shape, initializer="zeros")
    variable.assign(VALUE[: shape[0], : shape[1]])
    return variable


def by_keras(optimizer, gradients, targets):
    optimizer.apply_gradients(list(zip(gradients, targets)))


def dense(value):
    return tf.ensure_shape(value, [ROWS, WIDTH])


def of_rows(value):
    return tf.IndexedSlices(tf.gather(dense(value), INDICES), tf.constant(INDICES), tf.constant([ROWS, WIDTH]))


def trained(optimizer, apply, dtype="float32", gradient_of=dense):
    variable = variable_of(dtype)
    build_optimizer(optimizer, [variable])
    step = tf.function(lambda value: apply(optimizer, [gradient_of(value)], [variable]), autograph=False)
    for each in STEPS:
        step(tf.constant(each, dtype))
    return [tf.convert_to_tensor(each).numpy() for each in (variable, *optimizer.variables)]


def kernels(optimizer, shape=(ROWS, WIDTH), jit_compile=False, gradient_of=tf.ones_like, dtype="float32"):
    """The operations for whole updates in a graph."""
    variable = variable_of(dtype, shape)
    build_optimizer(optimizer, [variable])

    @tf.function(jit_compile=jit_compile, autograph=False)
    def step():
        value = tf.convert_to_tensor(variable)
        apply_reduced_gradients(optimizer, [gradient_of(value)], [variable])

    return [each.type for each in operations(step.get_concrete_function()) if each.type.startswith("ResourceApply")]


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("gradient_of", [dense, of_rows])
@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "scheduled"])
def test_sgd_is_that_of_keras_bit_for_bit(name, gradient_of, dtype):
    both = [trained(OPTIMIZERS[name](), apply, dtype, gradient_of) for apply in (apply_reduced_gradients, by_keras)]
    for one, other in zip(*both, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("gradient_of", [dense, of_rows])
@pytest.mark.parametrize("name", ["adam", "adam, other constants", "adamw", "averaged"])
def test_adam_is_that_of_keras_up_to_rounding(name, gradient_of):
    both = [trained(OPTIMIZERS[name](), apply, gradient_of=gradient_of) for apply in (apply_reduced_gradients, by_keras)]
    for one, other in zip(*both, strict=True):  # the gradients of a row are of one scale
        scale = np.abs(other).max(axis=-1, keepdims=True) if np.ndim(other) else 0.0
        assert (np.abs(one - other) <= 2e-5 * np.abs(other) + 2e-7 * scale).all()


@pytest.mark.parametrize("name", ["adam", "adam, other constants"])
def test_adam_in_double_precision_is_that_of_keras_and_its_formula(name):
    optimizer = OPTIMIZERS[name]()
    value, first, second = VALUE, 0.0, 0.0
    rate, a, b, epsilon = 0.01, optimizer.beta_1, optimizer.beta_2, optimizer.epsilon
    single = np.float64(np.float32(a)), np.float64(np.float32(b))  # to which Keras rounds them for the powers
    for number, gradient in enumerate(STEPS, 1):
        first, second = a * first + (1 - a) * gradient, b * second + (1 - b) * gradient**2
        step = rate * np.sqrt(1 - single[1] ** number) / (1 - single[0] ** number)
        value = value - step * first / (np.sqrt(second) + epsilon)
    found = trained(optimizer, apply_reduced_gradients, "float64")[0]
    np.testing.assert_array_equal(found, trained(OPTIMIZERS[name](), by_keras, "float64")[0])
    np.testing.assert_allclose(found, value, rtol=0, atol=1e-8)  # the rate is a float32, steps are about 0.01


class Derived(keras.optimizers.Adam):
    """A class of a user's, with slots of its own under a name that Keras uses elsewhere."""

    def build(self, variables):
        super().build(variables)
        self.momentums = {"a": 1}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_variables_have_one_operation(dtype):
    adam, momentum = ["ResourceApplyAdam"], ["ResourceApplyKerasMomentum"]
    assert kernels(OPTIMIZERS["adam"](), dtype=dtype) == kernels(OPTIMIZERS["adamw"](), dtype=dtype) == adam
    assert kernels(OPTIMIZERS["momentum"](), dtype=dtype) == kernels(OPTIMIZERS["nesterov"](), dtype=dtype) == momentum
    # Keras 2 has a slot even without momentum.
    assert kernels(OPTIMIZERS["sgd"](), dtype=dtype) in (momentum, ["ResourceApplyGradientDescent"])
    assert kernels(OPTIMIZERS["adam"](), gradient_of=of_rows) == adam


def test_the_others_are_updated_by_keras():
    assert not kernels(OPTIMIZERS["adam"](), shape=(ROWS - 1, WIDTH))
    assert not kernels(OPTIMIZERS["adam"](), jit_compile=True)
    assert not kernels(keras.optimizers.Adam(amsgrad=True))
    assert not kernels(keras.optimizers.Adam(beta_2=0.99999))  # `1 - beta_2` has three digits in single precision
    assert kernels(keras.optimizers.Adam(beta_2=0.99999), dtype="float64")
    assert not kernels(Derived()) and not kernels(keras.optimizers.Nadam())
    assert not kernels(OPTIMIZERS["momentum"](), gradient_of=of_rows)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_a_model_of_large_layers_is_trained_as_by_keras(name):
    x, y = RNG.normal(size=[160, 300]).astype("float32"), RNG.normal(size=[160, 1]).astype("float32")

    def layers():
        keras.utils.set_random_seed(3)
        made = [keras.layers.Dense(width, "relu") for width in (300, 256)], keras.layers.Dense(1)
        model = keras.Sequential([keras.layers.Input([300]), *made[0], made[1]])
        return (*made, model)

    hidden, head, ours = layers()
    trainer = MultiHeadTrainer(keras.Sequential(hidden))
    trainer.add_head("size", head, "mse")
    trainer.compile(OPTIMIZERS[name]())
    *_, theirs = layers()
    theirs.compile(OPTIMIZERS[name](), "mse")
    for model, targets in ((trainer, {"size": y}), (theirs, y)):
        model.fit(x, targets, batch_size=16, epochs=2, shuffle=False, verbose=0)
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        difference = np.abs(one - other)  # after 20 steps of 0.01, in which the rounding of a few weights grows
        assert np.quantile(difference, 0.999) <= 3e-7 and difference.max() <= 1e-5


def test_a_large_head_that_is_idle_keeps_its_variables_and_slots():
    x, rng = RNG.normal(size=[8, 300]).astype("float32"), np.random.default_rng(1)
    targets = {"a": rng.normal(size=[8, 256]).astype("float32"), "b": rng.normal(size=[8, 1]).astype("float32")}
    trainer = MultiHeadTrainer(keras.layers.Dense(256))
    trainer.add_head("a", keras.layers.Dense(256), "mse")
    trainer.add_head("b", keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.Adam(0.1))
    trainer.fit(x, targets, batch_size=8, verbose=0)

    def large(*shape):
        """A kernel and its two slots."""
        found = [each for each in (*trainer.trainable_variables, *trainer.optimizer.variables) if tuple(each.shape) == shape]
        assert len(found) == 3
        return [tf.convert_to_tensor(each).numpy() for each in found]

    before = large(300, 256), large(256, 256)
    trainer.fit(x, {**targets, "a": np.full_like(targets["a"], np.nan)}, batch_size=8, verbose=0)
    after = large(300, 256), large(256, 256)
    assert not any(np.array_equal(one, other) for one, other in zip(before[0], after[0], strict=True))
    for one, other in zip(before[1], after[1], strict=True):
        np.testing.assert_array_equal(one, other)
