"""What is remembered of updates that are not finite, by name."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from multihead._update.faults import Faults, Memory

PARTS = {
    "in_a_row": 2,
    "stops": 1,
    "step": 30,
    "batch": -1,
    "data": 1,
    "heads": [False, True],
    "variables": [True, False, True],
}


def packed():
    flags = {name: tf.constant(PARTS[name]) for name in ("heads", "variables")}
    return Memory.of(**{**PARTS, **flags})


def test_every_part_is_found_again_by_its_name():
    memory = packed()
    assert memory.vector.dtype == tf.int64 and memory.vector.shape == (10,)
    for name, value in PARTS.items():
        np.testing.assert_array_equal(np.array(getattr(memory, name)), np.array(value, "int64"))


def test_other_counts_keep_the_last_fault():
    memory = packed().counting(in_a_row=0, stops=0)
    assert int(memory.in_a_row) == int(memory.stops) == 0
    assert int(memory.step) == 30 and memory.heads.numpy().tolist() == [0, 1]
    assert memory.variables.numpy().tolist() == [1, 0, 1]


def faults():
    heads = [SimpleNamespace(name=name) for name in ("a", "b", "c")]
    return Faults(SimpleNamespace(heads=heads, variables=SimpleNamespace(all=[])), "skip", None, 1)


def test_the_message_of_a_graph_names_every_head():
    broken = SimpleNamespace(heads=tf.constant([False, True, False]), variables=tf.constant([False, True]))
    parts = faults()._in_numbers(tf.constant(7), tf.constant(2), tf.constant(1), broken)
    assert "".join(part if isinstance(part, str) else str(int(part)) for part in parts) == (
        "`on_nonfinite`: a loss or gradient is not finite, in the update after 7 updates; data: 1 (1: the inputs are not "
        "finite, 2: the labels or sample weights), head 'a': 0, head 'b': 1, head 'c': 0 (1: not finite); first of the "
        "trainer's variables: number 1; skipped in a row: 2"
    )
