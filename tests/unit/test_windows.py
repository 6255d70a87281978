"""Windows of batches as elements of a dataset: each batch once, in order, the last window padded with empty batches."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead._data.windows import batches_of_update, in_windows


def batches(num_examples=5, size=1):
    pair = (np.arange(num_examples), {"a": np.arange(num_examples)[:, None] * 10})
    return tf.data.Dataset.from_tensor_slices(pair).batch(size)


def windows(dataset, steps):
    return list(in_windows(dataset, steps, 1, tf.distribute.get_strategy(), None)[0])


def test_batches_keep_their_order_and_the_last_window_is_padded():
    found = windows(batches(5), 2)
    assert [[inputs.numpy().tolist() for inputs, _ in batches_of_update(each, 2)] for each in found] == [
        [[0], [1]],
        [[2], [3]],
        [[4], []],
    ]
    assert batches_of_update(found[2], 2)[1][1]["a"].shape == (0, 1)
    assert all(set(each) == {"window"} for each in found)


def test_what_is_no_window_is_one_batch():
    batch = next(iter(batches()))
    assert batches_of_update(batch, 1) == [batch]


def test_ragged_and_sparse_batches_are_padded_too():
    ragged = tf.data.Dataset.from_tensors(tf.ragged.constant([[1, 2], [3]])).map(lambda x: (x, tf.sparse.eye(2)))
    (window,) = windows(ragged, 2)
    (first, sparse), (empty, no_rows) = batches_of_update(window, 2)
    assert first.to_list() == [[1, 2], [3]] and empty.to_list() == []
    assert sparse.shape == (2, 2) and no_rows.shape[0] == 0


def test_replicas_get_the_parts_of_each_batch(two_replicas):
    found, steps = in_windows(batches(6, size=3), 2, 1, two_replicas, None)
    assert steps == 1
    window = next(iter(found))
    parts = [two_replicas.experimental_local_results(inputs) for inputs, _ in batches_of_update(window, 2)]
    assert [[part.numpy().tolist() for part in each] for each in parts] == [[[0], [1, 2]], [[3], [4, 5]]]


def test_replicas_need_the_number_of_updates(two_replicas):
    endless = batches().repeat()
    with pytest.raises(
        ValueError, match="`steps_per_epoch` is required with gradient_accumulation_steps on several replicas"
    ):
        in_windows(endless, 2, 1, two_replicas, None)
