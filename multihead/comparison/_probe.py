"""Before the first run: what a comparison must know of the trainer and the data, and whether each variant suits them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from multihead import losses, scaling
from multihead._ground.types import Config, Dataset, Given, Nested
from multihead._ground.validation import check_head_names, did_you_mean, quoted
from multihead.comparison._data import TEST, TRAIN, VALIDATION, Feed, batches_per_epoch, is_endless
from multihead.comparison._run import built, fit_nothing, start
from multihead.comparison._study import Job, Study, as_text
from multihead.heads import Head

FEW = 10
"""With fewer labels of a class than this, the standard error of a metric exceeds the differences between variants.

For an area under the ROC curve of 0.8 with six positives it is 0.1 (Hanley and McNeil, 1982).
"""


def probe(study: Study, given: tuple[Job, Given]) -> Config:
    """What a comparison must know before its first run: metrics, the length of runs, and digests of the start."""
    job, metrics = given
    trainer, parts, digests = start(study, job)
    unit, number = study.budget
    if unit == "epochs":
        batches = number * batches_per_epoch(parts[TRAIN], study.batch_size)
        number = math.ceil(batches / study.batches_per_update)
    feed = Feed(parts[TRAIN], batch_size=study.batch_size, seed=job.seed, marked=1)
    list(feed.batches(list(trainer.heads), 1))
    directions = [_Direction(metric) for metric in trainer.metrics_names]
    fit_nothing(trainer, study, parts, directions)
    known = {each.monitor: None if each.mode == "auto" else each.mode for each in directions}
    return {
        "metrics": _read_metrics(metrics, list(trainer.heads), known, free=study.measure is not None),
        "updates": number,
        "split": TEST if TEST in parts else VALIDATION,
        "start": digests,
        "first_batch": feed.order,
        "few_labels": few_labels(trainer.heads, parts[VALIDATION]),
    }


class _Direction(keras.callbacks.Callback):
    """Learns from `fit`, as `EarlyStopping` does, whether its metric is better when lower or higher: its `mode`."""

    mode = "auto"

    def __init__(self, monitor: str) -> None:
        super().__init__()
        self.monitor = monitor


def _read_metrics(
    metrics: Given, heads: Sequence[str], known: Mapping[str, str | None], *, free: bool
) -> dict[str, tuple[str, str]]:
    """Each head's metric and its direction, `"min"` or `"max"`; `known` are those of `evaluate`, unless they are `free`."""
    if metrics is None and free:
        raise ValueError(
            "`metrics` must name a metric of each head with `measure`. Received: metrics=None. Pass, for example, "
            "{'price': ('price_r2', 'max')}."
        )
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(
            f"`metrics` must be a dict by head name. Received: metrics={metrics!r}. Pass, for example, "
            "{'price': 'price_accuracy'}."
        )
    if metrics is not None:
        check_head_names("metrics", metrics, heads, complete=True)
    found = {}
    for head in heads:
        own = [name for name in known if max((h for h in heads if name.startswith(f"{h}_")), key=len, default="") == head]
        loss = f"{head}_loss"
        default = next((name for name in own if name != loss and known[name] is not None), loss)
        given = default if metrics is None else metrics[head]
        metric, *rest = given if isinstance(given, (tuple, list)) and len(given) == 2 else (given,)
        if not isinstance(metric, str) or (not free and metric not in own):
            hint = did_you_mean([metric], own, "Add the metric to the head, or compute it with `measure`.")
            raise ValueError(
                f"`metrics[{head!r}]` must be one of the metrics of `evaluate` for this head: {quoted(own)}. "
                f"Received: {given!r}. {hint}"
            )
        direction = rest[0] if rest else known.get(metric)
        if direction not in ("min", "max"):
            raise ValueError(
                f"`metrics[{head!r}]` must say whether the metric is better when lower or higher. "
                f"Received: {given!r}. Pass ({metric!r}, 'min') or ({metric!r}, 'max')."
            )
        found[head] = metric, direction
    return found


def check_variant(study: Study, job: Job) -> dict[str, int]:
    """The digests of `start` of a variant, so that options that do not suit it are errors before the first run."""
    if job.variant.build is None:
        return start(study, job)[2]
    argument = job.variant.build_argument
    one, other = built(study, replace(job.variant, build=None)), built(study, job.variant)
    if other is built(study, job.variant):
        raise ValueError(
            f"`{argument}` must make a new trainer whenever it is called, or a run would begin with the weights of the last "
            "one. Received: a function that returns the same trainer twice. Make all layers in it."
        )
    if sorted(one.heads) != sorted(other.heads):
        raise ValueError(
            f"`{argument}` must return a trainer with the heads of `build`: {quoted(one.heads)}. "
            f"Received: {quoted(other.heads)}. Add the same heads, by the same names."
        )
    for name, head in one.heads.items():
        both = [
            {
                "loss": "None" if each.loss is None else losses.get(each.loss).name,
                "metrics": as_text([getattr(metric, "name", metric) for metric in each.metrics]),
                "target_scaling": as_text(None if each.target_scaling is None else type(scaling.get(each.target_scaling))),
                "ignore_label": as_text(each.ignore_label),
            }
            for each in (head, other.heads[name])
        ]
        differ = [key for key in both[0] if both[0][key] != both[1][key]]
        if differ:
            shown = "; ".join(f"{key}: {each[key]}" for key in differ for each in both)
            raise ValueError(
                f"`{argument}` must judge head {name!r} as `build` does, or their metrics could not be compared. Received: "
                f"another {quoted(differ)} ({shown}). Give the head the same loss, metrics and scaling."
            )
    first, second = (start(study, job)[2] for _ in range(2))
    if first != second:
        raise ValueError(
            f"`{argument}` must make the same initial weights whenever it is called with the same seeds. Received: other "
            "weights the second time. Make all layers in it, and let nothing depend on the time or on other files."
        )
    return first


def few_labels(heads: Mapping[str, Head], part: Dataset) -> dict[str, int]:
    """By the names of heads of two classes, the number of labels of the rarer one, if below `FEW`.

    A head is of two classes if all of its labels are 0 or 1 and its loss is for such labels, or both occur. Data without an
    end are not read.
    """
    counts = {name: np.zeros([2], int) for name, head in heads.items() if head.loss is not None}
    batches = part if isinstance(part, tf.data.Dataset) else [part]
    for _, targets, *weights in () if is_endless(part) else batches:
        for name in list(counts):
            labels = _labels_that_count(heads[name], targets[name], (weights[0] or {}).get(name) if weights else None)
            numbers = np.array([(labels == each).sum() for each in (0, 1)])
            if numbers.sum() == labels.size:
                counts[name] += numbers
            else:
                del counts[name]  # other labels
        if all(each.min() >= FEW for each in counts.values()):
            break  # data of unknown length may have no end
    found = {}
    for name, each in counts.items():
        known = losses.get(heads[name].loss).known
        is_binary = known is not None and known.high is not None
        if each.sum() and (0 if is_binary else 1) <= each.min() < FEW:
            found[name] = int(each.min())
    return found


def _labels_that_count(head: Head, targets: Nested, weights: Nested) -> np.ndarray:
    """The labels that are present: of rows of two columns the second one, and 0 for -1 where the loss takes -1 and 1."""
    loss, labels = losses.get(head.loss), tf.cast(targets, tf.float64).numpy()
    ignored = [each for each in (head.ignore_label, loss.ignore_label) if each is not None]
    present = ~(np.isnan(labels) | np.isin(labels, ignored))
    if loss.over == "rows":
        if labels.shape[-1] != 2:
            return np.full([1], 2.0)
        labels, present = labels[..., 1], present.all(axis=-1)
    elif loss.over == "elements" and loss.known is not None and loss.known.low == -1:
        labels = np.where(labels == -1, 0, labels)
    if weights is not None:
        are_weighed = np.ravel(weights) > 0
        present &= np.repeat(are_weighed, labels.size // are_weighed.size).reshape(labels.shape)
    found: np.ndarray = labels[present]
    return found
