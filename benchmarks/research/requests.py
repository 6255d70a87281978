"""Requests to an assistant: does the intent help to find the slots, or the slots the intent?

The model is that of `examples.intents`, with narrower recurrent layers; the data are Snips. In "half without slots", every
second sentence has its intent only. The weight is chosen on 700 of the training sentences; results are those on the
validation file.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.research.runner import DataSet
from examples._command_line import InputError
from examples._requests import columns, read_requests
from examples._rows import Dialect
from examples._spans import SpanF1
from examples.intents import Model
from multihead import MultiHeadTrainer

UNITS, BATCH, NUM_HELD_OUT = 64, 128, 700
METRICS = {"intent": ("intent_accuracy", "max"), "slots": ("slots_f1", "max")}
WEIGHTS = ("slots 0.3", "slots 3")


def read(folder: Path, part: str) -> list[dict[str, str]]:
    """The sentences of `snips_{part}.csv.gz`.

    Raises:
        InputError: There is no such file.
    """
    path = folder / f"snips_{part}.csv.gz"
    if not path.exists():
        raise InputError(
            f"`--data` must be a folder with {path.name}. Received: {str(folder)!r}. Pass the folder that has it."
        )
    return read_requests(str(path), "csv", Dialect(), lambda read: None)


def measure(tags: list[str], trainer: MultiHeadTrainer, part: tf.data.Dataset) -> dict[str, float]:
    """F1 of slots, and accuracy of intents."""
    f1, right = SpanF1(tags), []
    for x, y in part:
        found = trainer.predict_on_batch(x)
        found = found if isinstance(found, dict) else {next(iter(y)): found}
        if "slots" in y:
            f1.update_state(y["slots"], tf.one_hot(found["slots"], len(tags)))
        if "intent" in y:
            right.extend(np.argmax(found["intent"], axis=1) == y["intent"])
    scores = {"intent": ("intent_accuracy", np.mean(right or 0)), "slots": ("slots_f1", f1.result())}
    return {name: float(score) for head, (name, score) in scores.items() if head in y}


def sentences(size: int, updates: int, has_all_slots: bool, folder: Path, every: int = 1) -> DataSet:
    """So many sentences to train on, with the slots of all of them or of every second one."""
    rows = read(folder, "train")
    held_out, rows = rows[:NUM_HELD_OUT], rows[NUM_HELD_OUT:][: size // every]
    if not has_all_slots:
        rows = [{**row, "tags": row["tags"] if number % 2 else ""} for number, row in enumerate(rows)]
    test = read(folder, "valid")
    model = Model(rows, held_out + test)

    def fixed(part: list[dict[str, str]]) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(columns(part)).batch(NUM_HELD_OUT).map(model.data).cache()

    def data(seed: int) -> dict[str, Any]:
        train = model.batches(rows, seed, BATCH).take(updates)
        return {"train": train, "validation": fixed(held_out), "test": fixed(test)}

    def build(units: int) -> MultiHeadTrainer:
        return Model(rows, held_out + test, units).trainer

    measured = functools.partial(measure, model.tags)
    return DataSet(build, UNITS, data, METRICS, updates, BATCH, {"Adam": (5e-3,)}, measured, clip=5.0)


SETS = {
    "1,000 sentences": functools.partial(sentences, 1000, 300, True),
    "1,000, half without slots": functools.partial(sentences, 1000, 300, False),
    "all sentences": functools.partial(sentences, 13084, 200, True),
    "all, half without slots": functools.partial(sentences, 13084, 200, False),
}
