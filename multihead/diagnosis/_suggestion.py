"""What `compile` should get, and which fixed weights would do part of it."""

from __future__ import annotations

import numpy as np

from multihead import balancing
from multihead._ground.layers import ends_in_scaling
from multihead._ground.types import Config
from multihead._update.spec import UpdateSpec
from multihead.diagnosis import Diagnosis
from multihead.scaling import Standardize

FLOOR = balancing.NormFloor().floor
"""The part of the largest gradient below which `NormFloor()` scales a gradient up."""
_RAW = 10.0
"""Labels with a deviation above it, or below one divided by it, are in raw units."""


def suggest(found: Diagnosis, spec: UpdateSpec) -> Config:
    """Keyword arguments for `compile`; no balancer where methods are configured that it would replace."""
    suggestion: Config = {}
    scalings = scaled(found, spec)
    if scalings:
        suggestion["target_scaling"] = {found.heads[k]: how for k, how in scalings.items()}
    if starved(found) and spec.methods.weighting is None and spec.methods.balancer is None:
        suggestion["balancer"] = "NormFloor"
        if level_of(found) == "parameters":
            suggestion["balance_at"] = "parameters"
    return suggestion


def in_raw_units(found: Diagnosis, spec: UpdateSpec) -> list[int]:
    """The heads that predict numbers far from mean 0 and deviation 1, and do not end in a layer that brings them there."""
    means, deviations = np.abs(found.label_means), found.label_deviations
    is_raw = (deviations > _RAW) | ((deviations > 0) & (deviations < 1 / _RAW)) | (means > 5 * np.maximum(deviations, 1.0))
    return [k for k, head in enumerate(spec.network.heads) if is_raw[k] and not ends_in_scaling(head.module)]


def scaled(found: Diagnosis, spec: UpdateSpec) -> dict[int, Standardize | str]:
    """The heads whose targets should be scaled, and how: in raw units or out of reach, and not trained yet."""
    raw = in_raw_units(found, spec)
    asked = [k for k, labels in enumerate(found.labels) if k in raw or labels.unreachable]
    new = [k for k in asked if found.progress[k] in ("untrained", "unknown")]
    return {k: scaling for k in new if (scaling := found.labels[k].scaling) is not None}


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


def equal_weights(found: Diagnosis) -> dict[str, float]:
    """Weights of the heads by name with which the measured norms would be equal: their geometric mean; none for one head."""
    usable, norms = comparable(found), found.norms[level_of(found)]
    usable = [k for k in usable if found.weights[k] > 0]
    if len(usable) < 2:
        return {}
    middle = np.exp(np.mean(np.log(norms[usable])))
    return {found.heads[k]: float(f"{found.weights[k] * middle / norms[k]:.2g}") for k in usable}
