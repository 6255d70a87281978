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


def adapted(y, kind=keras.layers.Normalization, **options):
    layer = kind(**options)
    layer.adapt(y)
    return layer


class OfAnotherName(keras.layers.Rescaling):
    """Computes what its base class does."""


class Root(keras.layers.Rescaling):
    def call(self, inputs):
        return tf.sqrt(inputs) * self.scale


class RootAndBack(Root):
    def inverse(self, outputs):
        return tf.square(outputs / self.scale)


class LogNormalization(keras.layers.Normalization):
    def call(self, inputs):
        return super().call(tf.math.log(inputs))


class LogNormalizationAndBack(LogNormalization):
    def inverse(self, outputs):
        return tf.exp(outputs * tf.sqrt(tf.convert_to_tensor(self.variance)) + self.mean)


@pytest.mark.parametrize(
    "make",
    [
        lambda y: keras.layers.Rescaling(0.25, -1.0),
        lambda y: keras.layers.Normalization(mean=3.0, variance=16.0, axis=None),
        lambda y: keras.layers.Normalization(mean=[3.0, 5.0], variance=[16.0, 1.0]),
        lambda y: adapted(y),
        lambda y: adapted(y, axis=None),
        lambda y: adapted(y, axis=1),
        lambda y: keras.layers.Normalization(axis=1, mean=3.0, variance=16.0),
        lambda y: OfAnotherName(0.25, -1.0),
    ],
)
def test_layers_of_keras_become_what_they_compute(make):
    y = np.array([[1.0, 2.0], [7.0, 30.0], [4.0, -5.0]], "float32")
    layer = make(y)
    found = scaling.get(layer)
    np.testing.assert_allclose((y - np.array(found.mean)) / np.array(found.deviation), layer(y), rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda y: RootAndBack(2.0),
        lambda y: LogNormalizationAndBack(mean=1.0, variance=4.0, axis=None),
        lambda y: adapted(np.log(y), kind=LogNormalizationAndBack, axis=-1),
    ],
)
def test_a_subclass_with_its_own_calculation_is_what_it_computes(make):
    y = np.array([[1.0, 2.0], [7.0, 30.0], [4.0, 0.5]], "float32")
    layer = make(y)
    found = scaling.get(layer)
    np.testing.assert_allclose(found.change(tf.constant(y, tf.float64)), layer(y), rtol=1e-5)
    np.testing.assert_allclose(found.undo(found.change(tf.constant(y, tf.float64))), y, rtol=1e-5)


AXES = {(3,): [1, -1, None], (3, 2): [1, 2, -1, -2, (1, 2), (-1,), None], (2, 2): [1, 2]}
"""By the shape of targets without the batch axis, axes of a `Normalization`."""


@pytest.mark.parametrize(("shape", "axis"), [(shape, axis) for shape, axes in AXES.items() for axis in axes], ids=str)
@pytest.mark.parametrize("how", ["given", "adapted", "learned"])
def test_a_normalization_scales_along_its_axis_or_is_refused(how, axis, shape):
    y = np.random.default_rng(0).normal(size=(9, *shape)).astype("float32") * np.arange(1, shape[-1] + 1)
    axes = [] if axis is None else [axis] if isinstance(axis, int) else list(axis)
    others = tuple(each for each in range(y.ndim) if each not in {other % y.ndim for other in axes})
    by_hand = (y - y.mean(others, keepdims=True)) / y.std(others, keepdims=True)
    layer = keras.layers.Normalization(axis=axis)
    if how == "given":
        layer = keras.layers.Normalization(axis=axis, mean=y.mean(others), variance=y.var(others))
    elif how == "adapted":
        layer.adapt(y)
    is_last = axis in (-1, (-1,), None) or (how == "adapted" and axis == len(shape))
    if not is_last:
        with pytest.raises(ValueError, match="over the last axis of the targets.* Received: .*axis.*put it last"):
            scaling.get(layer)
        return
    found = scaling.get(layer)
    if how == "learned":
        assert found.mean is None and found.by_column == (axis is not None)
    else:
        np.testing.assert_allclose((y - np.array(found.mean)) / np.array(found.deviation), by_hand, rtol=1e-3, atol=1e-5)


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
        (lambda: scaling.get(Root(2.0)), TypeError, "a layer with a method `inverse`. Received: .*Root"),
        (lambda: scaling.get(LogNormalization()), TypeError, "a layer with a method `inverse`. Received: .*LogNorm"),
        (lambda: scaling.get(LogNormalizationAndBack()), ValueError, "must be adapted if it is a `Normalization` with"),
        (lambda: scaling.Standardize(1.0), ValueError, "`mean` and `deviation` must be given together"),
        (lambda: scaling.Standardize(deviation=1.0), ValueError, "Received: mean=None, deviation=1.0"),
        (lambda: scaling.Standardize("a", 1.0), ValueError, "as finite numbers"),
        (lambda: scaling.Standardize(np.nan, 1.0), ValueError, "as finite numbers"),
        (lambda: scaling.Standardize([1.0, 2.0], [1.0, 2.0, 3.0]), ValueError, "one per column"),
        (lambda: scaling.Standardize(1.0, 0.0), ValueError, "the deviation above 0. Received: mean=1.0, deviation=0.0"),
        (lambda: scaling.Log("1"), ValueError, "`shift` must be a finite number. Received: shift='1'"),
    ],
)
def test_what_is_no_scaling(make, error, message):
    with pytest.raises(error, match=message):
        make()
