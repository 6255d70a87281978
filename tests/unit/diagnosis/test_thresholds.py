"""Targets are not scaled for a loss with a threshold in their units: divided by it, a margin would be as wide as all of them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer

pytestmark = [pytest.mark.mathematics, pytest.mark.usefixtures("eagerly")]
NORMAL = np.random.default_rng(0).normal(size=(96, 1))
ERRORS = {  # of labels in hundreds
    "margin": lambda e: tf.maximum(tf.abs(e) - 10.0, 0.0),
    "smooth absolute": lambda e: tf.where(tf.abs(e) < 20.0, e * e / 40.0, tf.abs(e) - 10.0),
    "Welsch": lambda e: 1.0 - tf.exp(-tf.square(e / 300.0)),
    "Cauchy": lambda e: tf.math.log1p(tf.square(e / 30.0)),
    "absolute": tf.abs,
    "three squares": lambda e: 3.0 * tf.square(e),
    "quantile": lambda e: tf.maximum(0.9 * e, -0.1 * e),
}


def diagnosed(loss, labels):
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(keras.layers.Dense(8, "tanh"))
    trainer.add_head("a", keras.layers.Dense(1), loss)
    trainer.compile("sgd")
    x = np.random.default_rng(1).normal(size=(len(labels), 4)).astype("float32")
    return trainer.diagnose([(x, {"a": labels})])


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("name", ERRORS)
def test_a_loss_with_a_threshold_is_not_scaled_for_the_user(name, dtype):
    labels = np.round(300 + 100 * NORMAL).astype(dtype)
    report = diagnosed(lambda y, p: ERRORS[name](tf.cast(y, p.dtype) - p), labels)
    has_threshold = name in ("margin", "smooth absolute", "Welsch", "Cauchy")
    assert ("target_scaling" in report.suggestion) is not has_threshold
    assert any("by numbers of its own, in the labels' units" in text for text in report.findings) is has_threshold


@pytest.mark.parametrize("delta", [1.0, 50.0])
def test_what_becomes_of_a_delta_is_said(delta):
    report = diagnosed(keras.losses.Huber(delta), (300 + 100 * NORMAL).astype("float32"))
    assert report.suggestion["target_scaling"] == {"a": "standardize"}
    assert any("delta=50 then counts in scaled units" in text for text in report.findings) is (delta == 50.0)
