"""Before the first run: what a comparison must know of the trainer and the data, and whether the variants suit them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras

from multihead import losses, scaling
from multihead._data.data import digest_of
from multihead._ground.keras import STACK
from multihead._ground.types import Config
from multihead._ground.validation import check_head_names, did_you_mean, quoted
from multihead.comparison._data import TEST, TRAIN, VALIDATION, batches_of, batches_per_epoch
from multihead.comparison._run import new_trainer, start
from multihead.comparison._study import Job, Study, as_text
from multihead.heads import Head
from multihead.heads._directions import direction
from multihead.heads._metric_names import log_name
from multihead.heads._named import NamedHead


def probe(study: Study, arguments: tuple[Job, Any]) -> Config:
    """The settings of a comparison: what must be the same when it goes on in another call."""
    job, metrics = arguments
    trainer, parts, digest = start(study, job)
    unit, number = study.budget
    if unit == "epochs":
        batches = number * batches_per_epoch(parts[TRAIN], study.batch_size)
        number = math.ceil(batches / study.batches_per_update)
    return {
        "heads": list(trainer.heads),
        "metrics": _read_metrics(metrics, trainer.heads, free=study.measure is not None),
        "split": TEST if TEST in parts else VALIDATION,
        "updates": number,
        "batch_size": study.batch_size,
        "optimizer": as_text(study.optimizer),
        "options": {name: as_text(value) for name, value in sorted(study.options.items())},
        "measure": as_text(study.measure),
        "start": digest,
        "first_batch": digest_of(next(batches_of(parts[TRAIN], study.batch_size, job.seed))),
        "keras": f"{STACK}, {keras.__version__}",
    }


def _read_metrics(metrics: object, heads: Mapping[str, Head], *, free: bool) -> dict[str, list[str]]:
    """The heads' metrics, which are those of `evaluate` unless they are `free`, and their directions, `"min"` or `"max"`."""
    if metrics is None and free:
        raise ValueError(
            "`metrics` must name one metric per head with `measure`. Received: metrics=None. Pass, for example, "
            "{'price': ('price_r2', 'max')}."
        )
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(
            f"`metrics` must be a dict by head name. Received: metrics={metrics!r}. Pass, for example, "
            "{'price': 'price_accuracy'}."
        )
    if metrics is not None:
        check_head_names("metrics", metrics, list(heads), complete=True)
    chosen = {}
    for head, definition in heads.items():
        named, loss = NamedHead(head, definition), f"{head}_loss"
        own = [*(f"{head}_{log_name(spec)}" for spec in named.metric_specs), *([loss] if named.is_trained else [])]
        known = {name: direction(name, named) for name in own}
        choice = metrics[head] if metrics else next((name for name in own if known[name]), loss)
        metric, *way = choice if isinstance(choice, (tuple, list)) and len(choice) == 2 else (choice,)
        if not isinstance(metric, str) or (not free and metric not in own):
            hint = did_you_mean([metric], own, "Add the metric to the head, or compute it with `measure`.")
            raise ValueError(
                f"`metrics[{head!r}]` must be one of the metrics of `evaluate` for this head: {quoted(own)}. "
                f"Received: {choice!r}. {hint}"
            )
        way = way or [known.get(metric)]
        if way[0] not in ("min", "max"):
            raise ValueError(
                f"`metrics[{head!r}]` must say whether the metric is better when lower or higher. "
                f"Received: {choice!r}. Pass ({metric!r}, 'min') or ({metric!r}, 'max')."
            )
        chosen[head] = [metric, *way]
    return chosen


def check_variant(study: Study, arguments: tuple[Job, Mapping[str, Sequence[str]]]) -> tuple[int, bool]:
    """The digest of `start` of a variant, so that options that do not suit it are errors before the first run.

    And whether it scales targets otherwise than `build` does.
    """
    job, metrics = arguments
    by_loss = [] if study.measure is not None else [name for name, metric in metrics.items() if metric[0] == f"{name}_loss"]
    rescaled = [name for name in job.variant.options.get("target_scaling") or {} if name in by_loss]
    if rescaled:
        raise ValueError(
            f"`variants[{job.variant.name!r}]['target_scaling']` must be of heads that are judged in the units of their "
            f"targets. Received: a scaling of head {quoted(rescaled)}, judged by its loss, which has other units then. Give "
            f"the head a metric, such as 'mae', and pass `metrics={{{rescaled[0]!r}: '{rescaled[0]}_mae'}}`."
        )
    if job.variant.build is None:
        return start(study, job)[2], bool(job.variant.options.get("target_scaling"))
    argument = job.variant.build_argument
    one, other = new_trainer(study, replace(job.variant, build=None)), new_trainer(study, job.variant)
    if sorted(one.heads) != sorted(other.heads):
        raise ValueError(
            f"`{argument}` must return a trainer with the heads of `build`: {quoted(one.heads)}. "
            f"Received: {quoted(other.heads)}. Add the same heads, by the same names."
        )
    is_scaled = bool(job.variant.options.get("target_scaling"))
    for name, head in one.heads.items():
        is_scaled |= len({as_text(scaling.get(trainer.heads[name].target_scaling)) for trainer in (one, other)}) > 1
        judged, differs = (_judged(candidate, by_loss=name in by_loss) for candidate in (head, other.heads[name]))
        differ = [key for key in judged if judged[key] != differs[key]]
        if differ:
            shown = "; ".join(f"{key}: {description[key]}" for key in differ for description in (judged, differs))
            raise ValueError(
                f"`{argument}` must judge head {name!r} as `build` does, or their metrics could not be compared. Received: "
                f"another {quoted(differ)} ({shown}). Give the head the same loss, metrics and scaling."
            )
    first, second = (start(study, job)[2] for _ in range(2))
    if other is new_trainer(study, job.variant) or first != second:
        raise ValueError(
            f"`{argument}` must make a new trainer with the same initial weights whenever it is called with the same seeds. "
            "Received: the same trainer, or other weights, the second time. Make all layers in it, and let nothing in it "
            "depend on the time or on other files."
        )
    return first, is_scaled


def _judged(head: Head, *, by_loss: bool) -> dict[str, str]:
    """What a head's metrics depend on, as text; its scaling only if it is judged by its loss."""
    scaled = scaling.get(head.target_scaling) if by_loss else None
    return {
        "loss": "None" if head.loss is None else losses.get(head.loss).name,
        "metrics": as_text([getattr(metric, "name", metric) for metric in head.metrics]),
        "target_scaling": as_text(None if scaled is None else type(scaled)),
        "ignore_label": as_text(head.ignore_label),
    }
