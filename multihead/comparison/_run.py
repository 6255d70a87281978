"""One run: the trainer of a variant from the start of its seed, trained on the order of its seed, and measured."""

from __future__ import annotations

import functools
import gc
import itertools
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from multihead._data.data import digest_of
from multihead._ground.layers import distinct
from multihead._ground.types import Config, Dataset, Logs, Variable
from multihead._ground.validation import as_python, check_head_names, is_number
from multihead.comparison._data import (
    TEST,
    TRAIN,
    VALIDATION,
    arguments,
    batches_of,
    batches_per_epoch,
    check_targets,
    data_parts,
    is_endless,
    keep_heads,
    recorded,
)
from multihead.comparison._study import FINAL, Job, Study, Variant, copied_options
from multihead.trainer import MultiHeadTrainer
from multihead.weighting import Weighting

ROUNDS = 11
"""How often the models are timed in turns, so that a change of the machine's speed affects all."""
LEAST_SECONDS, LEAST_STEPS = 0.05, 3
"""The least time of a model's part of a round, and the least number of its updates and of its predictions."""
_TIMED_BATCHES = 8


def start(study: Study, job: Job) -> tuple[MultiHeadTrainer, dict[str, Dataset], int]:
    """A trainer with the seed's initial weights, whatever the variant; the data; and a digest of the weights of all heads.

    All heads are built first, so that they draw the same numbers in every variant; those that the variant does not train
    are removed then.
    """
    keras.utils.set_random_seed(job.seed)
    parts = data_parts(study.data, job.seed)
    keras.utils.set_random_seed(job.seed)
    trainer = new_trainer(study, job.variant)
    heads = dict(trainer.heads)
    check_head_names(f"variants[{job.variant.name!r}]['weights']", job.variant.weights, list(heads))
    check_targets(parts, heads)
    for name, rate in job.head_rates.items():
        multiplier = heads[name].learning_rate_multiplier
        if not is_number(multiplier):
            raise ValueError(
                f"`variants[{job.variant.name!r}]['head_rates']` needs heads whose `learning_rate_multiplier` is a number. "
                f"Received: head {name!r} with learning_rate_multiplier={multiplier!r}. Remove `head_rates`, or give the "
                "head a number."
            )
        trainer.remove_head(name)
        trainer.add_head(name, **vars(replace(heads[name], learning_rate_multiplier=multiplier * rate / job.rate)))
    rate = keras.optimizers.schedules.CosineDecay(job.rate, job.updates)
    common = {"telemetry": None, **study.options}
    scaled = {name: value for name, value in job.variant.options.items() if name == "target_scaling"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The model .* of which this trainer was made", UserWarning)
        trainer.compile(study.optimizer(rate), **copied_options({**common, **scaled}))
        warnings.filterwarnings("ignore", "`epochs` must be above `initial_epoch`", UserWarning)
        steps = 1 if is_endless(parts[TRAIN]) else None
        fit_arguments = {**arguments(parts[TRAIN], study.batch_size), "steps_per_epoch": steps}
        # Without an epoch, `fit` builds the trainer, checks the data and learns `target_scaling` from one pass over them.
        trainer.fit(**fit_arguments, epochs=0, validation_data=parts[VALIDATION], verbose=0)
    digest = digest_of([np.asarray(weight) for weight in _weights(trainer)])
    for name in heads:
        if job.head not in ("", name):
            trainer.remove_head(name)
    for name, value in ({job.head: 1.0} if job.head else job.variant.weights).items():
        if not (job.head and callable(trainer.heads[name].weight)):
            trainer.set_weight(name, value)
    trainer.compile(study.optimizer(rate), **copied_options({**common, **job.variant.options}))
    trainer.get_build_config()  # which builds what the heads and options need
    if callable(study.data) and isinstance(parts[TRAIN], tf.data.Dataset):
        keras.utils.set_random_seed(job.seed)  # a shuffle begins again, of which the learning of scalings has read some
        parts = data_parts(study.data, job.seed)
    _count_epochs(study, trainer.weighting, parts[TRAIN])
    keras.utils.set_random_seed(job.seed)
    return trainer, parts, digest


def new_trainer(study: Study, variant: Variant) -> MultiHeadTrainer:
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


def _count_epochs(study: Study, weighting: Weighting | None, part: Dataset) -> None:
    """Lets a weighting that changes at the end of an epoch count the updates of a pass: the `fit` of a run is one epoch."""
    if weighting is None or type(weighting).end_epoch is Weighting.end_epoch:
        return
    if getattr(weighting, "updates_per_epoch", None):
        return
    if is_endless(part) or not hasattr(weighting, "updates_per_epoch"):
        raise ValueError(
            "`weighting` must not wait for the end of an epoch where a run has none. Received: "
            f"{type(weighting).__name__}, which does. Set its `updates_per_epoch`, or leave `repeat` out of the data."
        )
    updates = batches_per_epoch(part, study.batch_size) / study.batches_per_update
    weighting.updates_per_epoch = max(round(updates), 1)


def _weights(trainer: MultiHeadTrainer) -> list[Variable]:
    """The variables of the encoder and the heads; one that several of them share is there once."""
    modules = [trainer.encoder, *(head.module for head in trainer.heads.values())]
    weight_lists = (getattr(module, "weights", None) or getattr(module, "variables", None) or () for module in modules)
    return distinct(weight for weights in weight_lists for weight in weights)


def run(study: Study, job: Job) -> Config:
    """Trains and measures one variant on one seed; returns its line."""
    trainer, parts, digest = start(study, job)
    heads, order, number = list(trainer.heads), list[int](), job.updates * study.batches_per_update
    batches = itertools.islice(batches_of(parts[TRAIN], study.batch_size, job.seed), number)
    head_batches = (keep_heads(batch, heads) for batch in recorded(batches, order))
    since, failed = time.perf_counter(), None
    try:
        trainer.fit(head_batches, steps_per_epoch=job.updates, epochs=1, verbose=0)
    except ValueError as error:
        if "`max_skipped_updates=" not in str(error):
            raise
        failed = str(error)
    seconds = time.perf_counter() - since
    measured = [name for name in parts if name == VALIDATION or (name == TEST and job.kind == FINAL)]
    metrics = {name: {} if failed else _metrics_on(study, trainer, parts[name]) for name in measured}
    del trainer, parts, batches, head_batches
    gc.collect()
    results = {"metrics": metrics, "failed": failed, "start": digest, "order": order, "seconds": round(seconds, 3)}
    return {**job.line, **results}


def _metrics_on(study: Study, trainer: MultiHeadTrainer, part: Dataset) -> dict[str, float | None]:
    """The metrics of a trainer on a part of the data, by name; None for one that is not finite."""
    part = keep_heads(part, trainer.heads)
    if study.measure is not None:
        metrics = study.measure(trainer, part)
    else:
        results = trainer.evaluate(**arguments(part, study.batch_size), return_dict=True, verbose=0)
        metrics = results if isinstance(results, Mapping) else {}
    numbers = {name: float(as_python(value)) for name, value in metrics.items()}
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


class _Timed(keras.callbacks.Callback):
    """A trainer whose updates and predictions are timed; as a callback, it times the updates of `fit` after the first."""

    def __init__(self, study: Study, job: Job) -> None:
        super().__init__()
        self.trainer, parts, _ = start(study, job)
        batches = batches_of(keep_heads(parts[TRAIN], self.trainer.heads), study.batch_size, job.seed)
        batches = itertools.islice(batches, _TIMED_BATCHES * study.batches_per_update)
        datasets = [tf.data.Dataset.from_tensors(batch) for batch in batches]  # of different sizes
        self._batches = functools.reduce(tf.data.Dataset.concatenate, datasets).cache().repeat()
        self._inputs = next(iter(self._batches))[0]
        self.update(), self.predict()  # which trace

    def update(self) -> float:
        """Seconds of one update."""
        self._first = -1
        self.trainer.fit(self._batches, steps_per_epoch=10**6, epochs=1, verbose=0, callbacks=[self])
        return (self._until - self._since) / (self._last - self._first)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        if self._first < 0:
            self._first, self._since = batch, time.perf_counter()
        self._last = batch
        is_enough = batch - self._first >= LEAST_STEPS and time.perf_counter() - self._since >= LEAST_SECONDS
        self.model.stop_training = is_enough

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:  # Keras has waited for all results
        self._until = time.perf_counter()

    def predict(self) -> float:
        """Seconds of one prediction for a batch."""
        calls, since = 0, time.perf_counter()
        while calls < LEAST_STEPS or time.perf_counter() - since < LEAST_SECONDS:
            self.trainer.predict_on_batch(self._inputs)
            calls += 1
        return (time.perf_counter() - since) / calls


def measure_cost(study: Study, jobs: Sequence[Job]) -> Config:
    """The line of the cost of a variant; `jobs` are the variant, and every head alone.

    `update_ratio` is the time of one update of the variant over the sum of the times of one update of each single-task
    model; `serve_ratio` is the same of a prediction for one batch. Both are medians over rounds. `size_ratio` is the same of
    the numbers of parameters.
    """
    timed = [_Timed(study, job) for job in jobs]
    # `[rounds, models, 2]`
    rounds = np.array([[(model.update(), model.predict()) for model in timed] for _ in range(ROUNDS)])
    update, serve = np.median(rounds[:, 0] / rounds[:, 1:].sum(axis=1), axis=0).tolist()
    size, *sizes = (sum(math.prod(weight.shape) for weight in _weights(model.trainer)) for model in timed)
    return {"cost": jobs[0].variant.name, "update_ratio": update, "serve_ratio": serve, "size_ratio": size / sum(sizes)}
