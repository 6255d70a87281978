"""Sums over replicas."""

from __future__ import annotations

import tensorflow as tf

from multihead._ground import replicas


def test_on_one_replica_nothing_happens():
    gradients = [tf.constant([1.0]), None]
    assert replicas.num_replicas() == 1 and replicas.all_reduce_sum(gradients) is gradients


def test_sums_of_tensors_sparse_gradients_and_none(two_replicas):
    @tf.function
    def summed():
        replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        rows = tf.IndexedSlices(tf.fill([1, 2], replica + 1), tf.constant([2]), tf.constant([4, 2]))
        total = replicas.all_reduce_sum(replica + 1)
        dense, nothing, sparse = replicas.all_reduce_sum([tf.fill([2], replica + 1), None, rows])
        assert nothing is None and replicas.num_replicas() == 2
        return total, dense, tf.convert_to_tensor(sparse)

    total, dense, sparse = two_replicas.run(summed)
    for value in two_replicas.experimental_local_results(total):
        assert value == 3
    for value in two_replicas.experimental_local_results(dense):
        assert value.numpy().tolist() == [3, 3]
    for value in two_replicas.experimental_local_results(sparse):
        assert value.numpy().tolist() == [[0, 0], [0, 0], [3, 3], [0, 0]]


def test_what_holds_on_one_replica_holds_on_any(two_replicas):
    @tf.function
    def found():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return replicas.on_any_replica([tf.equal(replica, 1), tf.equal(replica, 5)])

    first, second = map(two_replicas.experimental_local_results, two_replicas.run(found))
    assert all(map(bool, first)) and not any(map(bool, second))
