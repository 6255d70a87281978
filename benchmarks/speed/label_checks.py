"""What it costs to check the values of labels: a training step with the checks, relative to one without.

Each ratio of processor times is the median over rounds. Labels are checked for each element, so the cost grows with their
number, and it counts for most where the modules are smallest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.speed._record import Line, Table, finish, table
from benchmarks.speed._shared import in_turns, parsed, parser_of, ratio
from benchmarks.speed.step import sequence_workload, small_workload
from multihead import MultiHeadTrainer, losses


def columns_workload() -> tuple[Any, dict[str, Any], Any, Any]:
    """Twelve columns of which a third is missing, on two layers of 512 units, as for Tox21."""
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(256, 512)).astype("float32"))
    labels = rng.integers(0, 2, (256, 12)).astype("float32")
    labels[rng.random(labels.shape) < 1 / 3] = np.nan
    encoder = keras.Sequential([keras.layers.Dense(512, activation="relu"), keras.layers.Dense(512, activation="relu")])
    return encoder, {"assays": keras.layers.Dense(12, activation="sigmoid")}, x, {"assays": tf.constant(labels)}


LOSSES = {
    "reply": losses.SequenceCrossentropy(),
    "price": "sparse_categorical_crossentropy",
    "assays": "binary_crossentropy",
}
WORKLOADS = {
    "GRU encoder, 3,200 tokens and 128 classes": sequence_workload,
    "two dense layers of 512 units, 256 rows of 12 columns": columns_workload,
    "one dense layer of 32 units, 32 tokens and 32 classes": small_workload,
}


def with_checks(workload: Callable[[], Any], check: bool) -> Callable[[], Any]:
    """The training step of a trainer that checks labels, or does not."""
    encoder, heads, x, targets = workload()
    trainer = MultiHeadTrainer(encoder)
    for name, module in heads.items():
        trainer.add_head(name, module, LOSSES[name])
    trainer.compile("adam", check_labels=check)
    trainer.fit(tf.data.Dataset.from_tensors((x, targets)), verbose=0)
    step = tf.function(trainer.train_step)
    return lambda: step((x, targets))


def tables(lines: Sequence[Line]) -> list[Table]:
    return [table(lines, "A step with checks, relative to one without", ["model"], ["ratio"], ".3f")]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(parser_of("label_checks", __doc__, rounds=31, steps=20), arguments)
    rows = []
    for title, workload in [*WORKLOADS.items()][-1:] if options.quick else WORKLOADS.items():
        runs = {name: with_checks(workload, check) for name, check in (("without", False), ("with", True))}
        seconds = in_turns(runs, options.rounds, options.steps, time.process_time)
        rows.append({"model": title, "ratio": round(ratio(seconds["with"], seconds["without"]), 4)})
    finish(options, rows, tables)
