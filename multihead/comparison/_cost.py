"""What an update and a prediction cost: measured times of a variant and of the single-task models, in turns."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead.comparison._data import TRAIN, Feed
from multihead.comparison._run import Started, parameters_of, start
from multihead.comparison._study import Job, Study

ROUNDS, MOST_ROUNDS = 7, 28
"""Rounds in which the models take turns, so that a change of the machine's speed affects all; more beside other load."""
PRECISION = 0.02
"""The relative uncertainty of an update's ratio above which there are more rounds."""
BATCHES = 8
_LEAST_SECONDS = 0.05
"""The least time of a model's part of a round, with at least `_LEAST_STEPS` updates."""
_LEAST_STEPS = 3


class _Clock(keras.callbacks.Callback):
    """The time of the updates of a `fit` after the first, without its beginning and its end."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._first = -1
        self.seconds = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._first < 0:
            self._first, self._since = batch, time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # Keras has waited for all results
        self.seconds = time.perf_counter() - self._since

    def per_update(self, updates: int) -> float:
        """Seconds of one update, for a number of updates of the `fit`."""
        return self.seconds / max(updates - 1 - self._first, 1)


class _Timed:
    """A trainer whose updates and predictions are timed.

    Args:
        started: The trainer.
        study: What is the same for all runs.
        seed: The seed of the order of the data.
    """

    def __init__(self, started: Started, study: Study, seed: int) -> None:
        self._trainer = started.trainer
        heads = list(self._trainer.heads)
        options = {"batch_size": study.batch_size, "seed": seed, "marked": 1}
        number = BATCHES * study.accumulate
        feed = Feed(started.data[TRAIN], started.all_heads, **options)
        batches = list(feed.batches(heads, number))
        self._inputs = batches[0][0]
        specs = _specs(batches)
        ready = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=specs)
        self._batches = ready.apply(tf.data.experimental.assert_cardinality(len(batches))).cache().repeat()
        self._clock = _Clock()
        self._at_once = study.options.get("steps_per_execution") or 1
        self._update(_LEAST_STEPS)
        self._predict(1)
        enough = (math.ceil(_LEAST_SECONDS / max(time, 1e-6)) for time in (self._update(_LEAST_STEPS), self._predict(1)))
        self._steps, self._calls = (min(max(number, _LEAST_STEPS), 200) for number in enough)

    def update(self) -> float:
        """Seconds of one update."""
        return self._update(self._steps)

    def predict(self) -> float:
        """Seconds of one prediction for a batch."""
        return self._predict(self._calls)

    def _update(self, steps: int) -> float:
        at_once = self._at_once if isinstance(self._at_once, int) else 1
        steps = math.ceil((steps + 1) / at_once) * at_once
        steps = max(steps, 2 * at_once)
        self._trainer.fit(self._batches, steps_per_epoch=steps, epochs=1, verbose=0, callbacks=[self._clock])
        return self._clock.per_update(steps)

    def _predict(self, calls: int) -> float:
        since = time.perf_counter()
        for _ in itertools.repeat(None, calls):
            self._trainer.predict_on_batch(self._inputs)
        return (time.perf_counter() - since) / calls


def _specs(batches: Sequence[Any]) -> Any:
    """Specs that fit all batches: all sizes are open."""
    return tf.nest.map_structure(_open, batches[0])


def _open(value: Any) -> Any:
    spec = tf.type_spec_from_value(value if tf.is_tensor(value) else tf.convert_to_tensor(value))
    if isinstance(spec, tf.TensorSpec):
        return tf.TensorSpec([None] * len(spec.shape), spec.dtype)
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec([None] * len(spec.shape), spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return tf.SparseTensorSpec([None] * len(spec.shape), spec.dtype)


def measure_cost(study: Study, jobs: tuple[Job, ...]) -> dict[str, Any]:
    """The line of the cost of a variant.

    `update_ratio` is the time of one update of the variant over the sum of the times of one update of each single-task
    model; `serve_ratio` is the same of a prediction for one batch. Both are medians over rounds; so are the times in
    seconds. `size_ratio` is the same of the numbers of parameters.

    Args:
        study: What is the same for all runs.
        jobs: The variant, and each head alone.
    """
    models = [start(study, job) for job in jobs]
    parameters, *parameters_alone = (parameters_of(each.trainer) for each in models)
    timed = [_Timed(each, study, job.seed) for each, job in zip(models, jobs)]
    updates, predictions = _in_turns(timed)
    (joint, *alone), (serving, *serving_alone) = ([statistics.median(each) for each in zip(*rows)] for rows in
                                                  (updates, predictions))  # fmt: skip
    heads = [job.head for job in jobs[1:]]
    return {
        "cost": jobs[0].variant,
        "update_ratio": _ratio(updates),
        "serve_ratio": _ratio(predictions),
        "size_ratio": parameters / sum(parameters_alone),
        "update_seconds": joint,
        "serve_seconds": serving,
        "alone_update_seconds": dict(zip(heads, alone)),
        "alone_serve_seconds": dict(zip(heads, serving_alone)),
        "parameters": parameters,
        "alone_parameters": dict(zip(heads, parameters_alone)),
    }


def _in_turns(timed: Sequence[_Timed]) -> tuple[list[list[float]], list[list[float]]]:
    """The seconds of an update and of a prediction of each model, `[rounds][models]`."""
    updates: list[list[float]] = []
    predictions: list[list[float]] = []
    while len(updates) < ROUNDS or (len(updates) < MOST_ROUNDS and _uncertainty(updates) > PRECISION):
        updates.append([each.update() for each in timed])
        predictions.append([each.predict() for each in timed])
    return updates, predictions


def _ratio(rounds: Sequence[Sequence[float]]) -> float:
    """The median over rounds of the first time over the sum of the others."""
    return statistics.median(_ratios(rounds))


def _ratios(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [first / sum(others) for first, *others in rounds]


def _uncertainty(rounds: Sequence[Sequence[float]]) -> float:
    """How far the ratio may be off, relative to itself: of n ratios the interquartile range over sqrt(n)."""
    low, middle, high = np.quantile(_ratios(rounds), [0.25, 0.5, 0.75])
    return float((high - low) / middle / math.sqrt(len(rounds))) if middle > 0 else math.inf


def updates_at_equal_cost(updates: int, cost: Mapping[str, Any]) -> int:
    """The number of updates of a variant that take as long as so many of each single-task model together."""
    return max(round(updates / float(cost["update_ratio"])), 1)
