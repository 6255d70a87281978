"""Batches taken apart by head name, and their specs."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead._update import batch as stage

HEADS = ["a", "b"]


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
