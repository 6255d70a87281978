"""Batches taken apart by head name, and their specs."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead._update import batch as stage

HEADS = ["a", "b"]


def test_targets_and_weights_are_by_head_name_and_none_is_left_out():
    found = stage.unpack((1, {"a": 2, "b": None}, {"b": 3}), HEADS)
    assert found == stage.Batch(1, {"a": 2}, {"b": 3})
    assert stage.unpack((1, 2, 3), ["a"]) == stage.Batch(1, {"a": 2}, {"a": 3})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (1, "A batch must be .inputs, targets.* Received: a batch without targets"),
        ((1, 2), "`targets` must be a dict by head name if there are several heads. Received: int"),
        ((1, {"c": 2}), "`targets` must name only heads: 'c' is not a head"),
        ((1, {"a": 2}, {"c": 2}), "`sample_weights` must name only heads: 'c' is not a head"),
    ],
)
def test_what_is_no_batch_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        stage.unpack(data, HEADS)


def test_specs_survive_json_and_leave_the_batch_size_open():
    given = (tf.TensorSpec([4, 3], tf.int64), {"a": [tf.TensorSpec([4], tf.float32)]})
    opened = stage.open_batch_size(given)
    assert opened[0].shape.as_list() == [None, 3]
    assert stage.decode_specs(stage.encode_specs(opened)) == opened
    assert stage.decode_specs(stage.encode_specs(None)) is None


def test_specs_of_arrays_and_data_sets_agree():
    x, y = np.zeros((4, 2), "float32"), {"a": np.zeros(4, "int32")}
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
    for found in (stage.specs_of(x, y, None), stage.open_batch_size(stage.specs_of(data, None, None))):
        assert found[0] == tf.TensorSpec([None, 2], tf.float32)
        assert found[1]["a"] == tf.TensorSpec([None], tf.int32)
    assert stage.specs_of(iter([]), None, None) is None


def test_the_batch_size_is_that_of_the_first_tensor():
    assert int(stage.batch_size({"a": tf.zeros([3, 2]), "b": None})) == 3
