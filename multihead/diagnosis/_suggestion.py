"""What brings starved heads back, where that is safe."""

from __future__ import annotations

from typing import Any

import numpy as np

from multihead import balancing
from multihead._update.spec import UpdateSpec
from multihead.diagnosis._report import Diagnosis

MUCH_LARGER = 10.0
"""The ratio of two heads' gradient norms from which the smaller one counts as starved."""

FEW = 0.1
"""The fraction of labelled elements below which a head has few labels."""

_MUCH_LARGER_LOSS = 4.0
"""The ratio of two losses from which a starved head stays starved, however its module learns."""

_AT_LEAST = 4.0
"""Fixed weights leave no head's gradient smaller than the largest one divided by this.

Not 1, because weights do not follow the norms as these change.
"""

_LEAST_SHARE = 1 / 3
"""The share that the leading head keeps, however many others there are. Of six heads on a small encoder, one that fell to
a sixth ended worse than by the plain sum; with a third, it did not, and the others gained the same."""

_HAS_LEARNED, _STILL_MOVING = 0.5, -0.1
"""The fraction of the loss of a constant prediction that a head has removed: above the first number, it learns well; below
the second, its outputs are still far from the mean of its labels."""


def level_of(found: Diagnosis) -> str:
    """The level at which the heads' norms can be compared."""
    num_leaves = max((len(leaves) for leaves in found.reads), default=1)
    return "parameters" if num_leaves > 1 else "representation"


def comparable(found: Diagnosis) -> np.ndarray:
    """The positions of heads whose gradients can be compared: finite ones that reach the encoder."""
    norms = found.norms[level_of(found)]
    return np.flatnonzero(np.isfinite(norms) & (norms > 0) & (found.norms["parameters"] > 0) & found.finite)


def starved(found: Diagnosis) -> list[int]:
    """The heads whose gradient is much smaller than the largest one, and not because there is little left to learn."""
    usable, norms, size = comparable(found), found.norms[level_of(found)], scales(found)
    if len(usable) < 2:
        return []
    leader = largest(found)
    small = [int(k) for k in usable if norms[k] * MUCH_LARGER < norms[leader] and found.progress[k] != "done"]
    return [k for k in small if found.progress[k] != "noisy" or size[leader] > _MUCH_LARGER_LOSS * size[k]]


def scales(found: Diagnosis) -> np.ndarray:
    """`[heads]`: the weighted loss of a constant prediction, or the weighted loss where that is unknown."""
    known = np.isfinite(found.constant_losses) & (found.constant_losses > 0)
    return np.abs(found.weights) * np.where(known, found.constant_losses, np.abs(found.losses))


def needs_balancing(found: Diagnosis) -> bool:
    """Whether a starved head will not catch up by itself.

    A gradient may be small because the loss is small, or because a module that is not trained yet passes little of it on.
    Only the second changes as the module learns.
    """
    size, small = scales(found), starved(found)
    return any(found.progress[k] == "learning" or size[largest(found)] > _MUCH_LARGER_LOSS * size[k] for k in small)


def largest(found: Diagnosis) -> int:
    """The position of the head with the largest gradient."""
    usable, norms = comparable(found), found.norms[level_of(found)]
    return int(usable[np.argmax(norms[usable])])


def factors(found: Diagnosis) -> dict[str, float]:
    """By head name, a factor of the loss for every head; empty if the heads need none.

    A factor of an untrained head is at most the ratio of the losses of constant predictions, which does not depend on
    modules.
    """
    if not needs_balancing(found):
        return {}
    norms, size, leader = found.norms[level_of(found)], scales(found), largest(found)
    wanted = np.ones(len(found.heads))
    for k in comparable(found):
        ratio, of_losses = norms[leader] / norms[k], size[leader] / size[k] if size[k] > 0 else 1.0
        if found.progress[k] != "learning" or found.progress[leader] not in ("learning", "done"):
            ratio = min(ratio, of_losses)
        # The gradient of a head that is done is small for a good reason, and says nothing about its loss.
        wanted[k] = max(1.0, (of_losses if found.progress[k] == "done" else ratio) / _AT_LEAST)
    if in_raw_units(found, leader):
        wanted /= wanted.max()  # a head that is in order must not become as steep as one in raw units
    else:
        wanted = np.where([progress == "done" for progress in found.progress], 1.0, wanted)
    return {head: float(f"{factor:.3g}") for head, factor in zip(found.heads, wanted)}


def in_raw_units(found: Diagnosis, k: int) -> bool:
    """Whether a head predicts numbers that are far from mean 0 and standard deviation 1."""
    mean, deviation = abs(found.label_means[k]), found.label_deviations[k]
    return bool(deviation > 10 or 0 < deviation < 0.1 or mean > 5 * max(deviation, 1.0))


def explained(found: Diagnosis) -> np.ndarray:
    """`[heads]`: the part of the loss of a constant prediction that a head has removed; NaN if unknown."""
    with np.errstate(all="ignore"):
        return 1 - found.losses / np.where(found.constant_losses > 0, found.constant_losses, np.nan)


def left_behind(found: Diagnosis) -> list[int]:
    """The heads that predict no better than a constant, with gradients large enough, while others have learned."""
    removed, small = explained(found), starved(found)
    if not (removed > _HAS_LEARNED).any():
        return []
    heads = [int(k) for k in comparable(found) if found.progress[k] == "untrained" and k not in small]
    return [k for k in heads if removed[k] > _STILL_MOVING and found.labelled[k] >= FEW]


def suggest(found: Diagnosis, spec: UpdateSpec) -> dict[str, Any]:
    """Keyword arguments for `compile`; empty where methods are configured that they would replace."""
    if spec.weighting is not None or spec.balancer is not None or not needs_balancing(found):
        return {}
    at = {"balance_at": "parameters"} if level_of(found) == "parameters" else {}
    return {"balancer": balancing.EqualNorms(preference(found)), **at}


def preference(found: Diagnosis) -> dict[str, float] | None:
    """What leaves the head that leads a third of the encoder's update; None if equal norms do."""
    others = len(comparable(found)) - 1
    return {found.heads[largest(found)]: round(others * _LEAST_SHARE / (1 - _LEAST_SHARE), 3)} if others > 2 else None
