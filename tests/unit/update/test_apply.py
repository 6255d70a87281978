"""Applied once, to active heads only, or skipped whole."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.optimizers import build_optimizer
from multihead._update.apply import apply_update
from multihead._update.faults import Broken, Faults
from multihead._update.network import ByOwner, Network
from multihead._update.spec import UpdateSpec
from multihead._update.update import Change, RollBack
from multihead.heads._named import new_head
from multihead.rates import periods_of

STEP = tf.constant(0, tf.int64)


def setting():
    layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(3)]
    for layer in layers:
        layer.build((None, 2))
    net = Network.of(layers[0], [new_head("a", layers[1], "mse"), new_head("b", layers[2], "mse")])
    optimizer = keras.optimizers.Adam(0.1)
    slots = [[tensor_variable(slot) for slot in each] for each in build_optimizer(optimizer, net.variables.all)]
    known = {"network": net, "slots": slots, "rates": periods_of(net, 1.0, 1.0)[0], "faults": Faults(net, "skip", None, 1)}
    spec = SimpleNamespace(**known, clip=None)
    spec.groups = UpdateSpec.groups.fget(spec)
    return spec, optimizer, tf.Variable([5.0])


def change(net, gradients, active, roll_back, clipped=None):
    return Change(
        gradients=gradients,
        clipped=clipped or gradients,
        step=STEP,
        active=active,
        broken=Broken.of_gradients(net, gradients),
        roll_back=roll_back,
    )


def values(net, optimizer):
    return [np.array(tf.convert_to_tensor(v)) for v in (*net.variables.all, *optimizer.variables)]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("in_graph", [False, True])
def test_idle_heads_and_their_slots_stay_bit_for_bit(in_graph):
    spec, optimizer, state = setting()
    gradients = ByOwner([tf.ones([2, 1])], [tf.ones([2, 1])] * 2, [])

    def run(active):
        return apply_update(spec, optimizer, change(spec.network, gradients, active, RollBack([state])))

    run = tf.function(run) if in_graph else run
    assert run(tf.constant([True, True]))
    idle = [v.numpy().copy() for v in spec.groups[1][1]]
    moving = [v.numpy().copy() for v in spec.groups[0][1]]
    assert run(tf.constant([True, False])) and int(optimizer.iterations) == 2
    for old, variable in zip(idle, spec.groups[1][1]):
        np.testing.assert_array_equal(old, variable.numpy())
    assert any((old != variable.numpy()).any() for old, variable in zip(moving, spec.groups[0][1]))


@pytest.mark.parametrize(
    ("value", "clipped", "active"),
    [(np.nan, 1.0, [True, True]), (np.inf, np.inf, [True, False]), (1.0, np.nan, [True, True]), (1.0, 1.0, [False, False])],
)
def test_what_cannot_be_applied_leaves_everything_and_puts_the_state_back(value, clipped, active):
    spec, optimizer, state = setting()
    before = values(spec.network, optimizer)
    roll_back = RollBack([state])
    state.assign([7.0])
    found, given = (ByOwner([tf.fill([2, 1], each)], [tf.ones([2, 1])] * 2, []) for each in (value, clipped))
    assert not apply_update(spec, optimizer, change(spec.network, found, tf.constant(active), roll_back, given))
    assert state.numpy() == [5.0] and int(optimizer.iterations) == 0
    for old, new in zip(before, values(spec.network, optimizer), strict=True):
        np.testing.assert_array_equal(old, new)


def test_without_any_gradient_nothing_is_applied():
    spec, optimizer, _ = setting()
    gradients = ByOwner([None], [None, None], [])
    assert not apply_update(spec, optimizer, change(spec.network, gradients, tf.constant([True, True]), RollBack()))
