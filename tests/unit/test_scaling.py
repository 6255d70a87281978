"""What `target_scaling` may be, and what it becomes."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import scaling


def test_names_and_scalings():
    assert scaling.get(None) is None
    assert isinstance(scaling.get("standardize"), scaling.Standardize) and isinstance(scaling.get("log"), scaling.Log)
    own = scaling.Log(1.0, mean=[1, 2], deviation=[3, 4])
    assert scaling.get(own) is own and own.mean == [1.0, 2.0] and scaling.get("log").mean is None
    assert repr(own) == "scaling.Log(shift=1.0, mean=[1.0, 2.0], deviation=[3.0, 4.0])"
    assert scaling.Standardize(np.float32(2), np.array(4)).get_config() == {"mean": 2.0, "deviation": 4.0, "by_column": True}
    assert scaling.Standardize([1.0, 2.0], 4.0).deviation == [4.0, 4.0]
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(own))
    assert again.get_config() == own.get_config()


def adapted(y, **options):
    layer = keras.layers.Normalization(**options)
    layer.adapt(y)
    return layer


@pytest.mark.parametrize(
    "make",
    [
        lambda y: keras.layers.Rescaling(0.25, -1.0),
        lambda y: keras.layers.Normalization(mean=3.0, variance=16.0, axis=None),
        lambda y: keras.layers.Normalization(mean=[3.0, 5.0], variance=[16.0, 1.0]),
        lambda y: adapted(y),
        lambda y: adapted(y, axis=None),
    ],
)
def test_layers_of_keras_become_what_they_compute(make):
    y = np.array([[1.0, 2.0], [7.0, 30.0], [4.0, -5.0]], "float32")
    layer = make(y)
    found = scaling.get(layer)
    np.testing.assert_allclose((y - np.array(found.mean)) / np.array(found.deviation), layer(y), rtol=1e-5)


def test_logarithms_and_back():
    log = scaling.Log(2.0)
    labels = np.array([-1.5, 0.0, 1e6])
    changed = log.change(tf.constant(labels, tf.float64))
    np.testing.assert_allclose(changed, np.log(labels + 2), rtol=1e-12)
    np.testing.assert_allclose(log.undo(changed), labels, rtol=1e-9)
    assert log.above == -2.0 and np.isfinite(np.log(log.valid + 2.0))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: scaling.get("standardise"), ValueError, "`target_scaling` must be one of .* Did you mean 'standardize'"),
        (lambda: scaling.get(3.0), TypeError, "`target_scaling` must be 'standardize', 'log', one of multihead.scaling"),
        (lambda: scaling.get(keras.layers.Dense(1)), TypeError, "a Keras layer that can be inverted: .* Received: .*Dense"),
        (lambda: scaling.get(keras.layers.Rescaling(-1.0)), TypeError, "a `Rescaling` whose scale is above 0"),
        (lambda: scaling.get(keras.layers.Normalization(invert=True)), TypeError, "a `Normalization` without `invert`"),
        (lambda: scaling.Standardize(1.0), ValueError, "`mean` and `deviation` must be given together"),
        (lambda: scaling.Standardize(deviation=1.0), ValueError, "Received: mean=None, deviation=1.0"),
        (lambda: scaling.Standardize("a", 1.0), ValueError, "as finite numbers"),
        (lambda: scaling.Standardize(np.nan, 1.0), ValueError, "as finite numbers"),
        (lambda: scaling.Standardize([1.0, 2.0], [1.0, 2.0, 3.0]), ValueError, "one for each column"),
        (lambda: scaling.Standardize(1.0, 0.0), ValueError, "the deviation above 0. Received: mean=1.0, deviation=0.0"),
        (lambda: scaling.Log("1"), ValueError, "`shift` must be a finite number. Received: shift='1'"),
    ],
)
def test_what_is_no_scaling(make, error, message):
    with pytest.raises(error, match=message):
        make()
