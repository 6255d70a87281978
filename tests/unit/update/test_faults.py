"""What is remembered of updates that are not finite, by name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tensorflow as tf

from multihead._update.faults import Broken, Faults


def faults(limit=None):
    heads = [SimpleNamespace(name=name) for name in ("a", "b", "c")]
    variables = SimpleNamespace(all=[tf.Variable(0.0, name=name) for name in ("v", "w")])
    return Faults(SimpleNamespace(modules=[], heads=heads, variables=variables), "skip", limit, 2)


def test_the_message_of_a_graph_names_every_head():
    broken = SimpleNamespace(heads=tf.constant([False, True, False]), variables=tf.constant([False, True]))
    parts = faults()._in_numbers(tf.constant(7), tf.constant(2), tf.constant(1), broken)
    assert "".join(part if isinstance(part, str) else str(int(part)) for part in parts) == (
        "`on_nonfinite`: a loss or gradient is not finite, in the update after 7 updates; data: 1 (1: the inputs are not "
        "finite, 2: the labels or sample weights), head 'a': 0, head 'b': 1, head 'c': 0 (1: not finite); first of the "
        "trainer's variables: number 1; skipped in a row: 2"
    )


def skip(found, step, heads, variables, data=((), ()), at=None):
    """An update that was skipped, which trains the heads; without any it is none of the faults."""
    broken = Broken(tf.constant(heads), tf.constant([False] * 3), tf.constant(variables))
    position = None if at is None else tf.constant(at, tf.int64)
    found.skipped(
        tf.distribute.get_strategy(), broken, tf.reduce_any(heads), tf.constant(step, tf.int64), None, data, position
    )


def test_the_last_fault_and_all_of_the_epoch_are_remembered():
    found = faults()
    skip(found, 3, [True, False, False], [False, True], at=6)
    skip(found, 4, [False, True, False], [False, False])
    skip(found, 4, [False] * 3, [False, False], at=10)  # no head had labels
    assert found.counted() == (3, 0, "from head 'a', 'b', in the gradients of 'w'")
    assert found.when() == "at update 5" and "head 'b'" in found.cause()[0]
    nan, fine = tf.constant([float("nan")]), tf.constant([1.0])
    skip(found, 5, [True] * 3, [True, True], ((nan,), (fine,)), at=10)
    assert found.when() == "at update 6, batches 10 to 11 of the epoch (counted from 0)"
    assert found.cause()[0] == "The inputs must be finite, and some are not."
    found.reset_epoch()
    assert found.counted() == (0, 0, None) and found.when().startswith("at update 6")


def test_training_stops_after_as_many_faults_in_a_row():
    found, heads, variables = faults(limit=2), [True, False, False], [False, False]
    skip(found, 0, heads, variables)
    skip(found, 1, heads, variables)  # an update was applied between them
    for _ in range(2):
        with pytest.raises(ValueError, match="2 such updates, the last one from head 'a', in the loss, at update 2"):
            skip(found, 1, heads, variables)
        skip(found, 1, heads, variables)  # another `fit`, which counts again
