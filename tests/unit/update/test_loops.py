"""The same computation for one batch after another, in a loop of the graph."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead._update.micro_batches import common_spec, each


def nests():
    """Batches of different sizes, with every kind of tensor."""
    ragged = tf.ragged.constant([[1, 2], [], [3]]), tf.ragged.constant([[4]])
    sparse = (tf.sparse.from_dense([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]]), tf.sparse.from_dense([[0.0, 3.0]]))
    return [
        {"dense": tf.reshape(tf.range(2.0 * n), [n, 2]), "ragged": r, "sparse": s, "none": None, "scalar": tf.constant(n)}
        for n, r, s in zip((3, 1), ragged, sparse)
    ]


def leaves(tensor):
    return tf.nest.flatten(tensor, expand_composites=True)


def compute(nest):
    return {**nest, "sum": tf.reduce_sum(nest["dense"], 1), "none": None}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("order", [(0, 1), (1, 0, 0), (0,)])
def test_each_result_is_that_of_its_own_batch(order):
    def run():
        made = nests()
        return each(compute, [made[i] for i in order])

    for found, i in zip(tf.function(run)(), order, strict=True):
        wanted = compute(nests()[i])
        assert found["none"] is None
        for name in ("dense", "ragged", "sparse", "scalar", "sum"):
            assert found[name].dtype == wanted[name].dtype
            tf.nest.map_structure(np.testing.assert_array_equal, leaves(found[name]), leaves(wanted[name]))


def test_batches_with_something_else_missing_have_a_loop_of_their_own():
    traces = []

    def twice(nest):
        traces.append(nest)
        return [None if tensor is None else 2 * tensor for tensor in nest]

    def run():
        ones, column = tf.ones([2]), tf.ones([3, 1])
        return each(twice, [[ones, None], [2 * ones, None], [ones, column], [None, column], [3 * ones, None]])

    found = tf.function(run)()
    values = [[None if tensor is None else tensor.numpy().ravel().tolist() for tensor in nest] for nest in found]
    assert values == [[[2, 2], None], [[4, 4], None], [[2, 2], [2, 2, 2]], [None, [2, 2, 2]], [[6, 6], None]]
    assert len(traces) == 3


def test_a_number_of_examples_that_all_share_stays_known():
    assert common_spec([tf.ones([4, 3])] * 2).shape == [4, 3]
    assert common_spec([tf.ones([4, 3]), tf.ones([2, 3])]).shape.as_list() == [None, 3]


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
