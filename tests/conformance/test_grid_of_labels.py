"""Every dtype, shape and way to miss a label, under every loss and metric that Keras ships.

The loss and its gradient are those of a hand-masked definition on incomplete labels, and Keras's own on complete ones; or
there is an error of ours. No case is trained on other labels than it was given.
"""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead.heads._metric_names import resolve_metric
from multihead.heads._metrics import HeadMetric
from multihead.heads._named import new_head
from tests.helpers.labels import DEFINITIONS, ELEMENTS, WHOLE_ROWS

KERAS_3 = keras.__version__.startswith("3")
ROWS, TIME, COLUMNS = 6, 4, 3
UNSIGNED = ("bool", "uint8", "uint16", "uint32", "uint64")
FLOATING = ("float16", "bfloat16", "float32", "float64")
DTYPES = (*UNSIGNED, "int8", "int16", "int32", "int64", *FLOATING)
MISSING = ("none", "NaN", "ignore_label", "weights of rows", "weights of elements")
PREDICTIONS = ((ROWS,), (ROWS, 1), (ROWS, COLUMNS), (ROWS, TIME, 1), (ROWS, TIME, COLUMNS))
TARGETS = ((ROWS,), (ROWS, 1), (ROWS, COLUMNS), (ROWS, TIME), (ROWS, TIME, 1), (ROWS, TIME, COLUMNS))

LOSSES = dict(DEFINITIONS)
if KERAS_3:
    LOSSES["categorical_generalized_cross_entropy"] = lambda y, p: (
        (1 - tf.gather(p, tf.cast(y, tf.int32), axis=-1, batch_dims=len(p.shape) - 1) ** 0.5) / 0.5
    )


def made(loss):
    return keras.losses.CategoricalGeneralizedCrossEntropy() if "generalized" in loss else loss


def kind_of(loss):
    return "rows" if loss in WHOLE_ROWS else "elements" if loss in ELEMENTS else "classes"


def fits(kind, targets, predictions):
    """Whether targets of a shape belong to predictions of a shape, by the table of docs/labels.md."""
    shape = predictions if len(predictions) > 1 else (*predictions, 1)
    if kind == "classes":
        return targets in (shape[:-1], (*shape[:-1], 1))
    return targets == shape or (shape[-1] == 1 and targets == shape[:-1])


def logits(shape, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


def predicted(kind, logits):
    return tf.sigmoid(logits) if kind == "elements" else tf.nn.softmax(logits)


class Case:
    """Targets and weights of one case, and what they say: `labels` and `counted`, of the shape of the loss's elements.

    Args:
        kind: What the loss or metric reads.
        shape: The targets' shape.
        predictions: The predictions' shape.
        dtype: The targets' dtype.
        missing: How labels are missing.
    """

    def __init__(self, kind, shape, predictions, dtype, missing):
        rng = np.random.default_rng(len(shape) + 7 * DTYPES.index(dtype))
        width = predictions[-1] if len(predictions) > 1 else 1
        num_classes = 2 if dtype == "bool" or kind == "elements" else width
        columns = predictions if len(predictions) > 1 else (*predictions, 1)
        elements = columns if kind == "elements" else columns[:-1]
        self.labels = rng.integers(0, num_classes, elements)
        if num_classes > 1:
            self.labels.flat[:2] = 0, 1
        lacks = np.zeros(elements, bool)
        lacks.flat[1::3] = missing in ("NaN", "ignore_label")
        self.ignore_label = None
        if missing == "ignore_label":
            self.ignore_label = -1 if dtype not in UNSIGNED else 9 if dtype != "bool" else 0
            lacks |= (self.labels == 0) & (dtype == "bool")
        given = np.eye(width)[self.labels] if kind == "rows" else self.labels
        if missing in ("NaN", "ignore_label"):
            mark = np.nan if missing == "NaN" else self.ignore_label
            given = np.where(lacks[..., None] if kind == "rows" else lacks, mark, given)
        self.weights, self.counted = None, np.where(lacks, 0.0, 1.0)
        if missing.startswith("weights"):
            shape_of_weights = elements[:1] if missing == "weights of rows" else elements
            weights = rng.uniform(0.5, 2.0, shape_of_weights).astype("float32")
            weights.flat[2] = 0
            self.weights = tf.constant(weights)
            self.counted *= weights.reshape(*shape_of_weights, *[1] * (len(elements) - len(shape_of_weights)))
        self.targets = tf.cast(tf.constant(given.reshape(shape).astype("float64")), dtype)
        self.seen = np.eye(width)[self.labels] if kind == "rows" else self.labels


def cases(kind, shape, predictions, number):
    """Two ways to miss a label, in turn, with a dtype that is another for each pair of shapes."""
    dtype = DTYPES[number % len(DTYPES)]
    possible = [missing for missing in MISSING if missing != "NaN" or dtype in FLOATING]
    for missing in (possible[(number + i) % len(possible)] for i in range(2)):
        yield dtype, missing, Case(kind, shape, predictions, dtype, missing)


def by_head(loss, case, x):
    """The mean loss over the labels, and its gradient with respect to the logits, as an update has them."""
    head = new_head("a", tf.identity, made(loss), ignore_label=case.ignore_label)
    spec = tf.TensorSpec([None, *x.shape[1:]])
    head.build(tf.TensorSpec([None, *case.targets.shape[1:]], case.targets.dtype), spec)
    with tf.GradientTape() as tape:
        tape.watch(x)
        targets, weights = head.mask_missing(case.targets, case.weights, spec, None)
        value = head.loss_sum(targets, predicted(kind_of(loss), x), weights) / tf.reduce_sum(weights)
    return value, tape.gradient(value, x)


def by_definition(loss, case, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        columns = predicted(kind_of(loss), x if len(x.shape) > 1 else x[:, None])
        values = LOSSES[loss](tf.constant(case.seen, tf.float32), columns)
        counted = tf.constant(case.counted, tf.float32)
        value = tf.reduce_sum(tf.where(counted > 0, values, 0.0) * counted) / tf.reduce_sum(counted)
    return value, tape.gradient(value, x)


def by_keras(loss, case, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = tf.reduce_mean(keras.losses.get(made(loss))(case.targets, predicted(kind_of(loss), x)))
    return value, tape.gradient(value, x)


def refused(loss, case):
    """Whether such labels are an error: a row may contain the mark of a missing one."""
    if loss not in WHOLE_ROWS or case.ignore_label is None or case.ignore_label < 0:
        return False
    return loss != "cosine_similarity" or case.targets.dtype.is_bool  # it takes any number, so 9 is a mark like another


def check_loss(loss, start):
    """All shapes for a loss; returns the numbers of cases that were trained and that were refused."""
    kind, counts = kind_of(loss), [0, 0]
    for number, (shape, targets) in enumerate(itertools.product(PREDICTIONS, TARGETS)):
        if kind != "elements" and (len(shape) < 2 or shape[-1] == 1):
            continue
        x = logits(shape)
        if not fits(kind, targets, shape):
            y = tf.zeros(targets, DTYPES[number % len(DTYPES)])
            with pytest.raises(ValueError, match=r"`targets\['a'\]` must have.*Received: targets of shape"):
                new_head("a", tf.identity, made(loss)).build(y, tf.TensorSpec([None, *shape[1:]]))
            counts[1] += 1
            continue
        for dtype, missing, case in cases(kind, targets, shape, start + number):
            if refused(loss, case):
                with pytest.raises(ValueError, match=r"that no row|must be missing for a whole row"):
                    by_head(loss, case, x)
                counts[1] += 1
                continue
            where = f"{loss}, targets {targets} of {dtype} for {shape}, {missing}"
            actual = by_head(loss, case, x)
            wanted = [by_definition(loss, case, x)]
            # Outside of `fit` Keras adds no axis, and Keras 2 normalizes targets as they are, which integers cannot be.
            if missing == "none" and targets == (shape[:-1] if kind == "classes" else shape) and loss != "cosine_similarity":
                wanted.append(by_keras(loss, case, x))
            for one, other in itertools.product([actual], wanted):
                for a, b in zip(one, other, strict=True):
                    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6, err_msg=where)
            counts[0] += 1
    return counts


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("number, loss", list(enumerate(LOSSES)))
def test_losses(number, loss):
    trained, refused = check_loss(loss, 5 * number)
    assert trained >= 3 and refused >= 8


# ----------------------------------------------------------------------------------------------------------- metrics

OF_ELEMENTS = (
    "Accuracy BinaryAccuracy BinaryCrossentropy Hinge SquaredHinge LogCoshError MeanAbsoluteError MeanSquaredError Poisson "
    "MeanAbsolutePercentageError MeanSquaredLogarithmicError RootMeanSquaredError AUC Precision Recall TruePositives "
    "TrueNegatives FalsePositives FalseNegatives"
).split()
OF_ROWS = (
    "CategoricalAccuracy CategoricalCrossentropy CategoricalHinge CosineSimilarity KLDivergence TopKCategoricalAccuracy"
).split()
OF_CLASSES = "SparseCategoricalAccuracy SparseCategoricalCrossentropy SparseTopKCategoricalAccuracy".split()
FLOAT = {"dtype": "float32"}  # Keras 3 counts whole numbers otherwise, and warns that it rounds weights
WITH_OPTIONS = {
    "MeanIoU": ({"num_classes": 2, **FLOAT}, "elements"),
    "MeanIoU of classes": ({"num_classes": COLUMNS, "sparse_y_pred": False, **FLOAT}, "classes"),
    "IoU": ({"num_classes": 2, "target_class_ids": [1], **FLOAT}, "elements"),
    "OneHotMeanIoU": ({"num_classes": COLUMNS, **FLOAT}, "rows"),
    "OneHotIoU": ({"num_classes": COLUMNS, "target_class_ids": [1], **FLOAT}, "rows"),
    "F1Score": ({"average": "micro"}, "rows"),
    "FBetaScore": ({"average": "micro", "beta": 2.0}, "rows"),
    "R2Score": ({}, "rows"),
}
OF_KIND = {
    "elements": "mean_squared_error",
    "rows": "categorical_crossentropy",
    "classes": "sparse_categorical_crossentropy",
}
METRICS = {
    **dict.fromkeys(OF_ELEMENTS, ({}, "elements")),
    **dict.fromkeys(OF_ROWS, ({}, "rows")),
    **dict.fromkeys(OF_CLASSES, ({}, "classes")),
    **WITH_OPTIONS,
}


def check_metric(name, start):
    """All shapes for a metric: as Keras's own on the labelled elements alone. Returns the number of cases."""
    options, kind = METRICS[name]
    count, loss = 0, OF_KIND[kind]
    make = lambda: getattr(keras.metrics, name.partition(" ")[0])(**options)  # noqa: E731
    for number, (shape, targets) in enumerate(itertools.product(PREDICTIONS, TARGETS)):
        if (kind != "elements" and (len(shape) < 2 or shape[-1] == 1)) or not fits(kind, targets, shape):
            continue
        predictions = predicted(kind, logits(shape, seed=1))
        for dtype, missing, case in cases(kind, targets, shape, start + number):
            if refused(loss, case):
                continue
            head = new_head("a", tf.identity, loss, ignore_label=case.ignore_label)
            spec = tf.TensorSpec([None, *shape[1:]])
            head.build(tf.TensorSpec([None, *targets[1:]], case.targets.dtype), spec)
            masked, weights = head.mask_missing(case.targets, case.weights, spec, None)
            of_head, of_keras = HeadMetric(resolve_metric(make(), None, None, "a")), make()
            of_head.build(
                "a", tf.TensorSpec([None, *targets[1:]], case.targets.dtype), spec, weights.shape.rank, is_counted=False
            )
            of_head.update(masked, predictions, weights, are_weighted=True)
            is_counted = case.counted > 0
            p = predictions.numpy().reshape(case.seen.shape if kind != "classes" else (*case.seen.shape, COLUMNS))
            y = case.seen.astype("float32")[is_counted]
            p = p[is_counted]
            if kind == "elements":
                y, p = y[:, None], p[:, None]
            of_keras.update_state(y, p, sample_weight=case.counted[is_counted].astype("float32"))
            where = f"{name}, targets {targets} of {dtype} for {shape}, {missing}"
            np.testing.assert_allclose(of_head.metric.result(), of_keras.result(), rtol=1e-4, atol=1e-5, err_msg=where)
            count += 1
    return count


@pytest.mark.first_cases(6)
@pytest.mark.parametrize("number, name", list(enumerate(METRICS)))
def test_metrics(number, name):
    assert check_metric(name, 5 * number) >= 2


@pytest.mark.parametrize("name", ["F1Score", "R2Score"])
def test_metrics_that_keras_hands_floats_take_whole_numbers(name):
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(12, 3)).astype("float32"), rng.integers(0, 2, (12, 2)).astype("int32")
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    trainer.add_head("a", keras.layers.Dense(2, "sigmoid"), "binary_crossentropy", metrics=[getattr(keras.metrics, name)()])
    trainer.compile("sgd")
    (key,) = [key for key in trainer.evaluate(x, {"a": labels}, verbose=0, return_dict=True) if "score" in key]
    found = trainer.evaluate(x, {"a": labels}, verbose=0, return_dict=True)[key]
    metric = getattr(keras.metrics, name)()
    metric.update_state(labels.astype("float32"), trainer.predict(x, verbose=0)["a"])
    np.testing.assert_allclose(found, metric.result(), rtol=1e-4)
