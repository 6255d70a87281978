"""Losses: one value per element, in the shape that says what an element is."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import losses

RNG = np.random.default_rng(0)


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@pytest.mark.mathematics
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_sequence_crossentropy_is_that_of_a_smoothed_one_hot_label(smoothing):
    logits, ids = RNG.normal(size=(2, 3, 5)), RNG.integers(0, 5, (2, 3))
    label = (1 - smoothing) * np.eye(5)[ids] + smoothing / 5
    values = losses.SequenceCrossentropy(label_smoothing=smoothing).call(ids, logits.astype("float32"))
    np.testing.assert_allclose(values, -(label * log_softmax(logits)).sum(axis=-1), rtol=1e-5)


def test_sequence_crossentropy_is_restored_from_its_configuration():
    loss = losses.SequenceCrossentropy(padding_id=3, label_smoothing=0.1)
    restored = keras.losses.get(keras.losses.serialize(loss))
    assert restored.get_config() == loss.get_config() and restored.ignore_label == 3


@pytest.mark.mathematics
@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_label_smoothing_is_at_least_0_and_below_1(smoothing):
    with pytest.raises(ValueError, match="`label_smoothing` must be at least 0 and below 1. Received: label_smoothing="):
        losses.SequenceCrossentropy(label_smoothing=smoothing)


@pytest.mark.parametrize(
    ("loss", "targets", "shape", "wanted"),
    [
        ("mse", np.ones((4, 3)), (4, 3), (4, 3)),  # a mean over columns: each is an element
        ("binary_crossentropy", np.ones((4, 1)), (4, 1), (4, 1)),
        ("mse", np.ones(4), (4,), (4, 1)),
        ("categorical_crossentropy", np.eye(3)[[0, 1, 2, 0]], (4, 3), (4,)),  # reads all columns of a row
        ("sparse_categorical_crossentropy", np.zeros((4, 2)), (4, 2, 3), (4, 2)),  # a label per step
        (lambda t, p: tf.abs(t - p), np.ones((4, 3)), (4, 3), (4, 3)),
        (lambda t, p: tf.reduce_sum(tf.abs(t - p), axis=-1), np.ones((4, 3)), (4, 3), (4,)),
    ],
    ids=["columns", "column", "no axis", "row", "step", "own per column", "own per row"],
)
def test_one_value_per_element(loss, targets, shape, wanted):
    found = losses.get(loss)
    targets = tf.constant(targets, tf.float32 if found.over != "classes" else tf.int32)
    predictions = tf.fill(shape, 0.25)
    values = found.values(targets, predictions)
    assert values.shape == wanted
    specs = tf.TensorSpec(targets.shape, targets.dtype), tf.TensorSpec(shape)
    assert found.value_rank(*specs) == len(wanted)


def test_values_of_half_precision_are_computed_in_float32():
    predictions = tf.constant([[60000.0]], tf.float16)
    values = losses.get("mse").values(tf.constant([[0.0]]), predictions)
    np.testing.assert_allclose(values, [[3.6e9]], rtol=1e-3)


@pytest.mark.parametrize(
    ("loss", "error", "words"),
    [
        ("no such loss", ValueError, "which Keras does not know"),
        (3, TypeError, "`loss` must be a name"),
        (keras.losses.MeanSquaredError(reduction="sum"), ValueError, "leave its reduction to the trainer"),
    ],
    ids=["name", "type", "reduction"],
)
def test_other_losses_are_refused(loss, error, words):
    with pytest.raises(error, match=words):
        losses.get(loss)


KEPT = {
    "rows": (4, 3),
    "tokens": (4, 5, 3),
    "images": (4, 5, 6, 1),
    "open steps": (4, None, 3),
    "open images": (4, None, None, 1),
}


@pytest.mark.mathematics
@pytest.mark.parametrize("counts", [False, True], ids=["values", "sums and counts"])
@pytest.mark.parametrize("axes", ["last", "all"])
@pytest.mark.parametrize("name", KEPT)
def test_axes_that_a_loss_keeps_with_size_1_are_none_of_elements(name, axes, counts):
    """`[batch, 1]` of sequences, as `keras.backend.ctc_batch_cost` gives, is a value for each of them."""
    shape, sizes = KEPT[name], [size or 7 for size in KEPT[name]]
    reduced = list(range(1, len(shape))) if axes == "all" else [-1]
    targets, predictions = (RNG.normal(size=sizes).astype("float32") for _ in range(2))

    def loss(targets, predictions):
        squares = tf.square(targets - predictions)
        sums = tf.reduce_sum(squares, reduced, keepdims=True)
        ones = tf.reduce_sum(tf.ones_like(squares), reduced, keepdims=True)
        return (sums, ones) if counts else sums / ones

    squares = (targets - predictions) ** 2
    wanted = (squares.sum if counts else squares.mean)(axis=tuple(reduced))
    is_whole = axes == "last" and shape[-1] == 1  # then the last axis is that of the predictions
    found = losses.get(loss)
    rank = found.value_rank(*[tf.TensorSpec(shape)] * 2)
    assert rank == wanted.ndim + is_whole
    with_spec = tf.function(found.values, input_signature=[tf.TensorSpec(shape)] * 2)
    np.testing.assert_allclose(with_spec(targets, predictions), wanted[..., None] if is_whole else wanted, rtol=1e-4)


HIDDEN = keras.Input((3,))
SYMBOLIC = {
    "an input": lambda targets, predictions: tf.square(targets - predictions) * HIDDEN,
    "a layer": lambda targets, predictions: tf.square(targets - predictions) + keras.layers.Dense(3)(HIDDEN),
    "a loss of it": lambda targets, predictions: keras.losses.mean_squared_error(HIDDEN, predictions),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_a_loss_that_uses_symbolic_tensors_is_refused(name):
    loss = losses.get(SYMBOLIC[name])
    with pytest.raises(ValueError, match="must use its targets and predictions alone.*Pass weights as `sample_weight`"):
        loss.value_rank(*[tf.TensorSpec([None, 3])] * 2)


def test_a_loss_reduced_over_the_batch_is_refused():
    loss = losses.get(lambda targets, predictions: tf.reduce_mean(tf.square(targets - predictions)))
    with pytest.raises(ValueError, match="must give one value per element"):
        loss.values(tf.ones([4, 1]), tf.ones([4, 1]))


CHANNELS_FIRST = [
    keras.losses.CategoricalCrossentropy(axis=1),
    keras.losses.CategoricalFocalCrossentropy(axis=1),
    keras.losses.BinaryCrossentropy(axis=1),
    keras.losses.CosineSimilarity(axis=1),
]


@pytest.mark.parametrize("loss", CHANNELS_FIRST, ids=lambda loss: loss.name)
def test_a_loss_along_another_axis_than_the_last_is_refused_with_a_way_out(loss):
    shape = [None, 3, 4, 5]
    with pytest.raises(ValueError, match="must compare along the last axis. Received: axis=1. .*Permute"):
        losses.get(loss).value_rank(*[tf.TensorSpec(shape)] * 2)
