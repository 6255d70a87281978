"""The data of a row in the form in which it is given to `fit`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pandas as pd
import tensorflow as tf

from tests.helpers.keras_twin import Batches
from tests.pairs.model import BATCH, EPOCHS, FIT_CLASS_WEIGHT, examples


def batches_of(row: dict[str, str]) -> list[Any]:
    """The batches of an epoch, `(x, y, sample_weight)`, with None without weights."""
    x, y, weights = examples(row)
    number = len(x) - (8 if row["validation"] == "split" else 0)
    cut = lambda nest, at: tf.nest.map_structure(lambda a: a[at : min(at + BATCH, number)], nest)  # noqa: E731
    return [(cut(x, at), cut(y, at), None if weights is None else cut(weights, at)) for at in range(0, number, BATCH)]


def fit_arguments(row: dict[str, str]) -> dict[str, Any]:
    """The arguments of `fit`, without callbacks."""
    x, y, weights = examples(row)
    arguments: dict[str, Any] = {"epochs": EPOCHS, "verbose": 0, "shuffle": False}
    if row["class_weight"] == "given":
        arguments["class_weight"] = {"kind": FIT_CLASS_WEIGHT}
    if row["validation"] == "split":
        arguments["validation_split"] = 7.5 / len(x)  # 8 rows after rounding, as Keras does it
    elif row["validation"] == "given":
        vx, vy, vw = examples(row, seed=1)
        arguments["validation_data"] = (vx, vy) if vw is None else (vx, vy, vw)
    kind = row["data"]
    batches = [batch if batch[2] is not None else batch[:2] for batch in batches_of(row)]
    if kind in ("arrays", "dataframe"):
        if kind == "dataframe":
            x = pd.DataFrame({f"c{i}": column for i, column in enumerate(np.transpose(x))})
        arguments.update(x=x, y=y, batch_size=BATCH)
        if weights is not None:
            arguments["sample_weight"] = weights
    elif kind == "dataset":
        arguments["x"] = tf.data.Dataset.from_tensor_slices((x, y) if weights is None else (x, y, weights)).batch(BATCH)
    elif kind == "sequence":
        arguments["x"] = Batches(batches)
    else:

        def endless() -> Any:
            while True:
                yield from batches

        arguments.update(x=endless(), steps_per_epoch=updates_of_data(row))
    if row["steps_per_epoch"] == "half":
        arguments["steps_per_epoch"] = updates_of_data(row) // 2
    if row["initial_epoch"] != "0":
        arguments["initial_epoch"] = int(row["initial_epoch"])
    if row["validation"] != "none":
        if row["validation_freq"] != "1":
            arguments["validation_freq"] = int(row["validation_freq"])
        if row["validation_steps"] != "all":
            arguments["validation_steps"] = int(row["validation_steps"])
    return arguments


def updates_of_data(row: dict[str, str]) -> int:
    """The number of updates in which the data are read once."""
    return -(-len(batches_of(row)) // int(row["gradient_accumulation_steps"]))


def windows_of(row: dict[str, str]) -> list[list[Any]]:
    """The batches of each update of `fit`."""
    batches, steps = batches_of(row), int(row["gradient_accumulation_steps"])
    whole = [batches[at : at + steps] for at in range(0, len(batches), steps)]
    epochs = EPOCHS - int(row["initial_epoch"])
    if row["steps_per_epoch"] == "all":
        return whole * epochs
    half = len(whole) // 2
    # As in Keras: an epoch goes on where the one before ended; with Keras 2, a sequence restarts.
    restarts = not hasattr(keras, "ops") and row["data"] == "sequence"
    return whole[:half] * epochs if restarts else (whole * epochs)[: half * epochs]
