"""The loss of the best constant is nearly that of a finer search by NumPy, for losses of all kinds, class weights and sample weights."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, class_weights
from tests.helpers.cases import quick

pytestmark = pytest.mark.first_cases(3)  # the others are thorough

ROWS, WEIGHTS = 240, ("none", "classes", "samples", "both")


def positives_count(y, p):
    """The snippet that everybody copies for a rare class."""
    return tf.reduce_mean(tf.nn.weighted_cross_entropy_with_logits(y, p, pos_weight=9.0), axis=-1)


def focal(y, p):
    """A focal loss of one's own, of probabilities."""
    q = tf.where(y > 0.5, p, 1 - p)
    return tf.reduce_mean(-((1 - q) ** 2) * tf.math.log(q + 1e-7), axis=-1)


def pinball(y, p):
    return tf.reduce_mean(tf.maximum(0.9 * (y - p), -0.1 * (y - p)), axis=-1)


def softplus(z):
    return np.log1p(np.exp(z))


def of_class(y, p):
    """The probability of the label."""
    return np.where(y > 0.5, p, 1 - p)


def focal_value(y, p):
    return -((1 - of_class(y, p)) ** 2) * np.log(of_class(y, p))


FROM_LOGITS = keras.losses.BinaryCrossentropy(from_logits=True)
PROBABILITIES, LOGITS, NUMBERS = np.linspace(1e-3, 1 - 1e-3, 1999), np.linspace(-8, 8, 3201), np.linspace(-6, 12, 3601)
BINARY = {
    "crossentropy": ("binary_crossentropy", "sigmoid", lambda y, p: -np.log(of_class(y, p)), PROBABILITIES),
    "logits": (FROM_LOGITS, None, lambda y, z: softplus(np.where(y > 0.5, -z, z)), LOGITS),
    "focal": ("binary_focal_crossentropy", "sigmoid", focal_value, PROBABILITIES),
    "focal of one's own": (focal, "sigmoid", focal_value, PROBABILITIES),
    "positives count": (positives_count, None, lambda y, z: np.where(y > 0.5, 9 * softplus(-z), softplus(z)), LOGITS),
    "squared error of probabilities": ("mse", "sigmoid", lambda y, p: (y - p) ** 2, PROBABILITIES),
}
OF_NUMBERS = {
    "mse": ("mse", None, lambda y, c: (y - c) ** 2),
    "mae": ("mae", None, lambda y, c: np.abs(y - c)),
    "huber": ("huber", None, lambda y, c: np.where(np.abs(y - c) < 1, (y - c) ** 2 / 2, np.abs(y - c) - 0.5)),
    "log_cosh": ("log_cosh", None, lambda y, c: np.log(np.cosh(y - c))),
    "pinball": (pinball, None, lambda y, c: np.maximum(0.9 * (y - c), -0.1 * (y - c))),
}
CLASSES = {
    "sparse": (keras.losses.SparseCategoricalCrossentropy(), "softmax", 0.0),
    "sparse logits": (keras.losses.SparseCategoricalCrossentropy(from_logits=True), None, 0.0),
    "one-hot": (keras.losses.CategoricalCrossentropy(), "softmax", 0.0),
    "one-hot focal": (keras.losses.CategoricalFocalCrossentropy(alpha=1.0), "softmax", 2.0),
}
CASES = [
    *itertools.product((name for name in BINARY if name not in ("focal of one's own", "positives count")), WEIGHTS),
    *itertools.product(("focal of one's own", "positives count"), ("none", "samples")),
    *itertools.product(OF_NUMBERS, ("none", "samples")),
    *itertools.product(CLASSES, WEIGHTS),
]


def options(kind, labels, rng):
    """Options of `add_head`, of `diagnose`, and the weight of each example."""
    weights, of_head, of_data = np.ones(ROWS), {}, {}
    if kind in ("classes", "both"):
        of_head["class_weight"] = class_weights(labels)
        weights = weights * np.array([of_head["class_weight"][int(label)] for label in labels])
    if kind in ("samples", "both"):
        samples = rng.uniform(0, 3, ROWS).astype("float32") * (rng.random(ROWS) > 0.2) * (1 + 4 * (labels > labels.mean()))
        of_data["sample_weight"] = {"a": samples.astype("float32")}
        weights = weights * samples
    return of_head, of_data, weights


def constant_loss(loss, activation, outputs, labels, of_head, of_data):
    x = np.random.default_rng(1).normal(size=(ROWS, 3)).astype("float32")
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    trainer.add_head("a", keras.layers.Dense(outputs, activation=activation), loss, **of_head)
    trainer.compile("sgd", run_eagerly=True)
    return trainer.diagnose(x, {"a": labels}, **of_data).constant_losses[0]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("name", "kind"), quick(14, CASES))
def test_constant_losses_are_the_least_of_all_constants(name, kind):
    rng = np.random.default_rng(0)
    if name in CLASSES:
        loss, activation, gamma = CLASSES[name]
        labels = rng.choice(3, ROWS, p=[0.8, 0.15, 0.05])
        of_head, of_data, weights = options(kind, labels, rng)
        targets = np.eye(3, dtype="float32")[labels] if name.startswith("one-hot") else labels
        grid = [(a, b, 1 - a - b) for a in np.arange(0.01, 1, 0.01) for b in np.arange(0.01, 0.995 - a, 0.01)]
        share = np.bincount(labels, weights, 3) / weights.sum()
        least = min((share * (1 - np.array(p)) ** gamma * -np.log(p)).sum() for p in grid)
        found = constant_loss(loss, activation, 3, targets, of_head, of_data)
        np.testing.assert_allclose(found, least, rtol=1e-2)
        return
    if name in BINARY:
        loss, activation, value, constants = BINARY[name]
        labels = (rng.random(ROWS) < 0.1).astype("float32")
    else:
        loss, activation, value = OF_NUMBERS[name]
        labels, constants = rng.gamma(1.0, 2.0, ROWS).astype("float32") - 1, NUMBERS
    of_head, of_data, weights = options(kind, labels, rng)
    least = (weights[:, None] * value(labels[:, None], constants)).sum(axis=0).min() / weights.sum()
    found = constant_loss(loss, activation, 1, labels[:, None], of_head, of_data)
    np.testing.assert_allclose(found, least, rtol=5e-3)  # a head has learned from 5e-2 on


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["samples", "classes"])
def test_noise_is_not_said_to_be_learned(kind):
    rng = np.random.default_rng(0)
    x, rare = rng.normal(size=(1200, 5)).astype("float32"), (rng.random(1200) < 0.1).astype("int64")
    balanced = class_weights(rare)
    of_head = {"class_weight": balanced} if kind == "classes" else {}
    of_data = {} if of_head else {"sample_weight": {"rare": np.array([balanced[label] for label in rare], "float32")}}
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(keras.layers.Dense(8, activation="tanh"))
    trainer.add_head("rare", keras.layers.Dense(1, activation="sigmoid"), "binary_crossentropy", **of_head)
    trainer.add_head("number", keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.Adam(0.01))
    data = (x, {"rare": rare, "number": x[:, :1]})
    for _ in range(2):
        assert trainer.diagnose(*data, **of_data).progress[0] == "untrained"
        trainer.fit(*data, **of_data, epochs=4, verbose=0)
    assert trainer.diagnose(*data, **of_data).progress == ("untrained", "done")
