"""One run: the trainer of a variant from the start of its seed, trained on the order of its seed, and measured."""

from __future__ import annotations

import functools
import gc
import math
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from multihead._data.data import digest_of
from multihead._ground.types import Callback, Config, Dataset, Layer, Logs, Variable
from multihead._ground.validation import as_python, check_head_names, is_number
from multihead.comparison._data import (
    TEST,
    TRAIN,
    VALIDATION,
    Feed,
    arguments,
    batches_per_epoch,
    check_targets,
    is_endless,
    of_heads,
    parts_of,
)
from multihead.comparison._study import FINAL, Job, Study, Variant, copied
from multihead.trainer import MultiHeadTrainer
from multihead.weighting import Weighting

ROUNDS, MOST_ROUNDS = 7, 28
"""Rounds in which the models take turns, so that a change of the machine's speed affects all; more beside other load."""
PRECISION = 0.02
"""The relative uncertainty of an update's ratio above which there are more rounds."""
_BATCHES = 8
_LEAST_SECONDS, _LEAST_STEPS = 0.05, 3
"""The least time of a model's part of a round, and the least number of its updates."""


def start(study: Study, job: Job) -> tuple[MultiHeadTrainer, dict[str, Dataset], dict[str, int]]:
    """A trainer with the seed's initial weights, whatever the variant; the data; and digests of the weights, by module.

    All heads are built first, so that each draws the same numbers in every variant; those that the variant does not train
    are removed then.
    """
    keras.utils.set_random_seed(job.seed)
    parts = parts_of(study.data, job.seed)
    keras.utils.set_random_seed(job.seed)
    trainer = built(study, job.variant)
    heads = list(trainer.heads)
    check_head_names(f"variants[{job.variant.name!r}]['weights']", job.variant.weights, heads)
    check_targets(parts, heads)
    given = dict(trainer.heads)
    for name, rate in job.head_rates.items():
        multiplier = given[name].learning_rate_multiplier
        if not is_number(multiplier):
            raise ValueError(
                f"`variants[{job.variant.name!r}]['head_rates']` needs heads whose `learning_rate_multiplier` is a number. "
                f"Received: head {name!r} with learning_rate_multiplier={multiplier!r}. Remove `head_rates`, or give the "
                "head a number."
            )
        given[name] = replace(given[name], learning_rate_multiplier=multiplier * rate / job.rate)
    for name, head in given.items() if job.head_rates else ():
        trainer.remove_head(name)
        trainer.add_head(name, **vars(head))
    rate = keras.optimizers.schedules.CosineDecay(job.rate, job.updates)
    common = {"telemetry": None, **study.options}
    trainer.compile(study.optimizer(rate), **copied(common))
    fit_nothing(trainer, study, parts)
    for name in heads:
        if job.head not in ("", name):
            trainer.remove_head(name)
    for name, value in ({job.head: 1.0} if job.head else job.variant.weights).items():
        if not (job.head and callable(trainer.heads[name].weight)):
            trainer.set_weight(name, value)
    trainer.compile(study.optimizer(rate), **copied({**common, **job.variant.options}))
    trainer.get_build_config()  # which builds what the heads and options need
    if callable(study.data) and isinstance(parts[TRAIN], tf.data.Dataset):
        keras.utils.set_random_seed(job.seed)  # a shuffle begins again, of which the learning of scalings has read some
        parts = parts_of(study.data, job.seed)
    modules = {"encoder": trainer.encoder, **{name: head.module for name, head in trainer.heads.items()}}
    digests = {name: digest_of([np.asarray(weight) for weight in _weights(each)]) for name, each in modules.items()}
    keras.utils.set_random_seed(job.seed)
    return trainer, parts, digests


def built(study: Study, variant: Variant) -> MultiHeadTrainer:
    """The trainer of a variant, before it is compiled."""
    argument, build = ("build", study.build) if variant.build is None else (variant.build_argument, variant.build)
    trainer: MultiHeadTrainer = build()
    is_trainer = isinstance(trainer, MultiHeadTrainer)
    if not is_trainer or len(trainer.heads) < 2:
        heads = f" with {len(trainer.heads)} heads" if is_trainer else ""
        raise TypeError(
            f"`{argument}` must return a `MultiHeadTrainer` with at least two heads. "
            f"Received: a {type(trainer).__name__}{heads}. Add the heads in it, and return the trainer."
        )
    return trainer


def fit_nothing(
    trainer: MultiHeadTrainer, study: Study, parts: Mapping[str, Dataset], callbacks: Sequence[Callback] = ()
) -> None:
    """Builds a trainer, checks the data and learns `target_scaling` from one pass over them: a `fit` without an epoch."""
    given = arguments(parts[TRAIN], study.batch_size)
    steps = 1 if is_endless(parts[TRAIN]) else None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`epochs` must be above `initial_epoch`", UserWarning)
        trainer.fit(
            **given, epochs=0, steps_per_epoch=steps, validation_data=parts[VALIDATION], verbose=0, callbacks=[*callbacks]
        )


def parameters_of(trainer: MultiHeadTrainer) -> int:
    """The number of parameters of the encoder and the heads; one that several of them share counts once."""
    modules = [trainer.encoder, *(head.module for head in trainer.heads.values())]
    weights = {id(weight): weight for module in modules for weight in _weights(module)}
    return sum(math.prod(weight.shape) for weight in weights.values())


def _weights(module: Layer) -> Sequence[Variable]:
    found: Sequence[Variable] = getattr(module, "weights", None) or getattr(module, "variables", None) or ()
    return found


def run(study: Study, job: Job) -> Config:
    """Trains and measures one variant on one seed; returns its line."""
    trainer, parts, digests = start(study, job)
    batches = study.batches_per_update
    feed = Feed(parts[TRAIN], batch_size=study.batch_size, seed=job.seed, marked=job.budget * batches)
    fed = feed.batches(list(trainer.heads), job.updates * batches)
    callbacks = _epochs(study, trainer.weighting, parts[TRAIN])
    since, failed = time.perf_counter(), None
    try:
        trainer.fit(fed, steps_per_epoch=job.updates, epochs=1, verbose=0, callbacks=callbacks)
    except ValueError as error:
        if "`max_skipped_updates=" not in str(error):
            raise
        failed = str(error)
    seconds = time.perf_counter() - since
    measured = [name for name in parts if name == VALIDATION or (name == TEST and job.kind == FINAL)]
    metrics = {name: {} if failed else _measured(study, trainer, parts[name]) for name in measured}
    del trainer, parts, fed
    gc.collect()
    found = {"metrics": metrics, "failed": failed, "start": digests, "order": feed.order, "seconds": round(seconds, 3)}
    return {**job.line, **found}


def _measured(study: Study, trainer: MultiHeadTrainer, part: Dataset) -> dict[str, float | None]:
    """The metrics of a trainer on a part of the data, by name; None for one that is not finite."""
    part = of_heads(part, trainer.heads)
    if study.measure is not None:
        found = study.measure(trainer, part)
    else:
        found = trainer.evaluate(**arguments(part, study.batch_size), return_dict=True, verbose=0)
    numbers = {name: float(as_python(value)) for name, value in found.items()}
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


class _Epochs(keras.callbacks.Callback):
    """Tells a weighting after each pass over the training data that an epoch has ended: the `fit` of a run has only one."""

    def __init__(self, weighting: Weighting, updates: float) -> None:
        super().__init__()
        self._weighting, self._updates, self._ended = weighting, updates, 0

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        ended = int((batch + 1) / self._updates + 1e-9)
        if ended > self._ended:
            self._ended = ended
            self._weighting.end_epoch()


def _epochs(study: Study, weighting: Weighting | None, part: Dataset) -> list[_Epochs]:
    """The callback for a weighting that changes at the end of an epoch; none for others."""
    if weighting is None or type(weighting).end_epoch is Weighting.end_epoch:
        return []
    if getattr(weighting, "updates_per_epoch", None) is not None:
        return []
    if is_endless(part):
        raise ValueError(
            f"`weighting` must not wait for the end of an epoch where the training data have no end. Received: "
            f"{type(weighting).__name__}, which does. Set its `updates_per_epoch`, or leave `repeat` out of the data."
        )
    return [_Epochs(weighting, batches_per_epoch(part, study.batch_size) / study.batches_per_update)]


# What an update and a prediction cost


class _Clock(keras.callbacks.Callback):
    """The time of the updates of a `fit` after the first, without its beginning and its end."""

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self.first = -1

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        if self.first < 0:
            self.first, self.since = batch, time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:  # Keras has waited for all results
        self.seconds = time.perf_counter() - self.since


class _Timed:
    """A trainer whose updates and predictions are timed."""

    def __init__(self, study: Study, job: Job) -> None:
        self.trainer, parts, _ = start(study, job)
        feed = Feed(parts[TRAIN], batch_size=study.batch_size, seed=job.seed, marked=1)
        batches = list(feed.batches(list(self.trainer.heads), _BATCHES * study.batches_per_update))
        self._inputs = batches[0][0]
        each = map(tf.data.Dataset.from_tensors, batches)
        self._batches = functools.reduce(tf.data.Dataset.concatenate, each).cache().repeat()
        at_once = study.options.get("steps_per_execution")
        self._at_once = at_once if isinstance(at_once, int) else 1
        self._steps = self._calls = _LEAST_STEPS
        self.update(), self.predict()  # which trace
        enough = (math.ceil(_LEAST_SECONDS / max(seconds, 1e-6)) for seconds in (self.update(), self.predict()))
        self._steps, self._calls = (min(max(number, _LEAST_STEPS), 200) for number in enough)

    def update(self) -> float:
        """Seconds of one update."""
        steps = max(math.ceil((self._steps + 1) / self._at_once), 2) * self._at_once
        clock = _Clock()
        self.trainer.fit(self._batches, steps_per_epoch=steps, epochs=1, verbose=0, callbacks=[clock])
        return clock.seconds / max(steps - 1 - clock.first, 1)

    def predict(self) -> float:
        """Seconds of one prediction for a batch."""
        since = time.perf_counter()
        for _ in range(self._calls):
            self.trainer.predict_on_batch(self._inputs)
        return (time.perf_counter() - since) / self._calls


def measure_cost(study: Study, jobs: Sequence[Job]) -> Config:
    """The line of the cost of a variant.

    `update_ratio` is the time of one update of the variant over the sum of the times of one update of each single-task
    model; `serve_ratio` is the same of a prediction for one batch. Both are medians over rounds; so are the times in
    seconds. `size_ratio` is the same of the numbers of parameters. `jobs` are the variant, and each head alone.
    """
    timed = [_Timed(study, job) for job in jobs]
    rounds = _in_turns(timed)
    ratios = [statistics.median(first / sum(others) for first, *others in of_kind) for of_kind in rounds]
    parameters, *parameters_alone = (parameters_of(each.trainer) for each in timed)
    (update, *updates), (serve, *serves) = ([statistics.median(each) for each in zip(*of_kind)] for of_kind in rounds)
    heads = [job.head for job in jobs[1:]]
    return {
        "cost": jobs[0].variant.name,
        "update_ratio": ratios[0],
        "serve_ratio": ratios[1],
        "size_ratio": parameters / sum(parameters_alone),
        "update_seconds": update,
        "serve_seconds": serve,
        "alone_update_seconds": dict(zip(heads, updates)),
        "alone_serve_seconds": dict(zip(heads, serves)),
        "parameters": parameters,
        "alone_parameters": dict(zip(heads, parameters_alone)),
    }


def _in_turns(timed: Sequence[_Timed]) -> tuple[list[list[float]], list[list[float]]]:
    """The seconds of an update and of a prediction of each model, `[rounds][models]`."""
    updates, predictions = list[list[float]](), list[list[float]]()
    uncertainty = math.inf  # of the ratio, relative to itself: of n ratios the interquartile range over sqrt(n)
    while len(updates) < ROUNDS or (len(updates) < MOST_ROUNDS and uncertainty > PRECISION):
        updates.append([each.update() for each in timed])
        predictions.append([each.predict() for each in timed])
        low, middle, high = np.quantile([first / sum(others) for first, *others in updates], [0.25, 0.5, 0.75])
        uncertainty = float((high - low) / middle / math.sqrt(len(updates))) if middle > 0 else math.inf
    return updates, predictions
