"""Which variables there are, and which heads train which of them."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import tensorflow as tf

from multihead import weighting
from multihead._update.network import ByOwner, Network
from multihead._update.spec import UpdateSpec
from multihead.heads._named import new_head


def dense(units, name):
    layer = keras.layers.Dense(units, use_bias=False, name=name)
    layer.build((None, 2))
    return layer


class Both(keras.layers.Layer):
    """Two layers in one; the order of its variables is theirs."""

    def __init__(self, *layers):
        super().__init__()
        self.inner = list(layers)
        self.built = True


def network():
    encoder, common, own = dense(2, "encoder"), dense(2, "common"), dense(1, "own")
    heads = [
        new_head("a", Both(common, own), "mse"),
        new_head("b", Both(common, encoder), "mse"),
        new_head("c", tf.identity, "mse"),
    ]
    learned = weighting.Uncertainty()
    learned.bind(["a", "b", "c"])
    learned.build((3,))
    return Network.of(encoder, heads, learned)


def test_each_variable_stands_once_and_knows_its_heads():
    found = network()
    assert [len(part) for part in found.variables] == [1, 2, 3]
    assert found.own == ((0, 1), (0,), ())
    assert found.shared == ((), (0,), ())
    assert found.owners == [[0, 1, 2], [0, 1], [0], [0], [1], [2]]
    assert [len(found.own_tensors(k)) for k in range(3)] == [2, 1, 0]
    assert found.shared_tensors(1) == found.encoder_tensors


def test_gradients_are_split_as_the_variables_are():
    variables = network().variables
    gradients = variables.like(list(range(6)))
    assert gradients == ByOwner([0], [1, 2], [3, 4, 5])
    assert gradients.all == [0, 1, 2, 3, 4, 5] and gradients.of_losses == [0, 1, 2]


def test_groups_are_what_idle_heads_must_leave_with_its_slots():
    groups = UpdateSpec.groups.fget(SimpleNamespace(network=network(), slots=[[f"slot {i}"] for i in range(6)]))
    assert [owners for owners, _ in groups] == [[0, 1], [0], [1], [2]]
    assert [members[1::2] for _, members in groups] == [["slot 1"], ["slot 2", "slot 3"], ["slot 4"], ["slot 5"]]


def test_state_is_what_a_training_pass_may_change_each_variable_once():
    normal = keras.layers.BatchNormalization()
    normal.build((None, 2))
    found = Network.of(normal, [new_head("a", normal, "mse"), new_head("b", dense(1, "b"), "mse")])
    assert len(found.state) == 2 and found.stateful == (True, False)
