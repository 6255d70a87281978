"""The share of a training step's time in which it waits for its input.

Two kinds of input: the batches of `examples.seq2seq_price`, from texts to padded ids, with the sizes of its command line;
and arrays given to `fit`, with Keras's batch size.

An epoch of the example is trained by its own training step, which reads each batch from the dataset when it needs it.
`waiting` is the time inside the iterator, that of the first batch included, divided by that of the epoch. Then the same
steps are trained on the same batches, now in memory: `slower` is by how much of its time the first epoch was slower, which
also counts what the input's threads take from the step's. For arrays, `fit` is compared with `fit` on one batch in memory.
Both take turns; each number is the median over rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.speed._record import Line, Table, finish, table
from benchmarks.speed._shared import finished, parsed, parser_of
from examples.seq2seq_price import command, run
from examples.seq2seq_price.batches import training_batches
from examples.seq2seq_price.data import load_data
from multihead import MultiHeadTrainer

QUICK = ["--orders", "200", "--units", "8", "--embedding", "4", "--batch-size", "32"]


def epoch(step: Callable[[Any], Any], batches: Iterable[Any]) -> tuple[float, float, list[Any]]:
    """Seconds of waiting for batches, seconds in all, and the batches of an epoch."""
    read, waiting, start = [], 0.0, time.perf_counter()
    iterator = iter(batches)
    while True:
        asked = time.perf_counter()
        batch = next(iterator, None)
        waiting += time.perf_counter() - asked
        if batch is None:
            return waiting, time.perf_counter() - start, read
        read.append(batch)
        finished(step(batch))


def of_example(arguments: Sequence[str], rounds: int) -> dict[str, float]:
    """What waiting costs the example, as fractions of its time.

    Args:
        arguments: Its command line.
        rounds: The number of epochs.
    """
    options = command.parse(arguments)
    data = load_data(options)
    model = run.build_model(options, data)
    batches, steps = training_batches(data.splits["train"], model.vectorizers, options.batch_size, seed=options.seed)
    batches = model.with_own_targets(batches)
    run.compile_model(options, model, steps)
    model.trainer.fit(batches.take(1), verbose=0)
    step = tf.function(model.trainer.train_step, input_signature=[batches.element_spec])
    finished(step(next(iter(batches))))
    waits, slower = [], []
    for _ in range(rounds):
        waiting, seconds, read = epoch(step, batches)
        in_memory = epoch(step, read)[1]
        waits.append(waiting / seconds)
        slower.append(1.0 - in_memory / seconds)
    return {"waiting": statistics.median(waits), "slower": statistics.median(slower)}


class Clock(keras.callbacks.Callback):
    """Takes the time from the end of the first step to that of the epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            self.start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds = time.perf_counter() - self.start


def small_dense() -> tuple[Any, np.ndarray, dict[str, np.ndarray]]:
    """Two heads on two dense layers, whose step takes about a millisecond, and 3,200 rows of 64 numbers."""
    rng = np.random.default_rng(0)
    encoder = keras.Sequential([keras.layers.Dense(256, activation="relu") for _ in range(2)])
    return encoder, rng.normal(size=(3200, 64)).astype("float32"), _two_targets(rng, 3200)


def recurrent() -> tuple[Any, np.ndarray, dict[str, np.ndarray]]:
    """Two heads on a GRU, and 3,200 rows of 25 ids."""
    rng = np.random.default_rng(0)
    encoder = keras.Sequential([keras.layers.Embedding(500, 64), keras.layers.GRU(128)])
    return encoder, rng.integers(1, 500, (3200, 25)), _two_targets(rng, 3200)


def _two_targets(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    return {name: rng.normal(size=(rows, 1)).astype("float32") for name in ("a", "b")}


def of_arrays(made: tuple[Any, np.ndarray, dict[str, np.ndarray]], rounds: int, rows: int) -> dict[str, float]:
    """What waiting costs `fit` on shuffled arrays, as a fraction of its time.

    Args:
        made: The encoder, the inputs and the targets.
        rounds: The number of epochs.
        rows: The number of rows.
    """
    encoder, x, targets = made
    x, targets = x[:rows], {name: values[:rows] for name, values in targets.items()}
    trainer = MultiHeadTrainer(encoder)
    for name in targets:
        trainer.add_head(name, keras.layers.Dense(1), "mse")
    trainer.compile("adam", check_labels=False)  # a dataset's are checked in each step, those of arrays before
    one = tf.data.Dataset.from_tensors((x[:32], {name: values[:32] for name, values in targets.items()})).cache()
    clock, slower = Clock(), []
    common = {"callbacks": [clock], "verbose": 0}
    for number in range(rounds + 1):  # the first one traces
        trainer.fit(x, targets, batch_size=32, **common)
        seconds = clock.seconds
        trainer.fit(one.repeat(rows // 32), **common)
        if number:
            slower.append(1.0 - clock.seconds / seconds)
    return {"slower": statistics.median(slower)}


TITLES = {"waiting": "waiting, %", "slower": "slower than in memory, %"}


def tables(lines: Sequence[Line]) -> list[Table]:
    return [table(lines, "", ["input"], [], ".1f")]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(parser_of("input_wait", __doc__, rounds=5), arguments)
    rounds, rows = options.rounds, 64 if options.quick else 3200
    inputs = {
        "batches of the example": lambda: of_example(QUICK if options.quick else [], rounds),
        "arrays, small dense model": lambda: of_arrays(small_dense(), rounds, rows),
        "arrays, GRU": lambda: of_arrays(recurrent(), rounds, rows),
    }
    rows = [
        {"input": name, **{TITLES[key]: round(100 * share, 2) for key, share in found().items()}}
        for name, found in inputs.items()
    ]
    finish(options, rows, tables)
