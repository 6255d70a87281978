"""`check_head` finds what a head does not say: losses and modules that compare rows, on the user's own rows."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import Head
from multihead.testing import check_head
from tests.helpers import coupled

X = np.random.default_rng(0).normal(size=(20, 5)).astype("float32")
COUPLES = "`couples_rows=True`"


def dense(units=1):
    return keras.layers.Dense(units)


def labels(columns=1, rank=2):
    y = np.random.default_rng(1).uniform(0.1, 0.9, [20, *[4] * (rank - 2), columns]).astype("float32")
    y[::3] = np.nan
    return y


class MinibatchDeviation(keras.layers.Layer):
    """The mean deviation over the batch as another column, as the discriminators of progressive GANs have it."""

    def call(self, x):
        deviation = tf.reduce_mean(tf.math.reduce_std(x, axis=0))
        return tf.concat([x, tf.fill([tf.shape(x)[0], 1], deviation)], axis=1)


class OfPairs(keras.layers.Layer):
    """The similarities of each row to all."""

    def call(self, x):
        return tf.reduce_max(tf.matmul(x, x, transpose_b=True), axis=1, keepdims=True)


class Centred(keras.layers.Layer):
    def call(self, x):
        return x - tf.reduce_mean(x, axis=0)


MODULES = {
    "minibatch deviation": lambda: keras.Sequential([MinibatchDeviation(), dense()]),
    "pairs": lambda: keras.Sequential([dense(3), OfPairs()]),
    "centred": lambda: keras.Sequential([Centred(), dense()]),
    "attention over the batch": lambda: keras.Sequential(
        [keras.layers.Lambda(lambda x: tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x)), dense()]
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_mixes_rows_is_found(name):
    """Whatever the loss, one of Keras too."""
    with pytest.raises(AssertionError, match=f"a row the same predictions alone as with others.*{COUPLES}"):
        check_head(Head(MODULES[name](), "mse"), X, labels())
    report = check_head(Head(MODULES[name](), "mse", couples_rows=True), X, labels())
    assert report.checks == ["have a loss of labelled rows alone if other rows have no label"]


@pytest.mark.first_cases(6)
@pytest.mark.parametrize(("name", "said"), [(name, said) for said in (None, False) for name in reversed(coupled.ALL)])
def test_a_loss_that_compares_rows_is_found(name, said):
    _, y, _, options = coupled.data(name, rows=20)
    if name in ("correlation", "Decorrelated"):  # one number for all rows
        with pytest.raises(ValueError, match="must give one value per element"):
            check_head(Head(dense(), coupled.ALL[name], couples_rows=said), X, y)
        return
    head = Head(dense(4 if name in coupled.CLASSES else 1), coupled.ALL[name], couples_rows=said, **options)
    with pytest.raises(AssertionError, match=f"`head` must have a loss (whose|that).*{COUPLES}"):
        check_head(head, X, y)


def limited(y, p):
    return tf.reduce_sum(tf.abs(y - p)), tf.maximum(tf.reduce_sum(y), 6.0)


def squared_sum(y, p):
    return tf.reduce_sum(tf.abs(y - p)) ** 2, tf.reduce_sum(y)


def relative(y, p):
    return tf.abs(y - p), y / tf.reduce_mean(y)


def of_predictions(y, p):
    return tf.reduce_sum(tf.abs(y - p)), tf.reduce_sum(tf.cast(tf.abs(p) > 1.5, tf.float32))


def between_steps(y, p):
    return tf.abs(p - tf.reduce_mean(y, axis=-1, keepdims=True))


OTHERS = {
    "limited": (limited, 1, "sum and count add up"),
    "squared sum": (squared_sum, 1, "sum and count add up"),
    "relative": (relative, 3, "the same value alone|function of the targets|labelled rows alone"),
    "between columns": (between_steps, 3, "depends on its own label alone"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_faults_of_losses_are_found(name):
    loss, columns, words = OTHERS[name]
    with pytest.raises(AssertionError, match=words):
        check_head(Head(dense(columns), loss), X, labels(columns))


def test_a_count_of_predictions_is_found():
    with pytest.raises((AssertionError, ValueError), match="function of the targets"):
        check_head(Head(dense(3), of_predictions), X, labels(3))


class Largest(keras.metrics.Metric):
    """The largest error, but not of labels: of everything that it ever saw."""

    def __init__(self, name="largest"):
        super().__init__(name=name)
        self.value = self.add_weight(name="value", shape=(), initializer="zeros")

    def update_state(self, y, p, sample_weight=None):
        self.value.assign(tf.maximum(self.value, tf.reduce_max(tf.abs(y - p))))

    def result(self):
        return self.value + 0.0


def own(y, p):
    return tf.abs(y - p)


@pytest.mark.parametrize("loss", ["mse", "huber", own, lambda y, p: tf.reduce_mean(own(y, p), axis=-1)])
def test_what_is_right_passes_and_stays_as_it_is(loss):
    kept = Largest()
    module = keras.Sequential([dense(3), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
    module(X)
    before = [np.array(each) for each in module.get_weights()]
    report = check_head(Head(module, loss, metrics=["mae", kept]), X, labels(3))
    assert "have a metric 'largest' of labelled rows alone if other rows have no label" in report.checks
    assert repr(report) == f"Head: {len(report.checks)} checks, 1 head"
    assert float(kept.result()) == 0.0
    for one, other in zip(before, module.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_sequences_class_numbers_nests_and_modules_that_read_labels():
    x = {"steps": np.random.default_rng(2).normal(size=(12, 4, 3)).astype("float32"), "mask": np.ones((12, 4), bool)}
    head = Head(dense(5), "sparse_categorical_crossentropy", reads="steps", metrics=["accuracy"], ignore_label=-1)
    y = np.random.default_rng(3).integers(0, 5, (12, 4))
    y[3] = -1
    head = Head(keras.layers.Dense(5, "softmax"), head.loss, reads="steps", metrics=["accuracy"], ignore_label=-1)
    assert len(check_head(head, x, y).checks) >= 4

    class Reader(keras.layers.Layer):
        def call(self, h, y):
            return h[:, :1] * tf.cast(y, tf.float32)

    check_head(Head(Reader(), own, teacher_forcing=True), X, labels())
    with pytest.raises(ValueError, match="`y` must have labels for at least four rows. Received: .* for 2 of 20"):
        check_head(Head(dense(), "mse"), X, np.where(np.arange(20)[:, None] < 2, 1.0, np.nan))
