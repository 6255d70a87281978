"""The weights that bring starved heads back, where that is safe."""

from __future__ import annotations

from typing import Any

import numpy as np

from multihead import weighting
from multihead._update.spec import UpdateSpec
from multihead.diagnosis._report import Diagnosis

MUCH_LARGER = 10.0
"""The ratio of two heads' gradient norms from which the smaller one counts as starved."""

_AT_LEAST = 4.0
"""No head's gradient should be smaller than the largest one divided by this.

Not 1, because a head that leads should go on leading: of weights tried on data in raw units, with too few updates and with
enough, these took nothing from the largest head that three seeds could tell, and gave the others most of what equal norms
would.
"""


def level_of(found: Diagnosis) -> str:
    """The level at which the heads' norms can be compared."""
    num_leaves = max((len(leaves) for leaves in found.reads), default=1)
    return "parameters" if num_leaves > 1 else "representation"


def comparable(found: Diagnosis) -> np.ndarray:
    """The positions of heads whose gradients can be compared: finite ones that reach the encoder."""
    norms = found.norms[level_of(found)]
    return np.flatnonzero(np.isfinite(norms) & (norms > 0) & (found.norms["parameters"] > 0) & found.finite)


def starved(found: Diagnosis) -> list[int]:
    """The heads whose gradient is much smaller than the largest one, without those that are done."""
    usable, norms = comparable(found), found.norms[level_of(found)]
    if len(usable) < 2:
        return []
    largest = norms[usable].max()
    return [int(k) for k in usable if norms[k] * MUCH_LARGER < largest and found.progress[k] != "done"]


def scales(found: Diagnosis) -> np.ndarray:
    """`[heads]`: the weighted loss of a constant prediction, or the weighted loss where that is unknown."""
    known = np.isfinite(found.constant_losses) & (found.constant_losses > 0)
    return np.abs(found.weights) * np.where(known, found.constant_losses, np.abs(found.losses))


def factors(found: Diagnosis) -> dict[str, float]:
    """By head name, a factor of the loss for every head; empty if the heads need none, or none is safe.

    A gradient may be small because the loss is small, or because a module that is not trained yet passes little of it on.
    The second changes as the module learns, so a factor of an untrained head is at most the ratio of the losses of constant
    predictions, which does not depend on modules.
    """
    if not starved(found):
        return {}
    usable, norms, size = comparable(found), found.norms[level_of(found)], scales(found)
    largest = usable[np.argmax(norms[usable])]
    wanted = np.ones(len(found.heads))
    for k in usable:
        ratio = norms[largest] / norms[k]
        if found.progress[k] != "learning" or found.progress[largest] not in ("learning", "done"):
            ratio = min(ratio, size[largest] / size[k]) if size[k] > 0 else 1.0
        if found.progress[k] != "done":
            wanted[k] = max(1.0, ratio / _AT_LEAST)
    if wanted.max() < 1.5:
        return {}
    if in_raw_units(found, int(largest)):
        wanted /= wanted.max()  # a head that is in order must not become as steep as one in raw units
    return {head: float(f"{factor:.3g}") for head, factor in zip(found.heads, wanted)}


def in_raw_units(found: Diagnosis, k: int) -> bool:
    """Whether a head predicts numbers that are far from mean 0 and standard deviation 1."""
    mean, deviation = abs(found.label_means[k]), found.label_deviations[k]
    return bool(deviation > 10 or 0 < deviation < 0.1 or mean > 5 * max(deviation, 1.0))


def suggest(found: Diagnosis, spec: UpdateSpec) -> dict[str, Any]:
    """Keyword arguments for `compile`; empty where methods are configured that they would replace."""
    found_factors = factors(found) if spec.weighting is None and spec.balancer is None else {}
    return {"weighting": weighting.Fixed(found_factors)} if found_factors else {}
