"""What is remembered of updates that are not finite, by name."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from multihead._update.faults import Memory

PARTS = {"in_a_row": 2, "stops": 1, "step": 30, "batch": -1, "heads": [False, True], "variables": [True, False, True]}


def packed():
    flags = {name: tf.constant(PARTS[name]) for name in ("heads", "variables")}
    return Memory.of(**{**PARTS, **flags})


def test_every_part_is_found_again_by_its_name():
    memory = packed()
    assert memory.vector.dtype == tf.int64 and memory.vector.shape == (9,)
    for name, value in PARTS.items():
        np.testing.assert_array_equal(np.array(getattr(memory, name)), np.array(value, "int64"))


def test_other_counts_keep_the_last_fault():
    memory = packed().counting(in_a_row=0, stops=0)
    assert int(memory.in_a_row) == int(memory.stops) == 0
    assert int(memory.step) == 30 and memory.heads.numpy().tolist() == [0, 1]
    assert memory.variables.numpy().tolist() == [1, 0, 1]
