"""Batches taken apart by head name, and their specs."""

from __future__ import annotations

import pytest
import tensorflow as tf

from multihead._data import batch as stage

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
