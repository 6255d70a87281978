"""Accumulated gradients: in loops by hand, in `fit`, and where XLA compiles them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead._update.micro_batches import MicroBatch, MicroBatches, accumulate
from multihead.accumulation import GradientAccumulator

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(23, 4)).astype("float32"), RNG.normal(size=23).astype("float32")
PARTS = [(0, 5), (5, 6), (6, 20), (20, 23)]


def made():
    return tf.Variable(np.ones((4, 1), "float32")), tf.Variable(np.ones((6, 2), "float32")), tf.Variable([1.0])


def gradients(variables, start, end, total=False):
    dense, table, unused = variables
    with tf.GradientTape() as tape:
        rows = tf.gather(table, np.arange(start, end) % 3)
        values = (tf.constant(X[start:end]) @ dense)[:, 0] * tf.reduce_sum(rows, 1) - Y[start:end]
        loss = tf.reduce_sum(values**2) if total else tf.reduce_mean(values**2)
    return tape.gradient(loss, [dense, table, unused])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("in_graph", [False, True])
def test_mean_over_ragged_parts_is_the_whole_batchs_gradient(reduction, in_graph):
    variables = made()
    accumulator = GradientAccumulator(variables)
    add = tf.function(accumulator.add) if in_graph else accumulator.add
    for _ in range(2):  # the second after a reset
        for start, end in PARTS:
            add(
                gradients(variables, start, end, reduction == "sum"),
                tf.constant(float(end - start)),
                reduction=reduction,
            )
            so_far = gradients(variables, 0, end)
            np.testing.assert_allclose(accumulator.mean()[0], so_far[0], rtol=2e-5)  # the incremental mean is the mean
        assert float(accumulator.count) == 23
        mean = accumulator.mean()
        np.testing.assert_allclose(mean[1], tf.convert_to_tensor(gradients(variables, 0, 23)[1]), rtol=2e-5, atol=1e-6)
        assert mean[2] is None
        accumulator.reset()
        assert float(accumulator.count) == 0 and accumulator.mean()[0] is None


def test_running_average_forgets_at_its_momentum():
    variable = tf.Variable([0.0])
    accumulator = GradientAccumulator([variable], momentum=0.8)
    top = bottom = 0.0
    for value, count in ((1.0, 2.0), (5.0, 1.0), (-3.0, 4.0)):
        accumulator.add([tf.constant([value])], count)
        top, bottom = 0.8 * top + value * count, 0.8 * bottom + count
        np.testing.assert_allclose(accumulator.mean()[0], [top / bottom], rtol=1e-6)


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_float64_is_not_rounded(momentum):
    counts, values = [0.1, 1 / 3, 0.7], np.array([[0.3, -1.7], [2.0 / 3, 1.1], [1e-3, 5.3]])
    accumulator = GradientAccumulator([tf.Variable([0.0], dtype="float32"), tf.Variable(values[0])], momentum=momentum)
    total = count = 0.0
    for number, value in zip(counts, values):
        accumulator.add([None, tf.constant(value)], number)
        total, count = (momentum or 1.0) * total + number * value, (momentum or 1.0) * count + number
    assert accumulator.count.dtype == tf.float64
    np.testing.assert_allclose(accumulator.count, count, rtol=1e-14)
    np.testing.assert_allclose(accumulator.mean()[1], total / count, rtol=1e-14)


def test_duplicate_rows_are_summed():
    table = tf.Variable(tf.zeros([3, 1]))
    accumulator = GradientAccumulator([table])
    accumulator.add([tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([1, 1, 0]), tf.constant([3, 1]))])
    np.testing.assert_array_equal(accumulator.mean()[0], [[4.0], [3.0], [0.0]])


def test_replicas_average_over_all_of_them(two_replicas):
    strategy = two_replicas
    with strategy.scope():
        variable = tf.Variable([0.0])
        accumulator = GradientAccumulator([variable])

    @tf.function
    def step():
        def in_replica():
            replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
            accumulator.add([tf.reshape(1.0 + 2.0 * replica, [1])], 90.0 - 80.0 * replica)  # 90 of 1, 10 of 3
            accumulator.add([tf.reshape(1.0 + 2.0 * replica, [1])], 90.0 - 80.0 * replica)
            return accumulator.mean()[0], accumulator.mean(part=True)[0]

        return strategy.run(in_replica)

    whole, part = step()
    for value in strategy.experimental_local_results(whole):
        np.testing.assert_allclose(value, [1.2], rtol=1e-6)
    np.testing.assert_allclose(strategy.reduce("SUM", part, axis=None), [1.2], rtol=1e-6)


def test_errors():
    with pytest.raises(ValueError, match="`variables` must not be empty"):
        GradientAccumulator([])
    with pytest.raises(ValueError, match="`momentum` must be None or at least 0 and below 1"):
        GradientAccumulator([tf.Variable([0.0])], momentum=1.0)
    accumulator = GradientAccumulator([tf.Variable([0.0])])
    with pytest.raises(ValueError, match="one gradient, or None, per variable, 1 in total. Received: 2"):
        accumulator.add([None, None])
    with pytest.raises(ValueError, match="`reduction` must be one of 'mean', 'sum'"):
        accumulator.add([None], reduction="median")


@pytest.mark.thorough
def test_accumulated_batches_advance_the_states_of_a_recurrent_encoder_one_by_one():
    """Such an encoder needs a known batch size, and its states go from each batch to the next."""
    x, y = np.random.default_rng(0).normal(size=(6, 4, 1)).astype("float32"), np.ones([6, 1], "float32")
    encoder, twin = keras.layers.LSTM(3, stateful=True), keras.layers.LSTM(3, stateful=True)
    for layer in (encoder, twin):
        layer.build((2, 4, 1))
    for own, other in zip(twin.trainable_weights, encoder.trainable_weights, strict=True):
        own.assign(other)
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.compile("sgd", gradient_accumulation_steps=3)
    trainer.fit(tf.data.Dataset.from_tensor_slices((x, {"a": y})).batch(2, drop_remainder=True), verbose=0)
    for start in (0, 2, 4):
        twin(x[start : start + 2])
    for state, wanted in zip(encoder.states, twin.states, strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(state), tf.convert_to_tensor(wanted), rtol=1e-5)


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
