"""The arguments that `compile` should get, and the fixed weights that would do part of the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from multihead import balancing
from multihead._ground.layers import ends_in_scaling
from multihead._ground.types import Config
from multihead._update.spec import UpdateSpec
from multihead.diagnosis import Diagnosis
from multihead.losses._known import FUNCTIONS
from multihead.scaling import Standardize

PERCENTAGE = FUNCTIONS["mean_absolute_percentage_error"]
FLOOR = balancing.NormFloor().floor
"""The fraction of the largest gradient's norm below which `NormFloor()` scales a gradient up."""
_RAW = 10.0
"""Labels with a standard deviation above this, or below its inverse, are in raw units."""


def suggest(diagnosis: Diagnosis, spec: UpdateSpec) -> Config:
    """Keyword arguments for `compile`; no balancer where methods are configured that it would replace."""
    suggestion: Config = {}
    scalings = heads_to_scale(diagnosis, spec)
    if scalings:
        suggestion["target_scaling"] = {diagnosis.heads[k]: how for k, how in scalings.items()}
    are_starved = starved(diagnosis) or starved(diagnosis, _norms_with(scalings, diagnosis, spec))
    if are_starved and spec.methods.weighting is None and spec.methods.balancer is None:
        suggestion["balancer"] = "NormFloor"
        if level_of(diagnosis) == "parameters":
            suggestion["balance_at"] = "parameters"
    return suggestion


def in_raw_units(diagnosis: Diagnosis, spec: UpdateSpec) -> list[int]:
    """The heads with a column far from mean 0 and deviation 1, and without a last layer that brings predictions there."""
    raw = [k for k, labels in enumerate(diagnosis.labels) if labels.only is None and _is_raw(labels.columns)]
    return [
        k for k in raw if not ends_in_scaling(spec.network.heads[k].module) or rescales_to_other_units(diagnosis, spec, k)
    ]


def rescales_to_other_units(diagnosis: Diagnosis, spec: UpdateSpec, k: int) -> bool:
    """Whether a module ends in a layer that rescales, and yet begins far from the labels, as with the inverse factor."""
    is_known = diagnosis.progress[k] == "untrained" and not diagnosis.labels[k].has_unknown_units
    is_new = is_known and bool(np.abs(diagnosis.predicted[k, :2]).max() > 0)
    return ends_in_scaling(spec.network.heads[k].module) and is_new and not predicts_in_units(diagnosis, k)


def _is_raw(columns: np.ndarray) -> bool:
    """Whether a column has large numbers, or all have small ones: a few small columns may be pixels that are mostly dark."""
    centers, spreads = np.abs(columns).T
    is_large = (spreads > _RAW) | (centers > 5 * np.maximum(spreads, 1.0))
    return bool(is_large.any() or (len(spreads) and 0 < np.nanmean(spreads) < 1 / _RAW))


def predicts_in_units(diagnosis: Diagnosis, k: int) -> bool:
    """Whether a head predicts in its labels' units already: among the labels, or of a size nearer to theirs than to 1.

    Its last bias may be set to the mean of the labels, for one; its module may multiply by a constant or by an input; what
    it reads may be as large; or its weights come from other training. Scaled labels would be far too small for it.
    """
    center, spread = diagnosis.labels[k].center, diagnosis.labels[k].spread
    low, high = diagnosis.predicted[k, :2]
    size, unit = max(abs(low), abs(high)), max(abs(center), spread)
    is_near = low >= center - 4 * spread and high <= center + 4 * spread
    if is_near and (size > _RAW or spread < 1 / _RAW):
        return True
    is_usual = 1 / _RAW <= size <= _RAW or not np.isfinite(size)
    return bool(not is_usual and min(size, unit) > 0 and abs(np.log(size / unit)) < abs(np.log(size)))


def heads_to_scale(diagnosis: Diagnosis, spec: UpdateSpec) -> dict[int, Standardize | str]:
    """The heads whose targets should be scaled, and how."""
    scalings = fitting_scalings(diagnosis, spec)
    if not scalings or spec.methods.weighting is not None:
        return scalings
    # A small weight may suit the units of the labels: with scaled labels the head's gradient would be too small.
    norms = diagnosis.norms[level_of(diagnosis)]
    for k in starved(diagnosis, _norms_with(scalings, diagnosis, spec)):
        largest = max((norms[other] for other in comparable(diagnosis) if other != k), default=np.nan)
        if k in scalings and diagnosis.weights[k] < FLOOR <= norms[k] / largest <= 1 / FLOOR:
            del scalings[k]
    return scalings


def fitting_scalings(diagnosis: Diagnosis, spec: UpdateSpec) -> dict[int, Standardize | str]:
    """The scalings that fit heads in raw units or out of reach, and not trained yet."""
    raw = in_raw_units(diagnosis, spec)
    scalings: dict[int, Standardize | str] = {}
    for k, labels in enumerate(diagnosis.labels):
        is_new = diagnosis.progress[k] in ("untrained", "unknown") and not predicts_in_units(diagnosis, k)
        rescales = k in raw and ends_in_scaling(spec.network.heads[k].module)
        if labels.scaling is not None and is_new and (k in raw or labels.unreachable) and not rescales:
            scalings[k] = labels.scaling
    return scalings


def level_of(diagnosis: Diagnosis) -> str:
    """The level at which the heads' norms can be compared."""
    return "parameters" if max((len(leaves) for leaves in diagnosis.reads), default=1) > 1 else "representation"


def comparable(diagnosis: Diagnosis) -> np.ndarray:
    """The positions of heads whose gradients can be compared: finite ones that reach the encoder."""
    norms = diagnosis.norms[level_of(diagnosis)]
    return np.flatnonzero(np.isfinite(norms) & (norms > 0) & (diagnosis.norms["parameters"] > 0) & diagnosis.finite)


def enlarged_by(scalings: Mapping[int, Standardize | str], spec: UpdateSpec) -> dict[int, float]:
    """How many times as large a division makes gradients: a loss in percent stays, its argument shrinks."""
    known = [head.loss.known for head in spec.network.heads]
    return {
        k: float(how.deviation)
        for k, how in scalings.items()
        if isinstance(how, Standardize) and how.deviation and known[k] == PERCENTAGE
    }


def _norms_with(scalings: Mapping[int, Standardize | str], diagnosis: Diagnosis, spec: UpdateSpec) -> np.ndarray:
    """`[heads]`: the norms, as scalings make them.

    The gradient of a squared error is proportional to the error, and that of an absolute one does not depend on its size.
    """
    norms = diagnosis.norms[level_of(diagnosis)].copy()
    for k, factor in enlarged_by(scalings, spec).items():
        norms[k] *= factor
    for k in scalings:
        labels, (low, high) = diagnosis.labels[k], diagnosis.predicted[k, :2]
        if len(labels.columns) and not labels.is_linear and spec.network.heads[k].loss.known != PERCENTAGE:
            middle, width = (low + high) / 2, (high - low) / 4
            centers, spreads = labels.columns.T
            error = np.sqrt(np.nanmean(spreads**2 + (centers - middle) ** 2 + width**2))
            norms[k] *= np.linalg.norm([1.0, middle, width]) / error
    return norms


def starved(diagnosis: Diagnosis, norms: np.ndarray | None = None) -> list[int]:
    """The heads whose gradients `NormFloor()` would scale up, of the measured norms or of others."""
    usable, norms = comparable(diagnosis), diagnosis.norms[level_of(diagnosis)] if norms is None else norms
    return [int(k) for k in usable if norms[k] < FLOOR * norms[usable].max()]


def equal_weights(diagnosis: Diagnosis) -> dict[str, float]:
    """By head name, the weights with which the measured norms would be equal; empty if fewer than two can be compared."""
    usable, norms = comparable(diagnosis), diagnosis.norms[level_of(diagnosis)]
    usable = [k for k in usable if diagnosis.weights[k] > 0]
    if len(usable) < 2:
        return {}
    mean_norm = np.exp(np.mean(np.log(norms[usable])))  # the geometric mean
    return {diagnosis.heads[k]: float(f"{diagnosis.weights[k] * mean_norm / norms[k]:.2g}") for k in usable}
