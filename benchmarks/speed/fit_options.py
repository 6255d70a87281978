"""What options of `compile` do to the time of a step in `fit` where the model is small: beside a `keras.Model`.

Two heads, a classifier and a regression, on a dense layer, with arrays in batches of 64 and Adam. In such a step most of the
time is not arithmetic: it is Keras's loop in Python and TensorFlow's overhead for each operation. `steps_per_execution` runs
several steps in one call, and `jit_compile` lets XLA join the operations of a step. Each number is the processor time of a
step relative to the Keras model with its defaults, the median over rounds.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from benchmarks.speed._record import Line, Table, finish, table
from benchmarks.speed._shared import in_turns, parsed, parser_of, ratio
from examples._command_line import whole
from multihead import MultiHeadTrainer

BATCH, FEATURES, CLASSES = 64, 16, 8
OPTIONS: Mapping[str, dict[str, Any]] = {
    "defaults": {},
    "`steps_per_execution=20`": {"steps_per_execution": 20},
    "`jit_compile=True`": {"jit_compile": True},
    "both": {"steps_per_execution": 20, "jit_compile": True},
}


def keras_model(units: int, **options: Any) -> keras.Model:
    """A model of Keras with two outputs."""
    inputs = keras.Input([FEATURES])
    hidden = keras.layers.Dense(units, activation="relu")(inputs)
    kind = keras.layers.Dense(CLASSES, activation="softmax", name="kind")(hidden)
    size = keras.layers.Dense(1, name="size")(hidden)
    model = keras.Model(inputs, {"kind": kind, "size": size})
    losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
    model.compile(keras.optimizers.Adam(), loss=losses, **options)
    return model


def trainer(units: int, **options: Any) -> MultiHeadTrainer:
    """The same as a trainer."""
    made = MultiHeadTrainer(keras.layers.Dense(units, activation="relu"))
    kind = keras.layers.Dense(CLASSES, activation="softmax")
    made.add_head("kind", kind, "sparse_categorical_crossentropy")
    made.add_head("size", keras.layers.Dense(1), "mse")
    made.compile(keras.optimizers.Adam(), **options)
    return made


COLUMNS: Mapping[str, Callable[..., keras.Model]] = {
    "`keras.Model`": keras_model,
    "plain sum": trainer,
    "`UPGrad`": functools.partial(trainer, balancer="UPGrad"),
}


def tables(lines: Sequence[Line]) -> list[Table]:
    return [table(lines, "", ["options"], list(COLUMNS))]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("fit_options", __doc__, rounds=9)
    parser.add_argument("--units", type=whole(1), default=32, metavar="N", help="units of the encoder (default: 32)")
    parser.add_argument("--batches", type=whole(1), default=200, metavar="N", help="steps of a `fit` (default: 200)")
    options = parsed(parser, arguments, batches=20)
    rng, rows = np.random.default_rng(0), BATCH * options.batches
    x = rng.normal(size=(rows, FEATURES)).astype("float32")
    y = {"kind": rng.integers(0, CLASSES, rows), "size": rng.normal(size=(rows, 1)).astype("float32")}

    def run(model: keras.Model) -> None:
        model.fit(x, y, batch_size=BATCH, verbose=0)

    models = {f"{row}, {column}": make(options.units, **OPTIONS[row]) for row in OPTIONS for column, make in COLUMNS.items()}
    runs = {name: functools.partial(run, model) for name, model in models.items()}
    seconds = in_turns(runs, options.rounds, clock=time.process_time)
    first = next(iter(seconds.values()))
    relative = {name: round(ratio(times, first), 4) for name, times in seconds.items()}
    found = [{"options": row, **{column: relative[f"{row}, {column}"] for column in COLUMNS}} for row in OPTIONS]
    finish(options, found, tables)
