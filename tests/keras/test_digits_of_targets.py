"""Targets of float64 whose differences float32 does not hold: exact, or refused, wherever and in whatever form they come."""

from __future__ import annotations

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

from multihead import Head, MultiHeadTrainer, scaling
from multihead.comparison._data import data_parts
from multihead.testing import check_head
from tests.helpers.keras_twin import Batches

# Keras 3 says so at the end of every dataset whose length it does not know.
pytestmark = [
    pytest.mark.usefixtures("eager_updates"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning"),
]

RNG = np.random.default_rng(0)
ROWS, BATCH = 24, 8
X = RNG.normal(size=(ROWS, 3)).astype("float32")


class Lazy:
    """An array of another kind, perhaps in a file."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array, dtype)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, rows):
        return self.array[rows]


class Again:
    """Can be iterated again and again, and is nothing that Keras knows."""

    def __init__(self, given):
        self.given = given

    def __iter__(self):
        return iter(self.given)


FORMS = {
    "array": lambda v: v,
    "one axis": lambda v: v[:, 0],
    "list": lambda v: v.tolist(),
    "series": lambda v: pandas.Series(v[:, 0]),
    "objects": lambda v: pandas.Series([None, *v[1:, 0]], dtype=object),
    "masked": lambda v: np.ma.masked_array(v, np.arange(ROWS)[:, None] == 0),
    "tensor": tf.constant,
    "lazy": Lazy,
}
FIRST = {"objects": 1, "masked": 1}  # the first row with a label


def batches(form, v):
    """Batches of targets in a form; `form(v)[rows]` would not slice all of them."""
    return [(X[i : i + BATCH], {"k": part}) for i in range(0, ROWS, BATCH) for part in [FORMS[form](v)[i : i + BATCH]]]


def evaluated(trainer, *data, **options):
    return trainer.evaluate(*data, verbose=0, return_dict=True, **options)["k_loss"]


def fitted(trainer, *data, **options):
    return trainer.fit(*data, batch_size=options.pop("size", None), verbose=0, **options).history


DOORS = {
    "fit": lambda t, form, v: fitted(t, X, {"k": FORMS[form](v)}, size=ROWS)["k_loss"][0],
    "evaluate": lambda t, form, v: evaluated(t, X, {"k": FORMS[form](v)}),
    "one head alone": lambda t, form, v: evaluated(t, X, FORMS[form](v)),
    "validation": lambda t, form, v: fitted(t, X, {"k": 1e9 * X[:, 0]}, validation_data=(X, {"k": FORMS[form](v)}))[
        "val_k_loss"
    ][0],
    "train_on_batch": lambda t, form, v: t.train_on_batch(X, {"k": FORMS[form](v)}, return_dict=True)["k_loss"],
    "test_on_batch": lambda t, form, v: t.test_on_batch(X, {"k": FORMS[form](v)}, return_dict=True)["k_loss"],
    "compute_gradients": lambda t, form, v: float(t.compute_gradients((X, {"k": FORMS[form](v)})).loss),
    "generator": lambda t, form, v: evaluated(t, iter(batches(form, v)), steps=ROWS // BATCH),
    "iterable": lambda t, form, v: evaluated(t, Again(batches(form, v))),
    "sequence": lambda t, form, v: evaluated(t, Batches(batches(form, v))),
    "dataset": lambda t, form, v: evaluated(t, tf.data.Dataset.from_tensor_slices((X, {"k": v})).batch(BATCH)),
}


def made(mean, deviation, columns=1):
    """A trainer that predicts the mean for ever."""
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    scaler = scaling.Standardize(mean=mean, deviation=deviation)
    trainer.add_head("k", keras.layers.Dense(columns, kernel_initializer="zeros"), "mse", target_scaling=scaler)
    trainer.compile(keras.optimizers.SGD(0.0))
    return trainer


def loss_of(door, form, v):
    """The loss that a door gives, which is 1 for exact labels: the mean square of standardized ones."""
    counted = v[FIRST.get(form, 0) :]
    return DOORS[door](made(counted.mean(), counted.std()), form, v)


def takes(door, form):
    """Whether a form can be given at a door: Keras 3 takes no other arrays as single batches; lists are not cut."""
    is_lazy = form == "lazy" and keras.__version__ >= "3" and door.endswith("_on_batch")
    return not is_lazy and (door != "dataset" or form == "array")


PAIRS = [(door, list(FORMS)[(place + turn) % len(FORMS)]) for turn in range(len(FORMS)) for place, door in enumerate(DOORS)]
CASES = [(door, form) for door, form in PAIRS if takes(door, form)]  # the first have each door and each form


@pytest.mark.first_cases(len(DOORS))
@pytest.mark.parametrize(("door", "form"), CASES)
def test_digits_are_kept_or_asked_for(door, form):
    base, step = 10.0 ** RNG.uniform(6, 12), RNG.uniform(1, 3)
    close = base + base * 2.0**-24 * step * np.arange(ROWS)[:, None]
    with_scale = (base + base * RNG.uniform(0.1, 1, ROWS))[:, None]
    assert loss_of(door, form, with_scale) == pytest.approx(1, rel=1e-4)
    try:
        found = loss_of(door, form, close)
    except ValueError as error:
        assert "['k']` must keep its differences in float32" in str(error)
        if form == "tensor":  # which only the arrays of Keras 3 round
            assert keras.__version__ >= "3" and door in ("fit", "evaluate", "one head alone", "validation")
    else:
        assert found == pytest.approx(1, rel=1e-4)


SORTED = 101325.0 + np.repeat(500.0 * np.arange(ROWS // BATCH), BATCH) + RNG.uniform(-0.1, 0.1, ROWS)


@pytest.mark.first_cases(7)
@pytest.mark.parametrize("door", DOORS)
def test_labels_that_are_close_in_one_batch_alone_are_taken(door):
    parts = SORTED.reshape(-1, BATCH, 1) if door.endswith("on_batch") or door == "compute_gradients" else [SORTED[:, None]]
    for part in parts:
        rows = np.resize(part, (ROWS, 1))
        assert loss_of(door, "array", rows) == pytest.approx(1, rel=1e-3)


ELSEWHERE = {
    "diagnose": lambda t, v: t.diagnose(X, {"k": v}),
    "compare": lambda t, v: data_parts({"train": (X, {"k": v}), "validation": (X, {"k": v})}, 0),
    "check_head": lambda t, v: check_head(Head(keras.layers.Dense(1), "mse"), X, v),
}


@pytest.mark.parametrize("place", ELSEWHERE)
def test_what_only_measures_asks_for_digits_too(place):
    close = 1.7e9 + np.arange(ROWS)[:, None]
    with pytest.raises(ValueError, match="must keep its differences in float32"):
        ELSEWHERE[place](made(1.7e9, 7.0), close)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", [iter, Again, Batches])
def test_batches_of_a_stream_are_seen_together(kind, size):
    """However small: a column of a batch of one row has no differences."""

    def given(v):
        return kind([(X[i : i + size], {"k": v[i : i + size]}) for i in range(0, ROWS, size)])

    other = (1e6 * X[:, :1]).astype("float64")  # apart, in another column
    errors = (ValueError, tf.errors.InvalidArgumentError)  # TensorFlow wraps those of later batches
    with pytest.raises(
        errors, match=r"`targets\['k'\]` must keep its differences in float32.*between 1700000000 and 170000"
    ):
        evaluated(made(1.7e9, 7.0, columns=2), given(np.concatenate([other, 1.7e9 + np.arange(ROWS)[:, None]], axis=1)))
    pairs = 1e6 * (1 + np.arange(ROWS) // 2 % 5)[:, None] + 0.01 * (np.arange(ROWS) % 2)[:, None]
    assert np.isfinite(evaluated(made(3e6, 1e6), given(pairs)))  # labels that are close by chance, in a batch of two


def test_columns_inputs_and_weights():
    steady = 101325.1 + 0.003 * np.arange(ROWS)
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    trainer.add_head("k", keras.layers.Dense(2), "mse")
    trainer.compile("sgd")
    x = np.stack([steady, steady, X[:, 0]], 1)
    y = np.stack([1e6 * X[:, 0], np.where(X[:, 1] > 0, np.nan, 3.0)], 1)
    trainer.predict(x, verbose=0)
    trainer.evaluate(x, y, sample_weight=steady, verbose=0)  # of inputs and weights, nobody knows what differences mean
    with pytest.raises(ValueError, match="between 101325.1 and 101325.169, rounded by up to"):
        trainer.evaluate(x, np.stack([y[:, 0], steady], 1), verbose=0)
