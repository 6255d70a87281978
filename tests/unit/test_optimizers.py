"""Gradients applied once: the same as Keras's own application, for every optimizer."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.optimizers import apply_reduced_gradients, build_optimizer, get_optimizer, optimizer_classes

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


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("name", optimizer_classes())
def test_it_is_keras_own_application_bit_for_bit(name):
    for in_graph in (True, False):
        found, wanted = (trained(get_optimizer(name), apply, in_graph) for apply in (by_us, by_keras))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", optimizer_classes())
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


def tensor(variable):
    return tf.convert_to_tensor(tensor_variable(variable))
