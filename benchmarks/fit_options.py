"""What options of `compile` do to the time of a step in `fit` where the model is small: beside a `keras.Model`.

    python -m benchmarks.fit_options [--rounds 9] [--units 32]

Two heads, a classifier and a regression, on a dense layer, with arrays in batches of 64 and Adam. In such a step most of the
time is not arithmetic: it is Keras's loop in Python and TensorFlow's overhead for each operation. `steps_per_execution` runs
several steps in one call, and `jit_compile` lets XLA join the operations of a step. The models take turns; each number is
the processor time of a step relative to the Keras model with its defaults, the median over rounds. Other programs have less
effect on processor time.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks._results import markdown
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


def measure(units: int, steps: int, rounds: int) -> dict[tuple[str, str], float]:
    """Milliseconds of a step, the median over rounds, by column and row."""
    rng, rows = np.random.default_rng(0), BATCH * steps
    x = rng.normal(size=(rows, FEATURES)).astype("float32")
    y = {"kind": rng.integers(0, CLASSES, rows), "size": rng.normal(size=(rows, 1)).astype("float32")}
    models = {(column, row): make(units, **OPTIONS[row]) for row in OPTIONS for column, make in COLUMNS.items()}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in models}
    for number in range(rounds + 1):
        for key, model in models.items():
            start = time.process_time()
            model.fit(x, y, batch_size=BATCH, verbose=0)
            if number > 0:  # the first traces
                times[key].append(1e3 * (time.process_time() - start) / steps)
    return {key: statistics.median(values) for key, values in times.items()}


def table(times: Mapping[tuple[str, str], float]) -> str:
    """The times relative to the Keras model with its defaults, in Markdown."""
    first = times[next(iter(COLUMNS)), "defaults"]
    rows = [[row, *(f"{times[column, row] / first:.2f}" for column in COLUMNS)] for row in OPTIONS]
    return markdown([f"TensorFlow {tf.__version__}; 1.00 is {first:.2f} ms", *COLUMNS], rows)


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=whole(1), default=9, help="number of rounds (default: 9)")
    parser.add_argument("--units", type=whole(1), default=32, help="units of the encoder (default: 32)")
    parser.add_argument("--steps", type=whole(1), default=200, help="steps of a round, a multiple of 20 (default: 200)")
    parser.add_argument("--quick", action="store_true", help="one round of 20 steps, to see that it runs")
    options = parser.parse_args(arguments)
    rounds, steps = (1, 20) if options.quick else (options.rounds, options.steps)
    print(table(measure(options.units, steps, rounds)), end="")


if __name__ == "__main__":
    main()
