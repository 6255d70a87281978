"""Whether heads oppose each other, where, and whether that can be told at all.

Gradients of heads that have not learned anything say how far the outputs are from the labels' mean, and those of heads that
are done are noise. Neither shows a conflict, whatever its cosine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from multihead._update.spec import UpdateSpec
from multihead.diagnosis._report import Diagnosis, Finding
from multihead.diagnosis._statistics import Cosines
from multihead.diagnosis._suggestion import left_behind

_OPPOSED, _OPPOSED_IN_LAYER, _STRONGLY_OPPOSED, _EQUAL, _LARGE_ENOUGH = -0.1, -0.3, -0.4, 0.98, 0.05


def conflicts(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Pairs of heads whose gradients oppose each other at the encoder's parameters."""
    for i, j in _pairs(found):
        if not _is_opposed(found, i, j) or not _can_be_told(found, i, j):
            continue
        one, other = found.heads[i], found.heads[j]
        cosine, share = found.cosines["parameters"][i, j], found.conflicts["parameters"][i, j]
        at_representation = found.spreads["representation"].mean[i, j]
        hidden = " with `balance_at='parameters'`, because the conflict does not show at the representation"
        where = "" if at_representation < _OPPOSED else hidden
        layer = _most_opposed_layer(found, i, j)
        in_layer = "" if layer is None else f" Most of it is in the layer {layer!r}."
        yield Finding(
            f"The gradients of {one!r} and {other!r} conflict in {share:.0%} of the batches (mean cosine {cosine:.2f} at "
            f"the parameters): an update that improves one makes the other worse.{in_layer} Give the encoder more capacity, "
            f"or these heads layers of their own; or try `balancer=balancing.UPGrad()`{where} and compare both heads with "
            "the plain sum.",
            "conflict",
            [one, other],
        )


def conflicts_in_layers(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Pairs of heads that oppose each other in some of the encoder's layers only."""
    for i, j in _pairs(found):
        layers = _opposed_layers(found, i, j)
        if not layers or _is_opposed(found, i, j) or not _can_be_told(found, i, j):
            continue
        one, other = found.heads[i], found.heads[j]
        names = " and ".join(f"{name!r} (cosine {found.layer_cosines[name].mean[i, j]:.2f})" for name in layers)
        yield Finding(
            f"{one!r} and {other!r} conflict in the layer {names} only; over all layers their cosine is "
            f"{found.cosines['parameters'][i, j]:.2f}. Give each of them that layer of its own: move a copy of it from the "
            "encoder into both heads, and leave the rest shared.",
            "conflict in one layer",
            [one, other],
        )


def equal_heads(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Pairs of heads that train the encoder to do the same."""
    for i, j in _pairs(found):
        spread = found.spreads["parameters"]
        is_parallel = spread.low[i, j] > _EQUAL and _can_be_told(found, i, j)
        if (i, j) not in found.equal_labels and not is_parallel:
            continue
        one, other = found.heads[i], found.heads[j]
        same = "the same labels" if (i, j) in found.equal_labels else "nearly the same gradient"
        yield Finding(
            f"{one!r} and {other!r} have {same}: they train the encoder to do one thing, which counts twice. Drop one of "
            "them, or halve both weights, unless that is what you want.",
            "equal heads",
            [one, other],
        )


def cannot_tell(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Pairs of heads with opposed gradients for which a conflict can be neither shown nor excluded yet."""
    said = set(left_behind(found))
    untold = [
        (i, j)
        for i, j in _pairs(found)
        if not _can_be_told(found, i, j) and _seems_opposed(found, i, j) and not {i, j} & said
    ]
    if not untold:
        return
    early = sorted({k for pair in untold for k in pair if found.progress[k] == "untrained"})
    pairs = "; ".join(f"{found.heads[i]!r} and {found.heads[j]!r} ({_measured(found, i, j)})" for i, j in untold)
    if early:
        names = ", ".join(repr(found.heads[k]) for k in early)
        sentence = (
            f"It cannot be told yet whether some heads oppose each other: {pairs}. As yet {names} predicts no better than a "
            "constant, so these gradients mostly move its outputs towards the mean of the labels, which soon passes. Train "
            "an epoch or more with the plain sum, and diagnose again."
        )
    else:
        sentence = (
            f"It cannot be told whether some heads oppose each other: {pairs}. The rest of their gradients is mostly "
            "noise, which differs from batch to batch. Measure more or larger batches if it matters; otherwise change "
            "nothing."
        )
    heads = [found.heads[k] for k in sorted({k for pair in untold for k in pair})]
    yield Finding(sentence, "untrained" if early else "noise", heads)


def are_known(found: Diagnosis) -> bool:
    """Whether it can be told of all pairs of heads that they do not oppose each other."""
    return all(_can_be_told(found, i, j) for i, j in _pairs(found))


def _pairs(found: Diagnosis) -> Iterator[tuple[int, int]]:
    """Pairs of heads that have gradients in common batches."""
    cosines = found.cosines["parameters"]
    return ((i, j) for i, j in itertools.combinations(range(len(found.heads)), 2) if np.isfinite(cosines[i, j]))


def _can_be_told(found: Diagnosis, i: int, j: int) -> bool:
    told = ("learning", "unknown")
    return found.progress[i] in told and found.progress[j] in told and bool(found.has_signal[i] and found.has_signal[j])


def _seems_opposed(found: Diagnosis, i: int, j: int) -> bool:
    """Whether the mean cosine is more negative than those of heads that were just created."""
    spread = found.spreads["parameters"]
    return bool(spread.mean[i, j] < _STRONGLY_OPPOSED and not spread.high[i, j] > _OPPOSED)


def _is_opposed(found: Diagnosis, i: int, j: int) -> bool:
    """Whether the gradients are clearly opposed, in single batches and in the mean over all."""
    spread = found.spreads["parameters"]
    return bool(spread.mean[i, j] < _OPPOSED and spread.high[i, j] < 0 and found.mean_cosines[i, j] < _OPPOSED)


def _opposed_layers(found: Diagnosis, i: int, j: int) -> list[str]:
    """The layers with a fair part of both gradients in which these are clearly opposed."""
    norms = found.norms["parameters"]
    return [
        name
        for name, spread in found.layer_cosines.items()
        if _is_clear(spread, i, j) and all(found.layer_norms[name][k] ** 2 >= _LARGE_ENOUGH * norms[k] ** 2 for k in (i, j))
    ]


def _is_clear(spread: Cosines, i: int, j: int) -> bool:
    return bool(spread.mean[i, j] < _OPPOSED_IN_LAYER and spread.high[i, j] < _OPPOSED)


def _most_opposed_layer(found: Diagnosis, i: int, j: int) -> str | None:
    """The layer with the most negative inner product, if there are several layers."""
    if len(found.layer_cosines) < 2:
        return None
    products = {
        name: spread.mean[i, j] * found.layer_norms[name][i] * found.layer_norms[name][j]
        for name, spread in found.layer_cosines.items()
        if np.isfinite(spread.mean[i, j])
    }
    return min(products, key=lambda name: products[name]) if products else None


def _measured(found: Diagnosis, i: int, j: int) -> str:
    layers = _opposed_layers(found, i, j)
    where = "" if not layers else f", most in {layers[0]!r}"
    return f"cosine {found.cosines['parameters'][i, j]:.2f}{where}"
