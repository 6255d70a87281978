"""One run: the trainer of a variant from the start of its seed, trained on the order of its seed, and measured."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import keras
import numpy as np

from multihead._data.data import Data
from multihead._ground.keras import KerasHooks
from multihead._ground.validation import as_python, check_head_names, did_you_mean, is_number, quoted
from multihead._trainer.directions import direction
from multihead._trainer.scaling import learn_from_batches, unknown
from multihead._update.batch import as_tensors, unpack
from multihead.comparison._data import (
    TEST,
    TRAIN,
    VALIDATION,
    Feed,
    batches_per_epoch,
    digest_of,
    of_heads,
    part_of_heads,
    read_split,
    splits_of,
)
from multihead.comparison._few_labels import few_labels
from multihead.comparison._study import FINAL, Job, Study
from multihead.comparison._variants import in_words, made
from multihead.heads._metrics import log_name
from multihead.heads._value import named
from multihead.weighting import Weighting


class Started(NamedTuple):
    """A trainer before its first update.

    Attributes:
        trainer: The trainer, compiled and built.
        all_heads: The heads that `build` has added.
        data: The parts of the data.
        given: The same as they were given.
        start: A digest of the initial weights of the encoder and of each head, by name.
    """

    trainer: Any
    all_heads: list[str]
    data: dict[str, Data]
    given: dict[str, Any]
    start: dict[str, int]


def start(study: Study, job: Job) -> Started:
    """Makes the trainer of a run: with the seed's initial weights, whatever the variant.

    All heads are built first, so that each draws the same numbers in every variant; those that the variant does not train
    are dropped then.

    Raises:
        ValueError: `build`, the data and the variant do not fit together.
        TypeError: `build` returns something else.
    """
    keras.utils.set_random_seed(job.seed)
    given = splits_of(study.data, job.seed)
    keras.utils.set_random_seed(job.seed)
    trainer = _built(study, job)
    _give_rates(trainer, job)
    all_heads = list(trainer.heads)
    check_head_names(f"variants[{job.variant!r}]['weights']", job.weights, all_heads)
    data = {name: read_split(name, each, all_heads) for name, each in given.items()}
    rate = keras.optimizers.schedules.CosineDecay(job.rate, job.updates)
    trainer.compile(study.optimizer(rate), **{"telemetry": None, **made(study.options)})
    trainer._build_for(data[TRAIN])
    for name in all_heads:
        if job.head not in ("", name):
            trainer.remove_head(name)
    for name, value in ({job.head: 1.0} if job.head else job.weights).items():
        if not (job.head and callable(trainer.heads[name].weight)):
            trainer.set_weight(name, value)
    trainer.compile(study.optimizer(rate), **{"telemetry": None, **made({**study.options, **job.options})})
    trainer._build_again()
    _learn_scalings(trainer, data[TRAIN], all_heads, study.batch_size)
    if callable(study.data) and not data[TRAIN].is_arrays:
        keras.utils.set_random_seed(
            job.seed
        )  # variants differ in how often they have read a shuffle, which now begins again
        given = splits_of(study.data, job.seed)
        data = {name: read_split(name, each, all_heads) for name, each in given.items()}
    modules = {"encoder": trainer.encoder, **{name: head.module for name, head in trainer.heads.items()}}
    digests = {name: digest_of([np.asarray(v) for v in _weights(each)]) for name, each in modules.items()}
    keras.utils.set_random_seed(job.seed)
    return Started(trainer, all_heads, data, given, digests)


def _give_rates(trainer: Any, job: Job) -> None:
    """Gives the own variables of heads the learning rates of a run.

    Raises:
        ValueError: A head's factor is no number.
    """
    heads = dict(trainer.heads)
    for name, rate in job.head_rates.items():
        head = heads[name]
        if not is_number(head.learning_rate_multiplier):
            raise ValueError(
                f"`variants[{job.variant!r}]['head_rates']` needs heads whose `learning_rate_multiplier` is a number. "
                f"Received: head {name!r} with learning_rate_multiplier={head.learning_rate_multiplier!r}. Remove "
                "`head_rates`, or give the head a number."
            )
        heads[name] = replace(head, learning_rate_multiplier=head.learning_rate_multiplier * rate / job.rate)
    for name, head in heads.items() if job.head_rates else ():
        trainer.remove_head(name)
        trainer.add_head(name, **vars(head))


def _built(study: Study, job: Job) -> Any:
    """The trainer of a run, before it is compiled.

    Raises:
        TypeError: It is none.
    """
    argument, build = ("`build`", study.build) if job.build is None else (f"`variants[{job.variant!r}]['build']`", job.build)
    trainer: Any = build()
    is_trainer = isinstance(trainer, KerasHooks)  # which only a `MultiHeadTrainer` is
    if not is_trainer or len(trainer.heads) < 2:
        heads = f" with {len(trainer.heads)} heads" if is_trainer else ""
        raise TypeError(
            f"{argument} must return a `MultiHeadTrainer` with at least two heads. "
            f"Received: a {type(trainer).__name__}{heads}. Add the heads in it, and return the trainer."
        )
    return trainer


def parameters_of(trainer: Any) -> int:
    """The number of parameters of the encoder and the heads; one that several of them share counts once."""
    modules = [trainer.encoder, *(head.module for head in trainer.heads.values())]
    weights = {id(weight): weight for module in modules for weight in _weights(module)}
    return sum(math.prod(weight.shape) for weight in weights.values())


def _weights(module: Any) -> Sequence[Any]:
    found: Sequence[Any] = getattr(module, "weights", None) or getattr(module, "variables", None) or ()
    return found


def _learn_scalings(trainer: Any, data: Data, all_heads: Sequence[str], batch_size: int) -> None:
    """Learns `target_scaling` from one pass over the training data, as `fit` on arrays does."""
    lacking = [head.name for head in unknown([named(name, head) for name, head in trainer.heads.items()])]
    if not lacking:
        return
    batches = data.whole(batch_size, None)
    if batches is None:
        raise ValueError(
            f"`data['train']` must end, so that `target_scaling` of {quoted(lacking)} can be learned. Received: a data set "
            "that repeats itself. Leave `repeat` out: every run reads it as often as its budget needs."
        )
    prepared = []
    for batch in batches:
        inputs, targets, weights = unpack(batch, all_heads)
        kept = ({name: value for name, value in each.items() if name in trainer.heads} for each in (targets, weights))
        prepared.append(as_tensors(unpack((inputs, *kept), list(trainer.heads))))
    learn_from_batches(trainer._require_built().spec, prepared, eagerly=trainer._runs_eagerly)


class _Epochs(keras.callbacks.Callback):
    """Tells a weighting, after each pass over the training data, that an epoch has ended: `fit` has but one.

    Args:
        weighting: The weighting.
        batches: The number of batches of a pass.
        accumulate: The number of batches of an update.
    """

    def __init__(self, weighting: Weighting, batches: int, accumulate: int) -> None:
        super().__init__()
        self._weighting = weighting
        self._batches = batches
        self._accumulate = accumulate
        self._ended = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        ended = (batch + 1) * self._accumulate // self._batches
        if ended > self._ended:
            self._ended = ended
            self._weighting.end_epoch()


def _epochs(study: Study, trainer: Any, data: Data) -> list[_Epochs]:
    """The callback for a weighting that changes at the end of an epoch; none for others."""
    weighting = trainer.weighting
    waits = weighting is not None and type(weighting).end_epoch is not Weighting.end_epoch
    if not waits or getattr(weighting, "updates_per_epoch", None) is not None:
        return []
    try:
        return [_Epochs(weighting, batches_per_epoch(data, study.batch_size), study.accumulate)]
    except ValueError as error:
        raise ValueError(
            f"`weighting` must not wait for the end of an epoch where the training data have no end. Received: "
            f"{type(weighting).__name__}, which does. Set its `updates_per_epoch`, or leave `repeat` out of the data."
        ) from error


def run(study: Study, job: Job) -> dict[str, Any]:
    """Trains and measures one variant on one seed; returns its line."""
    started = start(study, job)
    trainer = started.trainer
    heads, number = list(trainer.heads), job.updates * study.accumulate
    feed = Feed(
        started.data[TRAIN],
        started.all_heads,
        batch_size=study.batch_size,
        seed=job.seed,
        marked=job.budget * study.accumulate,
    )
    callbacks = _epochs(study, trainer, started.data[TRAIN])
    since, failed = time.perf_counter(), None
    try:
        trainer.fit(feed.batches(heads, number), steps_per_epoch=job.updates, epochs=1, verbose=0, callbacks=callbacks)
    except ValueError as error:
        if "`max_skipped_updates=" not in str(error):
            raise
        failed = str(error)
    seconds = time.perf_counter() - since
    parts = [name for name in started.data if name == VALIDATION or (name == TEST and job.kind == FINAL)]
    metrics = {name: {} if failed else metrics_of(study, started, name) for name in parts}
    line = {
        "run": job.kind,
        "variant": job.variant,
        "head": job.head,
        "at_equal_cost": job.at_equal_cost,
        "seed": job.seed,
        "rate": job.rate,
        "updates": job.updates,
        "metrics": metrics,
        "failed": failed,
        **({"head_rates": dict(job.head_rates)} if job.head_rates else {}),
        "start": started.start,
        "order": feed.order,
        "seconds": round(seconds, 3),
    }
    del started, trainer, feed
    gc.collect()
    return line


def metrics_of(study: Study, started: Started, part: str) -> dict[str, float]:
    """The metrics of a trainer on a part of the data, by name."""
    trainer, data = started.trainer, started.data[part]
    if study.measure is not None:
        found = study.measure(trainer, part_of_heads(started.given[part], data, list(trainer.heads), started.all_heads))
    else:
        batch_size = {"batch_size": study.batch_size} if data.is_arrays else {}
        arguments = of_heads(data, list(trainer.heads), started.all_heads)
        found = trainer.evaluate(**arguments, **batch_size, return_dict=True, verbose=0)
    return {name: float(as_python(value)) for name, value in found.items()}


def probe(study: Study, job: Job, metrics: Any, unit: str, number: int) -> dict[str, Any]:
    """What a comparison must know before its first run: metrics, the length of runs, and digests of the start.

    Args:
        study: What is the same for all runs.
        job: The first variant, with the tuning seed.
        metrics: The argument of `compare`.
        unit: `"updates"` or `"epochs"`.
        number: How many.
    """
    started = start(study, job)
    data = started.data[TRAIN]
    heads = {name: named(name, head) for name, head in started.trainer.heads.items()}
    if unit == "epochs":
        number = math.ceil(number * batches_per_epoch(data, study.batch_size) / study.accumulate)
    feed = Feed(data, started.all_heads, batch_size=study.batch_size, seed=job.seed, marked=1)
    list(feed.batches(started.all_heads, 1))
    return {
        "metrics": _read_metrics(metrics, heads, free=study.measure is not None),
        "updates": number,
        "split": TEST if TEST in started.data else VALIDATION,
        "start": started.start,
        "first_batch": feed.order,
        "few_labels": few_labels(started.trainer._require_built().spec, started.data[VALIDATION], study.batch_size),
    }


def check_variant(study: Study, job: Job) -> dict[str, int]:
    """Starts a variant, without training it: options that do not suit it are errors before the first run.

    Returns:
        Digests of the initial weights, as in `Started`.

    Raises:
        ValueError: Its trainer has other heads than that of `build`, or other weights whenever it is made.
    """
    if job.build is None:
        return start(study, job).start
    argument = f"`variants[{job.variant!r}]['build']`"
    one, other = _built(study, replace(job, build=None)), _built(study, job)
    if other is _built(study, job):
        raise ValueError(
            f"{argument} must make a new trainer whenever it is called, or a run would begin with the weights of the last "
            "one. Received: a function that returns the same trainer twice. Make all layers in it."
        )
    if sorted(one.heads) != sorted(other.heads):
        raise ValueError(
            f"{argument} must return a trainer with the heads of `build`: {quoted(one.heads)}. "
            f"Received: {quoted(other.heads)}. Add the same heads, by the same names."
        )
    for name, head, of_other in (
        (name, named(name, head), named(name, other.heads[name])) for name, head in one.heads.items()
    ):
        differ = [key for key, of_head in _judged(head).items() if of_head != _judged(of_other)[key]]
        if differ:
            shown = "; ".join(f"{key}: {_judged(each)[key]}" for key in differ for each in (head, of_other))
            raise ValueError(
                f"{argument} must judge head {name!r} as `build` does, or their metrics could not be compared. Received: "
                f"another {quoted(differ)} ({shown}). Give the head the same loss, metrics and scaling."
            )
    started, again = (start(study, job).start for _ in range(2))
    if started != again:
        raise ValueError(
            f"{argument} must make the same initial weights whenever it is called with the same seeds. Received: other "
            "weights the second time. Make all layers in it, and let nothing depend on the time or on other files."
        )
    return started


def _judged(head: Any) -> dict[str, str]:
    """What a head's metrics depend on besides its predictions, as text by name; of the loss, the function alone."""
    function = head.loss._function
    return {
        "loss": in_words(getattr(function, "func", function)),
        "metrics": in_words([log_name(spec) for spec in head.metric_specs]),
        "target_scaling": in_words(None if head.scaling is None else type(head.scaling.scaling)),
        "ignore_label": in_words(head.ignore_label),
    }


def _read_metrics(metrics: Any, heads: Mapping[str, Any], *, free: bool) -> dict[str, tuple[str, str]]:
    """Each head's metric and its direction, `"min"` or `"max"`.

    Args:
        metrics: The argument of `compare`.
        heads: The heads by name.
        free: Whether metrics have other names than those of `evaluate`.

    Raises:
        ValueError: A metric does not exist, or its direction is not known.
    """
    if metrics is None:
        if free:
            raise ValueError(
                "`metrics` must name a metric of each head with `measure`. Received: metrics=None. Pass, for example, "
                "{'price': ('price_r2', 'max')}."
            )
        return {name: _first_metric(head) for name, head in heads.items()}
    if not isinstance(metrics, Mapping):
        raise TypeError(
            f"`metrics` must be a dict by head name. Received: metrics={metrics!r}. Pass, for example, "
            "{'price': 'price_accuracy'}."
        )
    check_head_names("metrics", metrics, list(heads), complete=True)
    return {name: _read_metric(head, metrics[name], free=free) for name, head in heads.items()}


def _names(head: Any) -> list[str]:
    return [f"{head.name}_loss", *(f"{head.name}_{log_name(spec)}" for spec in head.metric_specs)]


def _first_metric(head: Any) -> tuple[str, str]:
    for metric in [*_names(head)[1:], f"{head.name}_loss"]:
        found = direction(metric, head)
        if found is not None:
            return metric, found
    return f"{head.name}_loss", "min"


def _read_metric(head: Any, given: Any, *, free: bool) -> tuple[str, str]:
    metric, *rest = given if isinstance(given, (tuple, list)) and len(given) == 2 else (given,)
    known = _names(head)
    if not isinstance(metric, str) or (not free and metric not in known):
        hint = did_you_mean([metric], known, "Add the metric to the head, or compute it with `measure`.")
        raise ValueError(
            f"`metrics[{head.name!r}]` must be one of the metrics of `evaluate` for this head: {quoted(known)}. "
            f"Received: {given!r}. {hint}"
        )
    found = rest[0] if rest else direction(metric, head)
    if found not in ("min", "max"):
        raise ValueError(
            f"`metrics[{head.name!r}]` must say whether the metric is better when lower or higher. "
            f"Received: {given!r}. Pass ({metric!r}, 'min') or ({metric!r}, 'max')."
        )
    return metric, found
