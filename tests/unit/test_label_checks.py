"""Labels, weights and shapes that cannot be: an error that names the head, what stands there and what is allowed."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import Head, MultiHeadTrainer, class_weights
from multihead._ground.validation import readable_errors
from multihead.heads._named import NamedHead, new_head
from tests.helpers import labels as reference
from tests.helpers.cases import quick
from tests.helpers.labels import gradients, trainer_of

NAN = float("nan")
CLASSES = {"loss": "sparse_categorical_crossentropy"}
BINARY = {"loss": "binary_crossentropy"}
ROWS = {"loss": "categorical_crossentropy"}


def read(predictions, targets, sample_weight=None, mask=None, *, jit=None, check=True, **options):
    """The weights that a head finds, in eager mode or in a graph (`jit` says whether XLA compiles it)."""
    head = new_head("a", tf.identity, **options)
    spec = tf.TensorSpec(predictions)

    def weights(targets, sample_weight):
        return head.mask_missing(targets, sample_weight, spec, mask, check=check)[1]

    if jit is not None:
        weights = tf.function(weights, jit_compile=jit)
    with readable_errors():
        targets = tf.convert_to_tensor(targets)
        return weights(targets, None if sample_weight is None else tf.convert_to_tensor(sample_weight)).numpy()


WHOLE, UNIT = r"`targets\['a'\]` must be whole numbers from 0 to 2.*Received: ", "must be from 0 to 1 for the loss 'binary_"
VALUES = {
    "class too large": (CLASSES, (None, 3), [0, 3, 7], None, WHOLE + r"3 \(2 of 3"),
    "class number with a fraction": (CLASSES, (None, 3), [0.0, 1.5], None, WHOLE + "1.5 "),
    "class of a wide dtype": (CLASSES, (None, 300), np.array([0, 300], "int16"), None, "from 0 to 299.*Received: 300 "),
    "number of classes unknown": (CLASSES, (None, None), [0, -2], None, "whole numbers of at least 0.*Received: -2"),
    "no probability": (BINARY, (None, 2), [[0.0, 1.0], [0.5, 2.0]], None, UNIT + r".*Received: 2 \(1 of 4"),
    "minus 1 in a column": (
        BINARY,
        (None, 1),
        [1, -1],
        None,
        UNIT + ".*Received: -1 .*Mark elements without a label by NaN",
    ),
    "hinge": ({"loss": "hinge"}, (None, 1), [1.0, 3.0], None, r"must be from -1 to 1.*Received: 3 "),
    "one-hot": (ROWS, (None, 2), [[0.0, 1.0], [-1.0, 1.0]], None, "at least 0 for the loss 'categorical_.*Received: -1 "),
    "infinite": ({"loss": "mse"}, (None, 1), [0.0, np.inf], None, "must be finite numbers for the loss.*Received: inf"),
    "part of a row": (ROWS, (None, 2), [[0, 1], [NAN, 1]], None, r"missing for a whole row or not at all.*nan \(1 of 4"),
    "class weight of a fraction": ({**BINARY, "class_weight": {1: 2}}, (None, 1), [0.5], None, "`class_weight`.*0.5"),
    "negative weight": (CLASSES, (None, 3), [0, 1], [1.0, -2.0], r"`sample_weights\['a'\]` must be finite.*Received: -2"),
    "NaN as weight": ({"loss": "mse"}, (None, 1), [0.0, 1.0], [NAN, 1.0], r"`sample_weights\['a'\]` must be finite.*nan"),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_that_cannot_be(case):
    options, predictions, targets, weights, rule = VALUES[case]
    for jit in (None, False):
        with pytest.raises(ValueError, match=rule) as caught:
            read(predictions, targets, weights, jit=jit, **options)
        assert "{" not in str(caught.value) and len(str(caught.value)) < 400
    assert np.isfinite(read(predictions, targets, check=False, **options)).all()


OF_EACH_CHECK = ("class too large", "class number with a fraction", "no probability", "part of a row", "negative weight")


@pytest.mark.parametrize("case", quick(len(OF_EACH_CHECK), sorted(VALUES, key=lambda case: case not in OF_EACH_CHECK)))
def test_under_xla_their_weight_is_infinite(case):
    """XLA has no errors: an infinite weight makes the update's gradients infinite or NaN, so that it is not applied."""
    options, predictions, targets, weights, _ = VALUES[case]
    assert np.isinf(read(predictions, targets, weights, jit=True, **options)).any()


def test_values_that_count_for_nothing_may_be_anything():
    mask, weights = tf.constant([[True, False], [False, True]]), [[1.0, 5.0], [0.0, 0.0]]
    found = read((None, 2, 3), [[0, 77], [88, 99]], weights, mask, jit=False, **CLASSES)
    np.testing.assert_array_equal(found, [[1, 0], [0, 0]])
    found = read((None, 1), [NAN, 1.0, 0.0], [NAN, -1.0 + 1, 2.0], jit=False, **BINARY)
    np.testing.assert_array_equal(found, [[0], [0], [2]])
    found = read((None, 2), [[0.5, 0.4999], [1.0005, -0.0005]], jit=False, **BINARY)  # by the rounding of a mean
    np.testing.assert_array_equal(found, np.ones((2, 2)))


SPARSE, ONE_HOT = "sparse_categorical_crossentropy", "categorical_crossentropy"
WEIGHTS = r"`sample_weights\['a'\]` must have the shape.*Received: shape "
SHAPES = {
    "vector for columns": ("mse", (None, 6), (6,), None, r"must have the shape of the predictions, \(None, 6\).*\(6,\) for"),
    "columns for one": ("huber", (None, 1), (6, 3), None, r"shape \(6, 3\) for predictions of shape \(None, 1\)"),
    "classes for one-hot": (ONE_HOT, (None, 3), (6,), None, r"Class numbers are for 'sparse_categorical_crossentropy'"),
    "one-hot for classes": (SPARSE, (None, 3), (6, 3), None, r"a value per class for 'categorical_"),
    "steps": (SPARSE, (None, 4, 3), (6, 5), None, r"one class number per prediction, shape \(None, 4\)"),
    "one weight for six": ("mse", (None, 1), (6,), (1,), WEIGHTS + r"\(1,\)"),
    "scalar weight": ("mse", (None, 1), (6,), (), WEIGHTS + r"\(\)"),
    "weights of columns": (ONE_HOT, (None, 3), (6, 3), (6, 3), r"the shape of the head's labels, \(6,\).*per row"),
}


@pytest.mark.filterwarnings("ignore:In loss categorical_:SyntaxWarning")
@pytest.mark.parametrize("last", [(), (1,)])
@pytest.mark.parametrize("loss", [SPARSE, ONE_HOT, "categorical_focal_crossentropy", "cosine_similarity"])
def test_a_loss_that_is_constant_for_a_single_column(loss, last):
    """Keras's value does not depend on the predictions, so that the head would learn nothing."""
    function, truth = keras.losses.get(loss), np.zeros(3, "int64") if loss == SPARSE else np.ones((3, 1), "float32")
    values = [
        np.array(function(truth, np.array(column, "float32")[:, None])) for column in ([0.2, 0.5, 0.9], [0.8, 0.1, 0.3])
    ]
    np.testing.assert_allclose(*values, atol=1e-6)
    with pytest.raises(ValueError, match=rf"must predict several columns for the loss '{loss}'.*binary_crossentropy"):
        read((None, *last[1:], 1), np.zeros((3, *last)), loss=loss)


@pytest.mark.parametrize("loss", ["kl_divergence", "categorical_hinge", "binary_crossentropy"])
def test_a_loss_that_a_single_column_changes(loss):
    read((None, 1), np.ones((3, 1)), loss=loss)


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_that_would_broadcast_by_accident(case):
    loss, predictions, targets, weights, rule = SHAPES[case]
    with pytest.raises(ValueError, match=rule):
        read(predictions, np.zeros(targets), None if weights is None else np.ones(weights), loss=loss)


@pytest.mark.parametrize(
    ("dtype", "label"), [("uint8", -1), ("int8", 200), ("int64", 0.5), ("bool", 2), ("float16", 1e5), ("float16", 9999)]
)
def test_a_label_that_the_dtype_cannot_hold_marks_nothing(dtype, label):
    with pytest.raises(
        ValueError, match=rf"`ignore_label` of head 'a' must be a value that its targets can hold.*dtype {dtype}"
    ):
        read((None, 1), np.zeros(3, dtype), loss="mse", ignore_label=label)


@pytest.mark.parametrize(
    ("dtype", "label"), [("uint8", 255), ("bool", 0), ("int64", -1.0), ("float32", -99.9), ("float16", 0.1)]
)
def test_a_label_that_the_dtype_holds_marks_missing_ones(dtype, label):
    targets = np.array([1, label, 1], dtype)
    np.testing.assert_array_equal(read((None, 1), targets, loss="mse", ignore_label=label)[:, 0], [1, 0, 1])


def test_what_is_no_label_at_all():
    for targets, rule in (
        (tf.constant(["a", "b"]), r"`targets\['a'\]` must be numbers or booleans\. Received: dtype string.*StringLookup"),
        (
            tf.ragged.constant([[1], [0, 1]]),
            r"`targets\['a'\]` must be a dense tensor\. Received: a RaggedTensor.*to_tensor\(-1\)",
        ),
        (tf.sparse.from_dense([[1], [0]]), r"`targets\['a'\]` must be a dense tensor\. Received: a SparseTensor.*to_dense"),
        (tf.TensorSpec(None), r"`targets\['a'\]` must have a known number of axes"),
    ):
        with pytest.raises((TypeError, ValueError), match=rule):
            new_head("a", tf.identity, "mse").build(targets, tf.TensorSpec([None, 1]))
    trainer = trainer_of("mse")
    with pytest.raises(TypeError, match=r"`sample_weights\['a'\]` must be a dense tensor. Received: a RaggedTensor"):
        gradients(trainer, np.ones((2, 3)), np.ones(2), tf.ragged.constant([[1.0], [1.0, 2.0]]))


def test_an_ignore_label_that_rows_contain():
    with pytest.raises(
        ValueError, match=r"`ignore_label` of head 'a' must be a number that no row.*Received: ignore_label=0"
    ):
        read((None, 3), np.eye(3), loss="categorical_crossentropy", ignore_label=0)


@pytest.mark.parametrize("label", ["-1", [-1], True, NAN, None.__class__])
def test_what_cannot_mark_a_missing_label(label):
    with pytest.raises(TypeError, match=r"`ignore_label` must be a finite number\. Received: ignore_label="):
        new_head("a", tf.identity, "mse", ignore_label=label)


@pytest.mark.parametrize(
    "weights, rule",
    [
        ("balanced", r"`class_weight` must be a dict.*class_weight=multihead.class_weights\(labels\)"),
        ({}, "must be a dict of weights by class number"),
        ({-1: 1.0}, "must be a dict of weights by class number"),
        ({0: -1.0, 1: 2.0}, r"must hold finite numbers of at least 0.*\{0: -1.0\}"),
        ({0: 0, 1: 0}, "must hold finite numbers of at least 0, and one above it"),
        ({3: 2.0}, r"`class_weight` of head 'a' must name the classes 0 to 2\. Received: a weight for class 3"),
    ],
)
def test_class_weights_that_cannot_be(weights, rule):
    with pytest.raises(ValueError, match=rule):
        read((None, 3), [0, 1], class_weight=weights, **CLASSES)


@pytest.mark.parametrize(
    "labels, rule",
    [
        ([], "at least one label"),
        ([-1], r"Received: \[-1\] among"),
        ([0.5], "whole numbers"),
        (["a"], "must be class numbers"),
        (np.eye(3)[[0, 2, 1, 1]], r"one-hot labels are. Pass `labels.argmax\(axis=-1\)`"),
        (tf.data.Dataset.from_tensors(np.eye(2, dtype=int)), "one-hot labels are"),
    ],
)
def test_labels_without_class_weights(labels, rule):
    with pytest.raises(ValueError, match=f"`labels` must.*{rule}|{rule}"):
        class_weights(labels)


def test_class_weights_of_a_data_set_of_pairs():
    labels = np.array([0, 1, 1, 2])
    pairs = tf.data.Dataset.from_tensors((np.zeros([4, 1]), {"a": labels}))
    with pytest.raises(TypeError, match="`labels` must be labels.*a data set of tuples.*dataset.map"):
        class_weights(pairs)
    assert class_weights(pairs.map(lambda x, y: y["a"])) == class_weights(labels)
    assert class_weights([[0, 1], [1, 1]]) == class_weights([0, 1, 1, 1])


def test_a_loss_of_ones_own_with_a_mask():
    def loss(y, p):
        return keras.losses.sparse_categorical_crossentropy(y, p, ignore_class=0)

    with pytest.raises(ValueError, match="a mask of their own.*`ignore_label`|`ignore_label`.*a mask of their own"):
        read((None, 3), [0, 1], loss=loss)


# ------------------------------------------------------------------------------------------------- in training


def data(targets, weights=None):
    x = reference.inputs(rows=len(targets))
    return (x, {"a": targets}) if weights is None else (x, {"a": targets}, {"a": weights})


def unbatched(*batch):
    """A data set of one batch whose sizes are not known before."""
    signature = tf.nest.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), batch)
    return tf.data.Dataset.from_generator(lambda: iter([batch]), output_signature=signature)


@pytest.fixture(scope="module")
def classifier():
    return trainer_of("sparse_categorical_crossentropy", 3, "softmax")


def test_one_row_is_not_broadcast(classifier):
    x, one = reference.inputs(rows=4), np.array([1])
    with pytest.raises(
        ValueError, match=r"^`targets\['a'\]` must have as many rows as the head's predictions.*\(1\) for \(4\)"
    ):
        classifier.evaluate(unbatched(x, {"a": one}), verbose=0)
    with pytest.raises(ValueError, match=r"^`targets\['a'\]` must have one row per example. Received: 1 for 4 in `inputs`"):
        classifier.compute_gradients((x, {"a": one}))
    with pytest.raises(ValueError, match=r"^`sample_weights\['a'\]` must have as many rows as the targets.*\(1\) for \(4\)"):
        classifier.evaluate(unbatched(x, {"a": np.zeros(4, int)}, {"a": np.ones(1)}), verbose=0)


def test_xla_never_takes_negative_weights_or_wrong_labels_in_silence():
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    trainer.add_head("a", keras.layers.Dense(3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    trainer.compile("sgd", jit_compile=True)
    x, y = data(np.array([0, 1, 2, 0]))
    wrong = {"a": np.array([0, 1, 2, 9])}
    negative = {"a": -np.ones(4, "float32")}
    weighted = tf.data.Dataset.from_tensors((x, y, negative))
    for call in (
        lambda: trainer.train_on_batch(x, y, sample_weight=negative),
        lambda: trainer.test_on_batch(x, y, sample_weight=negative),
        lambda: trainer.fit(x, y, sample_weight=negative, verbose=0),
        lambda: trainer.fit(weighted, verbose=0),
        lambda: trainer.evaluate(weighted, verbose=0),
    ):
        with pytest.raises(
            ValueError, match=r"^`sample_weights\['a'\]` must be finite and at least 0\. Received: -1 \(4 of 4"
        ):
            call()
    for call in (
        lambda: trainer.train_on_batch(x, wrong),
        lambda: trainer.fit(x, y, validation_data=(x, wrong), verbose=0),
        lambda: trainer.fit(x, y, validation_data=tf.data.Dataset.from_tensors((x, wrong)), verbose=0),
    ):
        with pytest.raises(ValueError, match=r"`targets\['a'\]` must be whole numbers from 0 to 2.*Received: 9 \(1 of 4"):
            call()


def test_validation_labels_are_checked_before_the_first_update(classifier):
    x, y = data(np.array([0, 1, 2, 0]))
    before = int(classifier.update_count)
    with pytest.raises(ValueError, match=r"^In `validation_data`: `targets\['a'\]` must be whole numbers.*Received: 9"):
        classifier.fit(x, y, validation_data=(x, {"a": np.array([0, 1, 2, 9])}), verbose=0)
    assert int(classifier.update_count) == before


@pytest.mark.thorough
def test_a_step_without_checks_is_never_used_for_data_that_were_not_checked(classifier):
    (x, right), (_, wrong) = data(np.array([0, 1, 2, 0])), data(np.array([0, 1, 2, 9]))

    class AnotherBatch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            classifier.train_on_batch(x, wrong)

    for call in (
        lambda: classifier.train_on_batch(x, wrong),
        lambda: classifier.fit(tf.data.Dataset.from_tensors((x, wrong)), verbose=0),
        lambda: classifier.fit(x, right, epochs=2, verbose=0, callbacks=[AnotherBatch()]),
        lambda: classifier.compute_gradients((x, wrong)),
        lambda: classifier.diagnose([(x, wrong)]),
    ):
        for _ in range(3):  # the loss, which has an error of its own, never reads labels before they are checked
            classifier.fit(x, right, verbose=0)
            with pytest.raises(ValueError, match=r"`targets\['a'\]` must be whole numbers from 0 to 2.*Received: 9"):
                call()


@pytest.mark.thorough
def test_checks_that_are_left_out_find_nothing():
    """As Keras itself, which trains on any number; shapes, dtypes and the labels that are missing are found all the same."""
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    trainer.add_head("a", keras.layers.Dense(1, activation="sigmoid"), "binary_crossentropy", ignore_label=-1)
    trainer.compile("sgd", check_labels=False)
    x = reference.inputs(rows=4)
    wrong, right = np.array([0.0, 1.0, 2.0, -1.0], "float32"), np.array([0.0, 1.0, 0.5, np.nan], "float32")
    assert np.isfinite(trainer.fit(x, wrong, verbose=0).history["loss"]).all()
    with pytest.raises(ValueError, match=r"`targets\['a'\]` must have the shape of the predictions"):
        trainer.fit(x, np.zeros((4, 2)), verbose=0)
    unchecked = trainer.compute_gradients((x, {"a": right}))[0][0]
    trainer.compile("sgd")
    np.testing.assert_array_equal(trainer.compute_gradients((x, {"a": right}))[0][0], unchecked)


def test_a_head_gives_one_dense_tensor():
    for module in (lambda r: {"p": r}, lambda r: (r, r), lambda r: tf.RaggedTensor.from_tensor(r)):
        trainer = MultiHeadTrainer(keras.layers.Dense(4))
        trainer.add_head("a", module, "mse")
        trainer.compile("sgd")
        with pytest.raises(ValueError, match="The module of head 'a' must give one tensor"):
            trainer.compute_gradients(data(np.zeros((3, 4))))


def test_rows_are_not_columns_for_a_loss_of_ones_own():
    def squared(y, p):
        return tf.reduce_mean((y - p) ** 2, axis=-1)

    trainer = trainer_of(squared, units=8)
    if keras.__version__ < "3":  # which hands labels of one axis over as a column
        labels = np.arange(8, dtype="float32")
        expected = gradients(trainer, reference.inputs(), labels[:, None])
        for one, other in zip(gradients(trainer, reference.inputs(), labels), expected):
            np.testing.assert_array_equal(one, other)
        return
    with pytest.raises(ValueError, match=r"In head 'a': The loss 'squared' must take .* \(None,\) .* \(None, 8\)"):
        gradients(trainer, reference.inputs(), np.zeros(8, "float32"))


class Evaluating(keras.callbacks.Callback):
    """Evaluates other data while `fit` runs."""

    def __init__(self, *data):
        super().__init__()
        self.data = data

    def on_epoch_end(self, epoch, logs=None):
        self.model.evaluate(*self.data, verbose=0)


def test_labels_in_arrays_are_checked_once_and_not_in_batches(monkeypatch):
    checks = []
    mask_missing = NamedHead.mask_missing

    def counted(self, *args, check=True, **options):
        checks.extend([len(args[0])] if check and tf.executing_eagerly() else ["batch"] if check else [])
        return mask_missing(self, *args, check=check, **options)

    monkeypatch.setattr(NamedHead, "mask_missing", counted)
    trainer = MultiHeadTrainer(keras.layers.Dense(3), {"a": Head(keras.layers.Dense(2, "softmax"), CLASSES["loss"])})
    trainer.compile("sgd")
    x, y = np.ones([8, 2], "float32"), np.array([0, 1] * 4)
    trainer.compute_gradients((x, y))
    checks.clear()
    trainer.fit(x, y, validation_data=(x[:6], y[:6]), epochs=3, batch_size=2, verbose=0)
    assert checks == [8, 6]
    checks.clear()
    trainer.evaluate(x[:4], y[:4], verbose=0)
    assert checks == [4]
    wrong = x[:2], np.array([0, 5])
    with pytest.raises(ValueError, match="whole numbers from 0 to 1.*Received: 5"):
        trainer.evaluate(*wrong, verbose=0)
    with pytest.raises(ValueError, match="whole numbers from 0 to 1.*Received: 5"):
        trainer.fit(x, y, validation_data=(x[:6], y[:6]), verbose=0, callbacks=[Evaluating(*wrong)])
    checks.clear()
    trainer.evaluate(tf.data.Dataset.from_tensors((x, y)), verbose=0)
    assert checks == ["batch"]
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="whole numbers from 0 to 1.*Received: 5"):
        trainer.evaluate(tf.data.Dataset.from_tensors(wrong), verbose=0)
