"""Numbers that users pass as Python's count with all their digits, whatever the dtypes of targets and networks."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead._ground.tensors import precision_of
from multihead.heads._labels import missing
from multihead.heads._named import new_head
from multihead.heads._value import weight_at
from multihead.rates import values_at

RNG = np.random.default_rng(0)
DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.bool]
DTYPES += [tf.as_dtype(f"{sign}int{size}") for sign in ("", "u") for size in (8, 16, 32, 64)]


def marks_for(dtype):
    """Numbers that could mark a missing label among targets of a dtype, in each form of Python and NumPy."""
    if dtype == tf.bool:
        return [0, 1, 1.0, np.int64(1)]
    if dtype.is_floating:
        highest = min(float(dtype.max), 1e38)
        fractions = [*(-RNG.uniform(1, 1000, 20)), 0.1, -999.9, 1 / 3]
        whole = [-1, -99, float(2**7), *([1e20, -(2.0**100), highest] if dtype == tf.float64 else [])]
        return [*whole, *fractions, *np.float32(fractions[-3:]), np.float64(-999.9), np.array(-999.9)]
    low, high = int(dtype.min), int(dtype.max)
    return [low, high, *map(int, RNG.integers(low, high, 20, dtype.as_numpy_dtype, endpoint=True)), 3.0, np.int8(7)]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_a_mark_is_found_in_targets_of_every_dtype_and_nothing_else_is(dtype):
    for mark in marks_for(dtype):
        spec = new_head("k", lambda x: x, "mse", ignore_label=mark).label_spec
        plain = (float if dtype.is_floating or isinstance(mark, float) else int)(str(mark))
        stored = np.asarray(plain, dtype.as_numpy_dtype)
        forms = [stored, *([np.float64(np.float32(plain))] if dtype == tf.float64 else [])]
        if dtype.is_floating:
            others = [np.nextafter(stored.astype("f8"), np.inf), 3.0 * plain + 1.0, 0.0] if dtype == tf.float64 else [0.0]
        else:
            low, high = (0, 1) if dtype == tf.bool else (dtype.min, dtype.max)
            others = [number for number in (int(plain) - 1, int(plain) + 1) if low <= number <= high]
        targets = tf.constant(np.array([*forms, *others], dtype.as_numpy_dtype))
        found = missing(spec, targets).numpy()
        assert found.tolist() == [True] * len(forms) + [False] * len(others), (mark, targets)


def test_no_number_beyond_single_precision_marks_infinite_targets():
    spec = new_head("k", lambda x: x, "mse", ignore_label=1e300).label_spec
    assert missing(spec, tf.constant([1e300, np.inf, -np.inf], tf.float64)).numpy().tolist() == [True, False, False]


@pytest.mark.parametrize("number", [0.1, 1 / 3, np.pi, 1e-7, 123456.789])
def test_what_functions_of_the_step_return_keeps_its_digits(number):
    step = tf.constant(3, tf.int64)
    for value in (weight_at(lambda step: number, step, "k"), values_at([lambda step: number], step)[0]):
        assert value.dtype == tf.float64 and float(value) == number
    for dtype in (tf.float16, tf.float32, tf.float64):  # a tensor is of its own precision
        assert weight_at(lambda step, dtype=dtype: tf.constant(number, dtype), step, "k").dtype == precision_of([dtype])


X = RNG.normal(size=(12, 3)).astype("float32")


def given(form, targets):
    if form == "dataset":
        return (tf.data.Dataset.from_tensor_slices((X, {"k": targets})).batch(5),)
    if form == "generator":
        return (((X[i : i + 4], {"k": targets[i : i + 4]}) for i in (0, 4, 8)),)
    return X, {"k": tf.constant(targets) if form == "tensor" else targets}


@pytest.mark.parametrize("form", ["array", "tensor", "dataset", "generator"])
def test_marked_labels_do_not_count_however_they_are_given(form, eager_updates):
    """Each mark is one that float32 does not hold, or that has a fraction and is given for targets of both precisions."""
    labels, lacking = np.round(X[:, :1].astype("float64"), 1), RNG.random((12, 1)) < 0.4
    of_fractions = [(-999.9, "f8"), (-999.9, "f4"), (0.05, "f8"), (np.float32(-999.9), "f8")]
    for mark, dtype in (*of_fractions, (-99999999.0, "i8"), (2**31 - 1, "i8")):
        whole = np.round(5 * labels) if dtype == "i8" else labels
        keras.utils.set_random_seed(1)
        trainer = MultiHeadTrainer(keras.layers.Dense(2))
        trainer.add_head("k", keras.layers.Dense(1), "mse", ignore_label=mark)
        trainer.compile(keras.optimizers.SGD(0.0))
        targets = np.where(lacking, -999.9 if isinstance(mark, np.floating) else mark, whole).astype(dtype)
        steps = 3 if form == "generator" else None
        found = trainer.evaluate(*given(form, targets), steps=steps, verbose=0, return_dict=True)["k_loss"]
        p = np.asarray(trainer.heads["k"].module(trainer.encoder(X)), "float64")
        assert found == pytest.approx(((p - whole)[~lacking] ** 2).mean(), rel=1e-5), (mark, dtype)
