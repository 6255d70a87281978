"""Every loss that Keras and TensorFlow Addons ship, as it is made by default: it trains as in Keras, or says what to do."""

from __future__ import annotations

import importlib
import inspect
import warnings

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer
from tests.helpers import tiny

pytestmark = [pytest.mark.usefixtures("eager_updates"), pytest.mark.first_cases(3)]  # the other cases are thorough
ROWS = 9


def addons():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Addons says that it has ended
            return importlib.import_module("tensorflow_addons").losses
    except ImportError:
        return None


def classes():
    found = {}
    for prefix, module in (("", keras.losses), ("addons.", addons())):
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, keras.losses.Loss) and kind is not keras.losses.Loss:
                found.setdefault(kind, prefix + name)
    return {name: kind for kind, name in found.items()}


CLASSES = classes()
OF_THE_BATCH = {"addons.WeightedKappaLoss", "Dice", "Tversky", "Circle"} | {
    f"addons.{name}Loss" for name in ("TripletSemiHard", "TripletHard", "LiftedStruct", "Npairs", "NpairsMultilabel")
}
"""Those that compare the rows of a batch, or divide by what they all have."""


def made(name, **options):
    return CLASSES[name](*([3] if "Kappa" in name else []), **options)


def similarities(rows):
    """A number for each pair of rows."""
    return keras.backend.dot(rows, keras.backend.transpose(rows))


def data_for(name):
    """Inputs, targets, and the units and the activation of the head."""
    rng = np.random.default_rng(0)
    x, classes = rng.normal(size=(ROWS, 5)).astype("float32"), rng.integers(0, 3, ROWS)
    one_hot = np.eye(3, dtype="float32")[classes]
    if name == "addons.NpairsMultilabelLoss":
        return x, np.maximum(one_hot, one_hot[::-1]), 4, similarities
    if name == "addons.NpairsLoss":
        return x, classes, 4, similarities
    if "Triplet" in name or "Lifted" in name or name == "Circle":
        return x, classes, 4, None
    if name == "CTC":
        return rng.normal(size=(ROWS, 6, 5)).astype("float32"), rng.integers(1, 3, (ROWS, 2)), 3, None
    if "Sparse" in name and "Sparsemax" not in name or name == "CategoricalGeneralizedCrossEntropy":
        return x, classes, 3, "softmax"
    if "Categorical" in name or "KL" in name or "Kappa" in name or "Cosine" in name or "Sparsemax" in name:
        return x, one_hot, 3, None if "Sparsemax" in name or "Cosine" in name else "softmax"
    if "GIoU" in name:
        return x, np.sort(rng.random((ROWS, 4)), axis=1).astype("float32"), 4, "sigmoid"
    binary = "Binary" in name or "Sigmoid" in name or "inge" in name or "Contrastive" in name or name in ("Dice", "Tversky")
    y = one_hot[:, :1] if binary else rng.random((ROWS, 1)).astype("float32")
    return x, y, 1, "sigmoid" if binary or name in ("Poisson", "MeanSquaredLogarithmicError") else None


def modules(units, activation):
    keras.utils.set_random_seed(2)
    return keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(units, activation=activation)


def by_keras(loss, data):
    """The loss of a batch, and the weights after a step, by Keras alone."""
    x, y, units, activation = data
    encoder, module = modules(units, activation)
    symbol = keras.Input(x.shape[1:])
    model = keras.Model(symbol, module(encoder(symbol)))
    takes_no_columns = type(loss).__name__ == "NpairsLoss"  # which Keras's `fit` makes of class numbers
    as_given = (lambda y, p: loss(y[:, 0], p)) if takes_no_columns else loss
    model.compile(keras.optimizers.SGD(0.1), as_given, run_eagerly=True)
    value = float(np.mean(loss(y, model(x))))
    model.train_on_batch(x, y)
    return value, model.get_weights()


def by_trainer(loss, data, **options):
    x, y, units, activation = data
    encoder, module = modules(units, activation)
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("a", module, loss, **options)
    trainer.compile(keras.optimizers.SGD(0.1))
    value = trainer.train_on_batch(x, {"a": y}, return_dict=True)["a_loss"]
    return value, tiny.values([*encoder.trainable_variables, *module.trainable_variables])


def assert_alike(found, wanted):
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4)
    for one, other in zip(found[1], wanted[1], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - OF_THE_BATCH))
def test_a_loss_of_rows_trains_as_in_keras(name):
    """By default, and with the reduction that many have in Addons; Keras itself then trains on the sum, and we on the mean."""
    data, accepted = data_for(name), inspect.signature(CLASSES[name]).parameters
    mean = {"reduction": "sum_over_batch_size"} if "reduction" in accepted else {}
    wanted = by_keras(made(name, **mean), data)
    assert_alike(by_trainer(made(name), data), wanted)
    if mean:
        assert_alike(by_trainer(made(name, reduction="none"), data), wanted)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", sorted(OF_THE_BATCH & CLASSES.keys()))
def test_a_loss_of_the_batch_says_so_and_trains_as_in_keras(name):
    data = data_for(name)
    with pytest.raises(
        ValueError, match="Dimensions must be equal" if "Npairs" in name else "`couples_rows=True` to `add_head`"
    ):
        by_trainer(made(name), data)
    assert_alike(by_trainer(made(name), data, couples_rows=True), by_keras(made(name), data))


@pytest.mark.parametrize("name", ["MeanSquaredError", "addons.PinballLoss"])
def test_a_sum_over_the_batch_is_refused(name):
    if name in CLASSES:
        with pytest.raises(
            ValueError, match="must leave its reduction to the trainer.*reduction='sum'.*Leave `reduction` out"
        ):
            by_trainer(made(name, reduction="sum"), data_for(name))


class Mine(keras.losses.Loss):
    """A loss that Keras calls by its `__call__`."""

    def __call__(self, y, p, sample_weight=None):
        return keras.losses.mean_squared_error(y, p)


class MyMean(Mine):
    def __call__(self, y, p, sample_weight=None):
        return (
            keras.ops.mean(super().__call__(y, p))
            if keras.__version__ >= "3"
            else keras.backend.mean(super().__call__(y, p))
        )


def test_a_call_of_its_own_is_what_is_called():
    data = data_for("MeanSquaredError")
    assert_alike(by_trainer(Mine(), data), by_keras(keras.losses.MeanSquaredError(), data))
    with pytest.raises(ValueError, match="from its own `__call__`.*Do not reduce over the batch"):
        by_trainer(MyMean(), data)
