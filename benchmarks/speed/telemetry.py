"""What telemetry costs: processor time of a training step, relative to one with `telemetry=None`.

The workloads are those of `step`, and a convolutional encoder with three heads. Each ratio is the median over rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.speed._record import Line, Row, Table, finish, significant, table
from benchmarks.speed._shared import in_turns, parsed, parser_of, ratios
from benchmarks.speed.step import by_hand, sequence_workload, small_workload, with_eight_heads, with_trainer
from multihead import MultiHeadTrainer

VARIANTS: dict[str, dict[str, Any]] = {
    "None": {"telemetry": None},
    '`"norms"`': {"telemetry": "norms"},
    '`"full"`': {"telemetry": "full"},
}


def with_pictures(**options: Any) -> Callable[[], Any]:
    """The training step of a convolutional encoder with three heads."""
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(32, 32, 32, 3)).astype("float32"))
    targets = {"kind": tf.constant(rng.integers(0, 5, 32)), "size": tf.constant(rng.normal(size=(32, 1)).astype("float32"))}
    targets["age"] = targets["size"] + 1.0
    layers = [keras.layers.Conv2D(n, 3, strides=2, activation="relu", padding="same") for n in (32, 64, 128)]
    trainer = MultiHeadTrainer(keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D()]))
    trainer.add_head("kind", keras.layers.Dense(5, activation="softmax"), "sparse_categorical_crossentropy")
    for name in ("size", "age"):
        trainer.add_head(name, keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.Adam(1e-3), **options)
    trainer.fit(tf.data.Dataset.from_tensors((x, targets)), verbose=0, shuffle=False)
    step = tf.function(trainer.train_step)
    return lambda: step((x, targets))


WORKLOADS: dict[str, Callable[..., Callable[[], Any]]] = {
    "GRU encoder, sequence and class": lambda **options: with_trainer(sequence_workload, **options),
    "convolutions, three heads": with_pictures,
    "two small dense heads": lambda **options: with_trainer(small_workload, **options),
    "eight small dense heads": with_eight_heads,
}
STEP = "step, ms"
BY_HAND = {"GRU encoder, sequence and class": sequence_workload, "two small dense heads": small_workload}


def tables(lines: Sequence[Line]) -> list[Table]:
    title = "Processor time of a step, relative to `telemetry=None`"
    return [table(lines, title, ["workload"], (), ".3f", {STEP: ".3g"})]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("telemetry", __doc__, rounds=15, steps=10)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS), help="which workloads")
    options = parsed(parser, arguments, workloads=["two small dense heads"])
    rows: list[Row] = []
    for title in options.workloads:
        runs = {name: WORKLOADS[title](**variant) for name, variant in VARIANTS.items()}
        if title in BY_HAND:
            runs["custom training loop"] = by_hand(BY_HAND[title])
        seconds = in_turns(runs, options.rounds, options.steps, time.process_time)
        step, (_, *others) = significant(1e3 * statistics.median(seconds["None"])), ratios(seconds).items()
        rows.append({"workload": title, STEP: step, **{name: round(value, 4) for name, value in others}})
    finish(options, rows, tables)
