"""Back to the values of before."""

from __future__ import annotations

import pytest
import tensorflow as tf

from multihead._update.update import RollBack


@pytest.mark.parametrize("in_graph", [False, True])
def test_values_are_those_of_the_moment_when_it_was_made(in_graph):
    variable, other = tf.Variable([1.0, 2.0]), tf.Variable(3)

    def run():
        roll_back = RollBack([variable, other])
        variable.assign([7.0, 8.0])
        other.assign_add(1)
        roll_back.restore()

    (tf.function(run) if in_graph else run)()
    assert variable.numpy().tolist() == [1.0, 2.0] and int(other) == 3


def test_on_all_replicas(two_replicas):
    with two_replicas.scope():
        variable = tf.Variable([1.0, 2.0])

    def in_replica():
        roll_back = RollBack([variable])
        variable.assign([7.0, 8.0])
        context = tf.distribute.get_replica_context()
        context.merge_call(roll_back.restore_all, args=(roll_back.values,))

    tf.function(lambda: two_replicas.run(in_replica))()
    for copy in variable.values:
        assert copy.numpy().tolist() == [1.0, 2.0]
