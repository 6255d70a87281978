"""Variables that a loss reads: those of the model are trained as by a tape, others are rejected, if they are trainable."""

from __future__ import annotations

import functools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead._ground.keras import tensor_variable
from tests.helpers import tiny

pytestmark = pytest.mark.first_cases(3)  # the others are thorough

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 6)).astype("float32")
Y = {name: RNG.normal(size=(12, 1)).astype("float32") for name in "ab"}


def modules():
    keras.utils.set_random_seed(0)
    encoder, *heads = keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1), keras.layers.Dense(1)
    encoder.build((None, 6))
    [head.build((None, 5)) for head in heads]
    return encoder, *heads


def trainer_of(encoder, heads, loss, *, run_eagerly=True, **options):
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("a", heads[0], loss, couples_rows=False)
    trainer.add_head("b", heads[1], "mse")
    trainer.compile(keras.optimizers.SGD(0.1), run_eagerly=run_eagerly, **options)
    return trainer


def squares(targets, outputs):
    return tf.reduce_sum((targets - outputs) ** 2, axis=-1)


def by_closure(value):
    return lambda targets, outputs: squares(targets, outputs) * tf.exp(-value) + value


class Gaussian(keras.losses.Loss):
    """A loss with a variable of its own."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def call(self, targets, outputs):
        return by_closure(self.value)(targets, outputs)


def in_a_function(value):
    inner = tf.function(by_closure(value))
    return lambda targets, outputs: inner(targets, outputs)


def in_a_condition(value):
    def loss(targets, outputs):
        wrong = squares(targets, outputs)
        return tf.cond(tf.reduce_sum(wrong) > 0, lambda: wrong + value, lambda: wrong)

    return loss


def in_a_layer(value):
    layer = keras.layers.Dense(1, name="log_variance")
    layer.build((None, 1))
    return lambda targets, outputs: squares(layer(targets), outputs)


def of_python(value):
    """A loss whose Python depends on values."""

    def loss(targets, outputs):
        return squares(targets, outputs) + value * (1 if float(tf.reduce_sum(outputs)) > 0 else 2)

    return loss


READING = [by_closure, Gaussian, in_a_function, in_a_condition, in_a_layer]
KEPT = [*((reading, eagerly) for reading in READING for eagerly in (True, False)), (of_python, True)]


@pytest.mark.parametrize(("reading", "eagerly"), KEPT)
def test_one_that_nobody_trains_is_refused(reading, eagerly):
    encoder, *heads = modules()
    loss = reading(tf.Variable(0.0, name="log_variance"))
    trainer = trainer_of(encoder, heads, loss, run_eagerly=eagerly)
    with pytest.raises(ValueError, match="(?s)The loss of head 'a' must read no.*, which reads '.*weights of the module"):
        trainer.fit(X, Y, verbose=0)


@pytest.mark.skipif(keras.__version__ >= "3", reason="Keras 3 knows its own names only")
def test_one_that_keras_knows_by_a_name_of_the_user_is_refused():
    encoder, *heads = modules()
    loss = by_closure(tf.Variable(0.0, name="log_variance"))
    with keras.saving.custom_object_scope({"of_the_user": loss}):
        trainer = trainer_of(encoder, heads, "of_the_user")
        with pytest.raises(ValueError, match="(?s)The loss of head 'a' must read no.*, which reads 'log_variance"):
            trainer.fit(X, Y, verbose=0)


def frozen():
    layer = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2), keras.layers.Dense(3)])
    layer.trainable = False
    return lambda targets, outputs: squares(layer(targets), layer(outputs))


FROZEN = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3)])
FROZEN.trainable = False


def frozen_global():
    def loss(targets, outputs):
        return squares(*(feature(each) for each in (targets, outputs)))

    feature = lambda values: FROZEN(values)  # noqa: E731
    return loss


class OfFeatures(keras.losses.Loss):
    """Keeps a frozen layer in a dict of an object of its own."""

    def __init__(self):
        super().__init__()
        layer = keras.layers.Dense(2)
        layer.build((None, 1))
        layer.trainable = False
        self.parts = types.SimpleNamespace(by_name={"features": layer})

    def call(self, y_true, y_pred):
        return squares(*map(self.parts.by_name["features"], (tf.cast(y_true, tf.float32), y_pred)))


def frozen_attribute():
    return functools.partial(OfFeatures().call)


def untrained():
    value = tf.Variable(0.5, trainable=False)
    return lambda targets, outputs: value * squares(targets, outputs)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("eagerly", [True, False])
@pytest.mark.parametrize("make", [frozen, frozen_global, frozen_attribute, untrained])
def test_one_that_is_not_to_be_trained_may_be_read(make, eagerly):
    encoder, *heads = modules()
    loss = make()
    trainer = trainer_of(encoder, heads, loss, run_eagerly=eagerly)
    found = trainer.fit(X, Y, batch_size=12, verbose=0).history["a_loss"]
    encoder, head, _ = modules()
    np.testing.assert_allclose(found, [np.mean(loss(tf.constant(Y["a"]), head(encoder(X))))], rtol=1e-5)


READ = {
    "encoder": lambda encoder, head, other: [encoder.kernel],
    "own": lambda encoder, head, other: [head.kernel],
    "other": lambda encoder, head, other: [other.kernel],
    "all": lambda encoder, head, other: [encoder.kernel, encoder.bias, head.kernel, other.kernel],
}
OPTIONS = [
    {},
    {"run_eagerly": False},
    {"balancer": "Sum", "micro_batches": 3, "run_eagerly": False},
    {"balancer": "Sum", "balance_at": "parameters", "gradient_accumulation_steps": 2},
]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("read", "options"), list(zip(READ, OPTIONS)))
def test_those_of_the_model_are_trained_as_by_a_tape(read, options):
    def loss_of(kernels):
        squared = lambda each: tf.reduce_sum(tf.square(tf.convert_to_tensor(each)))  # noqa: E731
        return lambda targets, outputs: squares(targets, outputs) + 0.1 * tf.add_n([squared(each) for each in kernels])

    encoder, *heads = modules()
    loss = loss_of(READ[read](encoder, *heads))
    with tf.GradientTape() as tape:
        hidden = encoder(X)
        total = tf.reduce_mean(loss(tf.constant(Y["a"]), heads[0](hidden)))
        total += tf.reduce_mean(squares(tf.constant(Y["b"]), heads[1](hidden)))
    variables = [variable for module in (encoder, *heads) for variable in module.trainable_variables]
    gradients = tape.gradient(total, [tensor_variable(variable) for variable in variables])
    expected = [value - 0.1 * np.array(gradient) for value, gradient in zip(tiny.values(variables), gradients)]
    trainer = trainer_of(encoder, heads, loss, **options)
    trainer.fit(X, Y, batch_size=12 // options.get("gradient_accumulation_steps", 1), shuffle=False, verbose=0)
    for one, other in zip(tiny.values(variables), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_frozen_head_stays_frozen_if_the_loss_of_another_reads_its_kernel():
    encoder, *heads = modules()
    trainer = MultiHeadTrainer(encoder)
    kernel = heads[1].kernel
    trainer.add_head("a", heads[0], lambda targets, outputs: squares(targets, outputs) + tf.reduce_sum(kernel**2))
    trainer.add_head("b", heads[1], "mse", learning_rate_multiplier=0.0)
    trainer.compile(keras.optimizers.SGD(0.1))
    before = tiny.values(heads[1].variables)
    trainer.fit(X, Y, verbose=0)
    for one, other in zip(tiny.values(heads[1].variables), before, strict=True):
        np.testing.assert_array_equal(one, other)
