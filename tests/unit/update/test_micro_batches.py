"""Splitting a batch and adding up what its micro-batches give."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead._update.batch import Batch
from multihead._update.labels import Labels
from multihead._update.micro_batches import MicroBatch, MicroBatches, accumulate, plus


def batches(*sizes):
    made = [Batch(tf.reshape(tf.range(10.0 * i, 10.0 * i + size), [size, 1]), {}, {}) for i, size in enumerate(sizes)]
    return made, [[Labels(batch.inputs[:, 0], tf.ones([batch.inputs.shape[0]])), None] for batch in made]


def split(made, labels, number):
    return MicroBatches([MicroBatch(batch.inputs, of_batch) for batch, of_batch in zip(made, labels)], number)


def test_parts_differ_by_one_example_at_most_and_hold_them_all_in_order():
    made, labels = batches(7)
    parts = split(made, labels, 3)
    assert [len(part.inputs) for part in parts] == [2, 2, 3]
    np.testing.assert_array_equal(tf.concat([part.inputs for part in parts], 0), made[0].inputs)
    for part in parts:
        np.testing.assert_array_equal(part.labels[0].targets, part.inputs[:, 0])
        assert part.labels[1] is None


def test_none_counts_as_zero_and_sparse_rows_stay_sparse():
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2]))
    a, b, c = plus((None, tf.ones([2]), rows), (tf.ones([2]), tf.ones([2]), rows))
    assert a.numpy().tolist() == [1, 1] and b.numpy().tolist() == [2, 2]
    assert isinstance(c, tf.IndexedSlices)
    assert tf.convert_to_tensor(c).numpy().tolist() == [[0, 0], [2, 2], [0, 0]]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("in_graph", [False, True])
def test_sums_are_those_of_the_micro_batches_empty_ones_left_out(in_graph):
    calls = []

    def compute(part):
        calls.append(1)
        tf.debugging.assert_positive(tf.shape(part.inputs)[0])
        rows = tf.IndexedSlices(part.inputs, tf.zeros([tf.shape(part.inputs)[0]], tf.int32), tf.constant([2, 1]))
        return {"sum": tf.reduce_sum(part.inputs), "rows": rows, "nothing": None}

    shapes = {"sum": tf.constant([], tf.int32), "rows": tf.constant([2, 1]), "nothing": None}

    def run(*sizes):
        made, labels = batches(*sizes)
        sums = accumulate(compute, split(made, labels, 4), shapes)
        assert not in_graph or isinstance(sums["rows"], tf.IndexedSlices)
        return sums["sum"], tf.convert_to_tensor(sums["rows"])[0, 0]

    run = tf.function(run) if in_graph else run
    for sizes in ((5, 2), (2, 0)):
        made, labels = batches(*sizes)
        wanted = sum(float(tf.reduce_sum(batch.inputs)) for batch in made)
        total, rows = run(*sizes)
        np.testing.assert_allclose((total, rows), wanted)
    if in_graph:
        assert len(calls) <= 8  # traced for a few shapes, not once for each micro-batch and call


def test_a_single_micro_batch_is_computed_as_it_is():
    made, labels = batches(3)
    parts = split(made, labels, 1)
    assert accumulate(lambda given: given is parts[0], parts, None) is True


def test_run_eagerly_an_empty_micro_batch_leaves_the_dtypes_of_the_others():
    def compute(micro_batch):
        return [tf.reduce_sum(tf.cast(micro_batch.inputs, tf.float64))]

    parts = MicroBatches([MicroBatch(tf.ones([n]), []) for n in (0, 2, 0)], 1)
    found = accumulate(compute, parts, [tf.constant([], tf.int32)])
    assert found[0].dtype == tf.float64 and float(found[0]) == 2


@pytest.mark.parametrize("in_graph", [False, True])
def test_what_only_some_batches_have_is_added_up(in_graph):
    """A gradient that is None, sparse or dense, as a batch's heads make it."""

    def compute(part):
        total = tf.reduce_sum(part.inputs)
        if part.labels[0] is None:
            return [
                total,
                None,
                tf.IndexedSlices(part.inputs, tf.zeros([tf.shape(part.inputs)[0]], tf.int32), tf.constant([2, 1])),
            ]
        return [total, 2 * total, tf.stack([[0.0], [total]])]

    def run():
        parts = MicroBatches(
            [MicroBatch(tf.ones([n, 1]), [label]) for n, label in ((5, None), (3, tf.ones([3])), (2, None))], 2
        )
        found = accumulate(compute, parts, [tf.constant([], tf.int32)] * 2 + [tf.constant([2, 1])])
        return [tf.convert_to_tensor(each) for each in found]

    total, some, rows = (tf.function(run) if in_graph else run)()
    assert (float(total), float(some)) == (10, 6)
    assert rows.numpy().tolist() == [[7], [3]]


@pytest.mark.parametrize("sizes", [(4, 3), (4, 0)])
def test_sparse_sums_are_right_where_xla_compiles_them(sizes):
    """XLA compiles for the sizes that there are, also what is left out because it is empty."""

    def compute(part):
        ids = tf.cast(part.inputs, tf.int32)
        rows = tf.gather(tf.reshape(tf.range(10.0), [5, 2]), ids) + part.inputs[0, 0]  # as layers that read the first row
        flat = tf.IndexedSlices(tf.reshape(rows, [-1, 2]), tf.reshape(ids, [-1]), tf.constant([5, 2]))
        return [tf.reduce_sum(rows), flat]

    @tf.function(jit_compile=True)
    def run(batches):
        parts = MicroBatches([MicroBatch(batch, []) for batch in batches], 3)
        found = accumulate(compute, parts, [tf.constant([], tf.int32), tf.constant([5, 2])])
        return found[0], tf.convert_to_tensor(found[1])

    ids = [np.arange(3 * size).reshape(size, 3) % 5 for size in sizes]
    total, table = run([tf.constant(each, tf.float32) for each in ids])
    expected = np.zeros([5, 2])
    for batch in ids:
        for part in (batch[len(batch) * i // 3 : len(batch) * (i + 1) // 3] for i in range(3)):
            for row in part:
                for index in row:
                    expected[index] += np.arange(10.0).reshape(5, 2)[index] + part[0, 0]
    np.testing.assert_allclose(table, expected)
    np.testing.assert_allclose(total, expected.sum())
