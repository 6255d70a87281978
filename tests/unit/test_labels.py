"""Labels: which elements have one, and how much each counts."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, class_weights
from tests.helpers import labels as reference
from tests.helpers.labels import COLUMNS, ROWS, WHOLE_ROWS, assert_same, by_tape, gradients, trainer_of

KERAS_3 = keras.__version__.startswith("3")


# -------------------------------------------------------------------------------------------------- missing elements


def test_twelve_columns_are_twelve_heads_by_their_share_of_the_labels():
    """The loss of one head with columns is `sum_j c_j / c * loss_j`, `c_j` being the count of labels in column `j`."""
    rng = np.random.default_rng(2)
    x, y = reference.inputs(rows=20), rng.integers(0, 2, (20, 12)).astype("float32")
    y[rng.random(y.shape) < 0.4] = np.nan
    counts = (~np.isnan(y)).sum(axis=0)
    assert len(set(counts)) > 3
    wide = trainer_of("binary_crossentropy", 12, "sigmoid")
    together = gradients(wide, x, y)
    heads = MultiHeadTrainer(wide.encoder)
    kernel, bias = wide.heads["a"].module.get_weights()
    for j in range(12):
        module = keras.layers.Dense(1, activation="sigmoid")
        module.build((None, 4))
        module.set_weights([kernel[:, j : j + 1], bias[j : j + 1]])
        heads.add_head(f"column {j}", module, "binary_crossentropy", weight=counts[j] / counts.sum())
    heads.compile("sgd")
    apart = [tf.convert_to_tensor(g) for g, _ in heads.compute_gradients((x, {f"column {j}": y[:, j] for j in range(12)}))]
    joined = [*apart[:2], tf.concat(apart[2::2], axis=1), tf.concat(apart[3::2], axis=0)]
    assert_same(together, [np.array(gradient) for gradient in joined])


def test_classes_weigh():
    """By class number, by 0 and 1 in each column, and by the largest entry of a row; the denominator is what they sum to."""
    x, weights = reference.inputs(), {0: 2.0, 2: 0.25}
    of_class = np.array([2.0, 1.0, 0.25], "float32")
    given = np.linspace(0.5, 2, ROWS).astype("float32")
    for loss in ("sparse_categorical_crossentropy", "binary_crossentropy", "categorical_crossentropy"):
        trainer = trainer_of(loss, COLUMNS, reference.activation(loss), class_weight=weights, ignore_label=-1)
        y = reference.labels(loss, (ROWS,) if loss in reference.CLASSES else (ROWS, COLUMNS))
        classes = y.argmax(-1) if loss in WHOLE_ROWS else y.astype(int)
        rows = given if classes.ndim == 1 else given[:, None]
        counted = np.arange(ROWS) != 3 if classes.ndim == 1 else (np.arange(ROWS) != 3)[:, None]
        expected = by_tape(trainer, x, y, reference.DEFINITIONS[loss], of_class[classes] * rows * counted)
        y[3] = -1
        assert_same(gradients(trainer, x, y, given), expected)


def test_class_weights_balance():
    labels = np.array([[0, 0, 0, 0], [2, 2, 5, -1]])
    found = class_weights(labels, ignore_label=-1)
    assert found == pytest.approx({0: 7 / 12, 2: 7 / 6, 5: 7 / 3})
    assert sum(found[label] for label in labels.ravel() if label >= 0) == pytest.approx(7)
    for same in (labels[labels >= 0].tolist(), np.where(labels < 0, np.nan, labels), iter(labels[labels >= 0][:, None])):
        assert class_weights(same) == found
    dataset = tf.data.Dataset.from_tensor_slices(labels)
    assert class_weights(dataset, ignore_label=-1) == found


# ------------------------------------------------------------------------------------------------------ other losses


def squared(y, p):
    return tf.square(y - p)


def mean_squared(y, p):
    return tf.reduce_mean(tf.square(y - p), axis=-1)


class Squared(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return mean_squared(y_true, y_pred)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("loss", [squared, mean_squared, Squared()], ids=["elements", "rows", "class"])
def test_a_loss_of_ones_own_says_by_its_values_what_its_elements_are(loss):
    x, y = reference.inputs(), reference.labels("mean_squared_error", (ROWS, COLUMNS))
    trainer = trainer_of(loss, COLUMNS)
    by_keras = reference.by_keras(trainer, loss)
    for dtype in ("float64", "float16", "int64", "float32"):
        if dtype == "int64" and not KERAS_3:  # Keras 2 passes them as they are, which this loss cannot take
            with pytest.raises(ValueError, match="must take the head's targets.*dtype int64.*Correct the loss, the targets"):
                gradients(trainer, x, y.astype(dtype))
            continue
        actual = gradients(trainer, x, y.astype(dtype))
        assert_same(actual, by_tape(trainer, x, y, squared))
        assert_same(actual, by_keras(x, y.astype(dtype)))
    weights = np.linspace(0.1, 1, y.size).reshape(y.shape).astype("float32")
    if loss is squared:
        assert_same(gradients(trainer, x, y, weights), by_tape(trainer, x, y, squared, weights))
        y[2, 1] = np.nan
        weights[2, 1] = 0
        with pytest.raises(ValueError, match="may compare a label with the others of its row"):
            gradients(trainer, x, y, weights)
        trainer = trainer_of(loss, COLUMNS, couples_rows=False)
        assert_same(gradients(trainer, x, y, weights), by_tape(trainer, x, np.nan_to_num(y), squared, weights))
        return
    y[2] = np.nan
    rows = np.where(np.arange(ROWS) == 2, 0, weights[:, 0])
    assert_same(gradients(trainer, x, y, rows), by_tape(trainer, x, np.nan_to_num(y), mean_squared, rows))
    y[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"`targets\['a'\]` must be missing for a whole row.*nan \(1 of 24 values"):
        gradients(trainer, x, y)


def test_ignore_class_is_kerass_own():
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=255)
    trainer = trainer_of(loss, COLUMNS, "softmax")
    x, y = reference.inputs(), np.array([0, 255, 2, 1, 255, 255, 0, 0], "uint8")
    actual = gradients(trainer, x, y)
    assert_same(actual, reference.by_keras(trainer, loss)(x, y))
    definition = reference.CLASSES["sparse_categorical_crossentropy"]
    assert_same(actual, by_tape(trainer, x, np.where(y == 255, 0, y), definition, y != 255))


def test_a_configuration_is_a_loss():
    config = {"class_name": "BinaryCrossentropy", "config": {"from_logits": True, "label_smoothing": 0.2}}
    trainer = trainer_of(config, COLUMNS)
    x, y = reference.inputs(), reference.labels("binary_crossentropy", (ROWS, COLUMNS))
    assert_same(gradients(trainer, x, y), reference.by_keras(trainer, keras.losses.get(config))(x, y))


@pytest.mark.skipif(not KERAS_3, reason="a loss of Keras 3")
def test_ctc_gives_one_value_per_example():
    trainer = trainer_of(keras.losses.CTC(), 5)
    x, y = reference.inputs(time=6), np.random.default_rng(0).integers(1, 5, (ROWS, 3))
    actual = gradients(trainer, x, y)
    assert_same(actual, reference.by_keras(trainer, keras.losses.CTC())(x, y), 1e-4)
    with pytest.raises(ValueError, match="`sample_weights.*must have the shape of the head's labels"):
        gradients(trainer, x, y, np.ones((ROWS, 3)))
