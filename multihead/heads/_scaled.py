"""Whether the targets of a head can be scaled: whether its loss makes sense then, and its module can predict them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from multihead import losses, scaling
from multihead._ground.reach import Reach, reach_of
from multihead._ground.types import Layer, Loss
from multihead.losses._known import CLASSES, DIFFERENCES, RATIOS

ADDONS = {"tensorflow_addons": {"pinball_loss": DIFFERENCES}}
"""By package other than Keras, its losses that also make sense for scaled targets, and what they depend on."""


def check_scaling(
    name: str, target_scaling: object, loss: losses.ElementLoss, class_weight: Mapping[int, float] | None, module: Layer
) -> scaling.Standardize | None:
    """The scaling of a head's targets, None without one; a `ValueError` if its loss or its module does not allow it."""
    scaler = scaling.get(target_scaling)
    if scaler is None:
        return None
    known, depends, reason = loss.known, depends_on(loss), None
    if known is not None and (known.over == CLASSES or known.low is not None):
        reason = (
            "takes classes, probabilities or signs, or numbers of at least 0, while scaled targets may be negative. Leave "
            "`target_scaling` out"
        )
    elif class_weight is not None:
        reason = "is weighted by class, and scaled targets are no classes. Leave `target_scaling` out"
    elif depends is None:
        reason = (
            "would measure something else of scaled targets. Leave `target_scaling` out, or choose 'mse', 'mae' or 'huber'"
        )
    elif depends == RATIOS and not scaler.only_divides:
        reason = (
            "measures in relation to the label, which must keep its 0. Only divide: `target_scaling=scaling.Standardize("
            "mean=0.0, deviation=...)`"
        )
    if reason is not None:
        raise ValueError(
            f"`target_scaling` of head {name!r} is for targets that are measured, with a loss such as 'mse', 'mae' or "
            f"'huber'. Received: target_scaling={target_scaling!r} with the loss {loss.name!r}, which {reason}."
        )
    reach = reach_of(module)
    if not can_be_reached(scaler, reach):
        remedy = "Let the module end without this activation"
        if reach is not None and not reach.sums_to_one:
            remedy += ", or only divide: `scaling.Standardize(mean=0.0, deviation=...)`"
        raise ValueError(
            f"`target_scaling` of head {name!r} must make targets that its module can predict. Received: "
            f"target_scaling={target_scaling!r}, which moves targets to both sides of 0, by about 1, and a module that ends "
            f"so that it predicts only {reach}. {remedy}."
        )
    return scaler


def can_be_reached(scaler: scaling.Standardize, reach: Reach | None) -> bool:
    """Whether a module can predict scaled targets; True if that cannot be told without the labels."""
    if reach is None or scaler.only_divides or isinstance(scaler, (scaling.ByLayer, scaling.Linear)):
        return True
    return reach.low <= -1 and reach.high >= 1 and (reach.low < -1 or reach.high > 1)


def depends_on(loss: losses.ElementLoss) -> str | None:
    """What a loss depends on, up to a factor: `DIFFERENCES` or `RATIOS` of labels and predictions, or None for neither.

    A user's own loss is assumed to depend on differences, since the user chose to scale its targets.
    """
    if loss.known is not None:
        return loss.known.depends_on
    package, name = _origin(loss.original)
    if package in ("keras", "tf_keras"):
        return None
    return ADDONS[package].get(name) if package in ADDONS else DIFFERENCES


def is_own(loss: losses.ElementLoss) -> bool:
    """Whether a loss is a user's own, so that nothing is known about it."""
    return loss.known is None and _origin(loss.original)[0] not in ("keras", "tf_keras", *ADDONS)


def _origin(original: Loss) -> tuple[str, str]:
    """The package and the name of a loss."""
    if isinstance(original, (str, Mapping)):
        return "keras", str(original)
    made: Any = getattr(original, "fn", original)  # of Keras's wrapper around a function
    made = made if hasattr(made, "__name__") else type(made)
    return str(made.__module__).partition(".")[0], str(made.__name__)


def scaled_in_numpy(labels: np.ndarray, scaler: scaling.Standardize) -> np.ndarray:
    """Scaled labels, `[rows, columns]`, with the scaling's own mean and deviation or else the labels'; NaN stays NaN."""
    changed = np.log(labels + scaler.shift) if isinstance(scaler, scaling.Log) else np.asarray(labels, "float64")
    if scaler.mean is not None:
        return (changed - np.asarray(scaler.mean)) / np.asarray(scaler.deviation)
    deviation = np.nanstd(changed, axis=0)
    return (changed - np.nanmean(changed, axis=0)) / np.where(deviation > 0, deviation, 1.0)
