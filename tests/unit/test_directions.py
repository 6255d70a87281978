"""Which statistics are better if they are lower, and which if they are higher."""

from __future__ import annotations

import keras
import pytest

from multihead.heads._directions import direction
from multihead.heads._metric_names import log_name
from multihead.heads._named import new_head

pytestmark = pytest.mark.mathematics


class Mine(keras.metrics.MeanAbsoluteError):
    """A metric of one's own, of a known kind."""


def closeness(targets, predictions):
    return predictions - targets


CASES = [
    ("accuracy", "max"),
    ("acc", "max"),
    ("mae", "min"),
    ("AUC", "max"),
    ("sparse_categorical_accuracy", "max"),
    ("mean_squared_error", "min"),
    (keras.metrics.Precision(name="p"), "max"),
    (keras.metrics.AUC, "max"),
    (keras.metrics.FalsePositives(name="wrong"), "min"),
    (keras.metrics.CosineSimilarity(name="similarity"), "max" if keras.__version__[0] == "3" else None),
    (keras.metrics.SparseTopKCategoricalAccuracy(3), "max"),
    (keras.metrics.RootMeanSquaredError(), "min"),
    (keras.metrics.MeanMetricWrapper(keras.losses.mean_squared_error, name="mine"), "min"),
    (Mine(name="mine"), "min"),
    (keras.metrics.MeanMetricWrapper(closeness, name="mean"), None),
    (closeness, None),
]


@pytest.mark.parametrize(("metric", "expected"), CASES)
def test_directions(metric, expected):
    head = new_head("price", keras.layers.Dense(1), "mse", metrics=[metric])
    name = log_name(metric)
    assert direction(f"val_price_{name}", head) == direction(f"price_{name}", head) == expected


def test_losses_are_better_if_lower_and_nothing_is_known_of_others():
    head = new_head("price", keras.layers.Dense(1), "mse")
    assert direction("val_price_loss", head) == "min" and direction("val_price_mae", head) is None
