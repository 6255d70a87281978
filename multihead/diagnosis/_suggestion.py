"""Which heads can be compared and which starve; and what `compile` should be given for them."""

from __future__ import annotations

import numpy as np

from multihead import balancing
from multihead._ground.layers import ends_in_scaling
from multihead._ground.types import Config
from multihead._update.spec import UpdateSpec
from multihead.diagnosis import Diagnosis

FLOOR = balancing.NormFloor().floor
"""The part of the largest gradient below which `NormFloor()` scales a gradient up."""

_RAW = 10.0
"""Labels with a deviation above this, or below one divided by it, are in raw units."""


def level_of(found: Diagnosis) -> str:
    """The level at which the heads' norms can be compared."""
    return "parameters" if max((len(leaves) for leaves in found.reads), default=1) > 1 else "representation"


def comparable(found: Diagnosis) -> np.ndarray:
    """The positions of heads whose gradients can be compared: finite ones that reach the encoder."""
    norms = found.norms[level_of(found)]
    return np.flatnonzero(np.isfinite(norms) & (norms > 0) & (found.norms["parameters"] > 0) & found.finite)


def starved(found: Diagnosis) -> list[int]:
    """The heads whose gradients `NormFloor()` would scale up."""
    usable, norms = comparable(found), found.norms[level_of(found)]
    return [int(k) for k in usable if norms[k] < FLOOR * norms[usable].max()]


def speeds(found: Diagnosis, floor: float = 0.0) -> np.ndarray:
    """`[heads]`: the speed of each head as a part of its speed alone, if gradients are orthogonal and the step normalized.

    Source: the law in the docstring of `NormFloor`.
    """
    norms, usable = found.norms[level_of(found)], comparable(found)
    targets = np.zeros(len(norms))
    targets[usable] = np.maximum(norms[usable], floor * norms[usable].max())
    return np.asarray(targets / np.linalg.norm(targets))


def in_raw_units(found: Diagnosis, spec: UpdateSpec) -> list[int]:
    """The heads that predict numbers far from mean 0 and deviation 1, and do not end in a layer that brings them there."""
    means, deviations = np.abs(found.label_means), found.label_deviations
    is_raw = (deviations > _RAW) | ((deviations > 0) & (deviations < 1 / _RAW)) | (means > 5 * np.maximum(deviations, 1.0))
    return [k for k, head in enumerate(spec.network.heads) if is_raw[k] and not ends_in_scaling(head.module)]


def to_scale(found: Diagnosis, spec: UpdateSpec) -> list[int]:
    """Those of them that have not learned yet, and whose labels a `target_scaling` can bring to unit scale."""
    is_new = [progress in ("untrained", "unknown") for progress in found.progress]
    return [k for k in in_raw_units(found, spec) if found.scalable[k] and is_new[k]]


def suggest(found: Diagnosis, spec: UpdateSpec) -> Config:
    """Keyword arguments for `compile`; no balancer where methods are configured that it would replace."""
    suggestion: Config = {}
    if to_scale(found, spec):
        suggestion["target_scaling"] = {found.heads[k]: "standardize" for k in to_scale(found, spec)}
    if starved(found) and spec.weighting is None and spec.balancer is None:
        suggestion["balancer"] = balancing.NormFloor()
        if level_of(found) == "parameters":
            suggestion["balance_at"] = "parameters"
    return suggestion
