"""What `compile` should be given: a floor for the heads' gradients, and scalings of targets."""

from __future__ import annotations

from typing import Any

import numpy as np

from multihead import balancing
from multihead._update.spec import UpdateSpec
from multihead.diagnosis._report import Diagnosis

FLOOR = balancing.NormFloor().floor
"""The part of the largest gradient below which `NormFloor()` scales a gradient up."""

FEW = 0.1
"""The fraction of labelled elements below which a head has few labels."""

_RAW = 10.0
"""Labels with a deviation above this, or below one divided by it, are in raw units."""


def level_of(found: Diagnosis) -> str:
    """The level at which the heads' norms can be compared."""
    return "parameters" if max((len(leaves) for leaves in found.reads), default=1) > 1 else "representation"


def comparable(found: Diagnosis) -> np.ndarray:
    """The positions of heads whose gradients can be compared: finite ones that reach the encoder."""
    norms = found.norms[level_of(found)]
    return np.flatnonzero(np.isfinite(norms) & (norms > 0) & (found.norms["parameters"] > 0) & found.finite)


def largest(found: Diagnosis) -> int:
    """The position of the head with the largest gradient."""
    usable, norms = comparable(found), found.norms[level_of(found)]
    return int(usable[np.argmax(norms[usable])])


def starved(found: Diagnosis) -> list[int]:
    """The heads whose gradients `NormFloor()` would scale up."""
    usable, norms = comparable(found), found.norms[level_of(found)]
    return [int(k) for k in usable if norms[k] < FLOOR * norms[usable].max()]


def in_raw_units(found: Diagnosis, k: int) -> bool:
    """Whether a head predicts numbers that are far from mean 0 and standard deviation 1."""
    mean, deviation = abs(found.label_means[k]), found.label_deviations[k]
    is_raw = deviation > _RAW or 0 < deviation < 1 / _RAW or mean > 5 * max(deviation, 1.0)
    return bool(is_raw and not found.rescales[k])


def to_scale(found: Diagnosis) -> dict[str, str]:
    """By head, the `target_scaling` that brings labels in raw units to unit scale, of heads that have not learned yet."""
    heads = enumerate(found.heads)
    is_new = [progress in ("untrained", "unknown") for progress in found.progress]
    return {head: "standardize" for k, head in heads if in_raw_units(found, k) and found.scalable[k] and is_new[k]}


def suggest(found: Diagnosis, spec: UpdateSpec) -> dict[str, Any]:
    """Keyword arguments for `compile`; no balancer where methods are configured that it would replace."""
    suggestion: dict[str, Any] = {}
    if to_scale(found):
        suggestion["target_scaling"] = to_scale(found)
    if starved(found) and spec.weighting is None and spec.balancer is None:
        suggestion["balancer"] = balancing.NormFloor()
        if level_of(found) == "parameters":
            suggestion["balance_at"] = "parameters"
    return suggestion


def speeds(found: Diagnosis, floor: float = 0.0) -> np.ndarray:
    """`[heads]`: the speed of each head as a part of its speed alone, if gradients are orthogonal and the step normalized.

    Source: the law in the docstring of `NormFloor`.
    """
    norms, usable = found.norms[level_of(found)], comparable(found)
    targets = np.zeros(len(norms))
    targets[usable] = np.maximum(norms[usable], floor * norms[usable].max())
    return np.asarray(targets / np.linalg.norm(targets))


def explained(found: Diagnosis) -> np.ndarray:
    """`[heads]`: the part of the loss of a constant prediction that a head has removed; NaN if unknown."""
    with np.errstate(all="ignore"):
        return 1 - found.losses / np.where(found.constant_losses > 0, found.constant_losses, np.nan)
