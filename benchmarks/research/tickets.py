"""Can the plain sum starve a head when everything is standardized? Tickets with 60 rare topics and a noisy number.

The number has mean 0 and standard deviation 1, the topics are 0 or 1; the losses are Keras's own means. Half of the
number's variance is noise, so its gradient never becomes small, while a mean over 60 rare topics is small from the start.
Both heads read an encoder of 8 units.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

from benchmarks.research.runner import CONSTANT, DataSet
from multihead import MultiHeadTrainer

NUM_TOPICS, NUM_TRAINING = 60, 3000


def tickets(seed: int = 0, count: int = 4000) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Features, `[count, 32]`, and the targets of both heads, all standardized."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 32)).astype("float32")
    mixes = rng.normal(size=(8, NUM_TOPICS))
    topics = x[:, :8] @ (mixes / np.linalg.norm(mixes, axis=0)) > 2.0  # 2.3 % positive
    waves, slope = rng.normal(size=(8, 6)) / 8**0.5, rng.normal(size=8) / 8**0.5
    signal = np.sin(2.0 * x[:, 8:16] @ waves).sum(axis=1) + x[:, 16:24] @ slope
    hours = signal / signal.std() + rng.normal(size=count)
    hours = (hours - hours.mean()) / hours.std()
    return x, {"topics": topics.astype("float32"), "hours": hours[:, None].astype("float32")}


def build(units: int = 8) -> MultiHeadTrainer:
    """A trainer with both heads."""
    trainer = MultiHeadTrainer(keras.layers.Dense(units, activation="tanh"))
    trainer.add_head("topics", keras.layers.Dense(NUM_TOPICS, activation="sigmoid"), "binary_crossentropy")
    hours = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    trainer.add_head("hours", hours, "mse")
    return trainer


def measure(trainer: MultiHeadTrainer, part: Any) -> dict[str, float]:
    """Average precision over all topics of all rows, and the explained part of the number's variance."""
    x, y = part
    predicted, found = trainer.predict(x, verbose=0), {}
    predicted = predicted if isinstance(predicted, dict) else {next(iter(y)): predicted}
    if "topics" in y:
        hits = y["topics"].ravel()[np.argsort(-predicted["topics"].ravel(), kind="stable")]
        found["topics_precision"] = float(np.mean((np.cumsum(hits) / np.arange(1, hits.size + 1))[hits > 0]))
    if "hours" in y:
        found["hours_R2"] = float(1.0 - np.mean((predicted["hours"] - y["hours"]) ** 2) / np.var(y["hours"]))
    return found


def data_set(folder: Path, every: int = 1) -> DataSet:
    """The data of a seed are drawn when it is trained."""

    def data(seed: int) -> dict[str, Any]:
        x, y = tickets(seed)
        rest = (x[NUM_TRAINING:], {head: each[NUM_TRAINING:] for head, each in y.items()})
        train = slice(0, NUM_TRAINING, every)
        rows = (x[train], {head: each[train] for head, each in y.items()})
        return {"train": rows, "validation": rest, "test": rest}  # nothing is chosen

    metrics = {"topics": ("topics_precision", "max"), "hours": ("hours_R2", "max")}
    return DataSet(build, 8, data, metrics, 12 * 47, 64, {CONSTANT: (3e-3,)}, measure)


SETS = {"tickets": data_set}
