"""The price classifier against NumPy."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead.models import PriceClassifier
from tests.helpers.numpy_seq2seq import sigmoid, softmax, weights_of


def representation(dtype="float32"):
    random = np.random.default_rng(0)
    mask = np.arange(4) < np.array([[4], [2], [1]])
    outputs = random.normal(size=[3, 4, 5]) - 2.0
    return {
        "outputs": tf.constant(outputs, dtype),
        "state": (tf.zeros([3, 5], dtype),),
        "final": tf.constant(random.normal(size=[3, 5]), dtype),
        "mask": tf.constant(mask),
    }


@pytest.mark.parametrize("pool", [False, True])
def test_equals_numpy(pool):
    classifier = PriceClassifier(3, hidden_units=7, pool=pool)
    entries = representation()
    result = classifier(entries)
    features = np.asarray(entries["final"], np.float64)
    if pool:
        rows = zip(np.asarray(entries["outputs"]), np.asarray(entries["mask"]))
        features = np.concatenate([features, [outputs[mask].max(axis=0) for outputs, mask in rows]], axis=1)
    kernel, bias, out_kernel, out_bias = weights_of(classifier)
    expected = softmax(sigmoid(features @ kernel + bias) @ out_kernel + out_bias)
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_probabilities_are_float32_in_mixed_precision():
    classifier = PriceClassifier(3, pool=True, dtype="mixed_float16")
    result = classifier(representation("float16"))
    assert result.dtype == tf.float32
    np.testing.assert_allclose(tf.reduce_sum(result, axis=1), 1.0, atol=1e-6)


def test_config_makes_the_same_classifier():
    classifier = PriceClassifier(3, hidden_units=7, dropout=0.2, pool=True, name="price")
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(classifier))
    assert again.get_config() == classifier.get_config()


def test_dropout_is_for_training_only():
    classifier = PriceClassifier(3, dropout=0.5)
    plain = classifier(representation())
    np.testing.assert_array_equal(plain, classifier(representation(), training=False))
    assert np.abs(plain - classifier(representation(), training=True)).max() > 1e-4


def test_wrong_use():
    with pytest.raises(ValueError, match=r"`num_ranges` must be an integer of at least 2\. Received: num_ranges=1\."):
        PriceClassifier(1)
    entries = representation()
    del entries["mask"]
    with pytest.raises(ValueError, match=r"`representation` must hold .*without \['mask'\]\. Pass what"):
        PriceClassifier(3, pool=True)(entries)
