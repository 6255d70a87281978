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

_FLOOR, _LEAST_SHARE = 0.5, 1 / 3
"""The floor that is suggested, and the share of the sum of norms that it leaves the head that leads, of however many."""

_HAS_LEARNED, _LEARNS_WELL, _STILL_MOVING = 0.5, 0.7, -0.1
"""The fraction of the loss of a constant prediction that a head has removed: above the first number, it has learned; above
the second, it learns well with the gradient that it has; below the third, its outputs are still far from the mean of its
labels."""

_RAW = 10.0
"""Labels with a deviation above this, or below one divided by it, are in raw units."""


def level_of(found: Diagnosis) -> str:
    """The level at which the heads' norms can be compared."""
    num_leaves = max((len(leaves) for leaves in found.reads), default=1)
    return "parameters" if num_leaves > 1 else "representation"


def comparable(found: Diagnosis) -> np.ndarray:
    """The positions of heads whose gradients can be compared: finite ones that reach the encoder."""
    norms = found.norms[level_of(found)]
    return np.flatnonzero(np.isfinite(norms) & (norms > 0) & (found.norms["parameters"] > 0) & found.finite)


def meant(found: Diagnosis) -> np.ndarray:
    """`[heads]`: the part of its gradient that each head has because of a weight below 1, which someone chose; at most 1.

    A weight above 1 is not taken for a wish: a loss that is summed over the batch has one, too.
    """
    weights = np.where(found.weights > 0, found.weights, 1.0)
    return np.minimum(weights / min(1.0, weights[largest(found)]), 1.0)


def is_noise(found: Diagnosis, k: int) -> bool:
    """Whether a head predicts no better than a constant, and its gradient is nothing but noise."""
    still = explained(found)[k] > _STILL_MOVING
    return bool(still and found.progress[k] == "untrained" and not found.has_signal[k] and found.signal_to_noise[k] >= 0)


def ratios(found: Diagnosis) -> np.ndarray:
    """`[heads]`: how many times as large the largest gradient is, apart from weights that were meant."""
    norms = found.norms[level_of(found)]
    with np.errstate(all="ignore"):
        return norms[largest(found)] * meant(found) / norms


def ratios_of_losses(found: Diagnosis) -> np.ndarray:
    """`[heads]`: how many times as large the loss of the head with the largest gradient is, in the same sense."""
    size = scales(found)
    with np.errstate(all="ignore"):
        return np.where(size > 0, size[largest(found)] * meant(found) / size, 1.0)


def starved(found: Diagnosis) -> list[int]:
    """The heads whose gradient is much smaller than the largest one, although they could learn from more of it.

    Left out are heads whose weight someone chose, that have little left to learn, or nothing, and that learn well.
    """
    usable = comparable(found)
    if len(usable) < 2:
        return []
    removed, of_norms, of_losses = explained(found), ratios(found), ratios_of_losses(found)
    small = [int(k) for k in usable if of_norms[k] > MUCH_LARGER and found.progress[k] != "done"]
    small = [k for k in small if not removed[k] > _LEARNS_WELL and not is_noise(found, k)]
    return [k for k in small if found.progress[k] != "noisy" or of_losses[k] > _MUCH_LARGER_LOSS]


def scales(found: Diagnosis) -> np.ndarray:
    """`[heads]`: the weighted loss of a constant prediction, or the weighted loss where that is unknown."""
    known = np.isfinite(found.constant_losses) & (found.constant_losses > 0)
    return np.abs(found.weights) * np.where(known, found.constant_losses, np.abs(found.losses))


def needs_balancing(found: Diagnosis) -> bool:
    """Whether a starved head will not catch up by itself.

    A gradient may be small because the loss is small, or because a module that is not trained yet passes little of it on.
    Only the second changes as the module learns.
    """
    small = starved(found)
    if not small or raw_both_ways(found):
        return False
    of_losses = ratios_of_losses(found)
    return any(found.progress[k] == "learning" or of_losses[k] > _MUCH_LARGER_LOSS for k in small)


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
    leader, of_norms, of_losses = largest(found), ratios(found), ratios_of_losses(found)
    wanted = np.ones(len(found.heads))
    for k in comparable(found):
        ratio = of_norms[k]
        if found.progress[k] != "learning" or found.progress[leader] not in ("learning", "done"):
            ratio = min(ratio, of_losses[k])
        # The gradient of a head that is done is small for a good reason, and says nothing about its loss.
        wanted[k] = max(1.0, (of_losses[k] if found.progress[k] == "done" else ratio) / _AT_LEAST)
    if in_raw_units(found, leader):
        wanted /= wanted.max()  # a head that is in order must not become as steep as one in raw units
    else:
        wanted = np.where([progress == "done" for progress in found.progress], 1.0, wanted)
    return {head: float(f"{factor:.3g}") for head, factor in zip(found.heads, wanted)}


def in_raw_units(found: Diagnosis, k: int) -> bool:
    """Whether a head predicts numbers that are far from mean 0 and standard deviation 1."""
    mean, deviation = abs(found.label_means[k]), found.label_deviations[k]
    return bool(deviation > _RAW or 0 < deviation < 1 / _RAW or mean > 5 * max(deviation, 1.0))


def raw_both_ways(found: Diagnosis) -> bool:
    """Whether some labels are far above unit scale and others far below it, so that no balancer finds a common scale."""
    unscaled = [k for k in comparable(found) if in_raw_units(found, k) and not found.rescales[k]]
    is_small = [0 < found.label_deviations[k] < 1 / _RAW for k in unscaled]
    return any(is_small) and not all(is_small)


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
    return {"balancer": balancing.NormFloor(floor(found), preference(found)), **at}


def floor(found: Diagnosis) -> float:
    """The part of the largest norm that is suggested as the least one of the others."""
    others = len(comparable(found)) - 1
    return round(min(_FLOOR, (1 / _LEAST_SHARE - 1) / max(others, 1)), 2)


def preference(found: Diagnosis) -> dict[str, float] | None:
    """What keeps the weights that were meant; None if there are none."""
    chosen = {found.heads[k]: float(f"{meant(found)[k]:.3g}") for k in comparable(found) if meant(found)[k] < 1}
    return chosen or None


def paces(found: Diagnosis, least: float = 0.0) -> np.ndarray:
    """`[heads]`: the pace of each head as a part of its pace alone, if the gradients are orthogonal and the step normalized.

    Source: the law in the docstring of `NormFloor`.
    """
    norms, p, usable = found.norms[level_of(found)], meant(found), comparable(found)
    targets = np.zeros(len(norms))
    targets[usable] = np.maximum(norms, least * p * (norms[usable] / p[usable]).max())[usable]
    return np.asarray(targets / np.linalg.norm(targets))
