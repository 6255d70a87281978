"""Gradients applied once: the same as Keras's own application, for every optimizer."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.optimizers import apply_reduced_gradients, build_optimizer, get_optimizer, optimizer_names

SHAPES = ([3, 2], [2], [2, 2, 1], [])
RNG = np.random.default_rng(0)
VALUES = [RNG.normal(size=shape).astype("float32") for shape in SHAPES]
STEPS = [[RNG.normal(size=shape).astype("float32") for shape in SHAPES] for _ in range(3)]


def variables():
    layer = keras.layers.Layer()
    made = [layer.add_weight(name=f"w{i}", shape=each.shape, initializer="zeros") for i, each in enumerate(VALUES)]
    for variable, value in zip(made, VALUES):
        variable.assign(value)
    return made


def trained(optimizer, apply, in_graph):
    ours = variables()
    build_optimizer(optimizer, ours)

    def step(gradients):
        apply(optimizer, gradients, ours)

    step = tf.function(step, autograph=False) if in_graph else step
    for gradients in STEPS:
        step([tf.constant(each) for each in gradients])
    return [tf.convert_to_tensor(each).numpy() for each in (*ours, *optimizer.variables)]


def by_keras(optimizer, gradients, targets):
    optimizer.apply_gradients(list(zip(gradients, targets)))


def by_us(optimizer, gradients, targets):
    apply_reduced_gradients(tf.distribute.get_strategy(), optimizer, gradients, targets)


def scheduled():
    return keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=1, decay_rate=0.5)


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("name", optimizer_names())
def test_it_is_keras_own_application_bit_for_bit(name):
    for in_graph in (True, False):
        found, wanted = (trained(get_optimizer(name), apply, in_graph) for apply in (by_us, by_keras))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", optimizer_names())
def test_a_variable_has_the_slots_that_its_gradient_changes(name):
    ours, optimizer = variables(), get_optimizer(name)
    slots = build_optimizer(optimizer, ours)
    others = [each for each in optimizer.variables if len(each.shape) > 0]
    assert {id(slot) for of_variable in slots for slot in of_variable} >= set(map(id, others))
    for i, variable in enumerate(ours):
        before = [np.array(tensor(each)) for each in others]
        by_us(optimizer, [tf.constant(STEPS[0][i] + 1, "float32")], [variable])
        changed = [each for each, old in zip(others, before) if not np.array_equal(old, np.array(tensor(each)))]
        assert {id(each) for each in changed} <= set(map(id, slots[i]))
        assert bool(changed) == any(len(each.shape) > 0 for each in slots[i]) or name == "sgd"


def test_slots_that_belong_to_no_variable_are_an_error():
    class Own(keras.optimizers.SGD):
        def build(self, variables):
            super().build(variables)
            self.own = {i: self.add_variable(shape=each.shape, name="own") for i, each in enumerate(variables)}

    with pytest.raises(ValueError, match="`optimizer` must create its slots by .*Received: Own, with 3 others.*Create them"):
        build_optimizer(Own(), variables())


@pytest.mark.parametrize("in_graph", [True, False])
def test_a_schedule_gives_each_update_its_own_rate(in_graph):
    found, wanted = (trained(keras.optimizers.SGD(scheduled()), each, in_graph) for each in (by_us, by_keras))
    np.testing.assert_array_equal(found[0], wanted[0])
    total = sum(0.1 * 0.5**i * gradients[0] for i, gradients in enumerate(STEPS))
    np.testing.assert_allclose(found[0], VALUES[0] - total, rtol=1e-5)


def tensor(variable):
    return tf.convert_to_tensor(tensor_variable(variable))


class Decays(keras.optimizers.SGD):
    """An update of a user's own that changes the learning rate."""

    def update_step(self, gradient, variable, *rate):
        tensor_variable(variable).assign_sub(tensor(self.learning_rate) * gradient)
        tensor_variable(self.learning_rate).assign(tensor(self.learning_rate) * 0.9)


class InFunction(keras.optimizers.SGD):
    """One that is a function of its own, traced once."""

    @tf.function
    def update_step(self, gradient, variable, *rate):
        rate = tensor(self.learning_rate) * (1.0 + tf.cast(tensor(self.iterations), tf.float32))
        tensor_variable(variable).assign_sub(rate * gradient)


class ByName(keras.optimizers.SGD):
    """One that passes arguments by name."""

    def _distributed_tf_update_step(self, distribution, pairs, learning_rate):
        for gradient, variable in pairs:
            self.update_step(gradient=gradient, variable=variable, learning_rate=learning_rate)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("made", [Decays, InFunction, ByName])
@pytest.mark.parametrize("in_graph", [True, False])
def test_updates_of_a_user_are_left_alone(made, in_graph):
    # Keras 3 cannot pass a rate that is a variable to a `tf.function` in a graph.
    rates = (scheduled() if made is InFunction else 0.1 for _ in range(2))
    applications = zip((by_us, by_keras), rates)
    found, wanted = (trained(made(rate), apply, in_graph) for apply, rate in applications)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_an_update_that_was_set_on_the_optimizer_stays():
    optimizer, targets, calls = keras.optimizers.SGD(), variables(), []
    build_optimizer(optimizer, targets)
    object.__setattr__(optimizer, "update_step", lambda *given: calls.append(given))
    for _ in range(2):
        by_us(optimizer, [tf.ones_like(each) for each in targets], targets)
    assert len(calls) == 2 * len(targets)


def test_a_name_that_is_none_of_an_optimizer_is_an_error_of_keras():
    with pytest.raises(ValueError, match="nonsense"):
        get_optimizer("nonsense")
