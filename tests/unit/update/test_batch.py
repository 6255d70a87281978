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
        ((1, 2), "`targets` must be a dict by head name if there are several heads. Received: a int"),
        ((1, {"a": 2}, None, 3), "A batch must be .inputs, targets.* Received: 4 parts"),
        ((1, tf.TensorSpec([None, 1])), "`targets` must be a dict by.* Received: one tensor of shape .None, 1."),
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


def test_specs_of_arrays_tensors_and_specs_agree_and_none_is_left_out():
    x = np.zeros((4, 2), "float32")
    for nest in ((x, None), (tf.constant(x), None), tf.data.Dataset.from_tensors((x, None)).element_spec):
        assert stage.open_batch_size(nest) == (tf.TensorSpec([None, 2], tf.float32), None)


@pytest.mark.parametrize("make", [tf.RaggedTensor.from_tensor, tf.sparse.from_dense, tf.identity])
def test_ragged_and_sparse_rows_and_specs(make):
    dense = tf.constant([[1.0, 2.0], [3.0, 0.0], [5.0, 6.0]])
    tensor = make(dense)
    assert int(stage.num_rows(tensor)) == 3
    part = stage.rows({"x": tensor, "none": None}, 1, tf.constant(3))
    as_dense = {tf.RaggedTensor: lambda t: t.to_tensor(), tf.SparseTensor: tf.sparse.to_dense}.get(type(tensor), tf.identity)
    np.testing.assert_array_equal(as_dense(part["x"]), dense[1:3])
    spec = stage.open_batch_size(tensor)
    assert spec.is_compatible_with(tensor) and spec.is_compatible_with(part["x"]) and spec.shape[0] is None
    assert stage.decode_specs(stage.encode_specs(spec)) == spec


def test_the_batch_size_is_that_of_the_first_tensor():
    assert int(stage.batch_size({"a": tf.zeros([3, 2]), "b": None})) == 3


def test_sizes_in_which_other_batches_differ_are_open():
    def specs(length, units, **heads):
        targets = {name: tf.TensorSpec([None, size]) for name, size in heads.items()}
        return stage.Batch({"x": tf.TensorSpec([None, length, units])}, targets, {})

    found = stage.widened(specs(5, 3, a=5, b=1), specs(9, 3, a=9, c=2))
    assert found.inputs["x"].shape.as_list() == [None, None, 3]
    assert {name: spec.shape.as_list() for name, spec in found.targets.items()} == {"a": [None, None], "b": [None, 1]}
    built = specs(None, 3, a=None)
    assert stage.widened(built, specs(4, 3, a=4)) == built
