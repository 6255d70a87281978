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

_OPPOSED, _OPPOSED_IN_LAYER, _STRONGLY_OPPOSED, _LARGE_ENOUGH = -0.1, -0.3, -0.4, 0.05


def conflicts(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Pairs of heads whose gradients oppose each other at the encoder's parameters, or in some of its layers only."""
    spread = found.spreads["parameters"]
    for i, j in _pairs(found):
        if not _can_be_told(found, i, j):
            continue
        one, other = found.heads[i], found.heads[j]
        cosine, share = spread.mean[i, j], spread.negative[i, j]
        layers = _opposed_layers(found, i, j)
        if cosine < _OPPOSED and spread.high[i, j] < 0 and found.mean_cosines[i, j] < _OPPOSED:
            is_seen = found.spreads["representation"].mean[i, j] < _OPPOSED
            where = (
                "" if is_seen else " with `balance_at='parameters'`, since the conflict does not show at the representation"
            )
            in_layer = f" Most of it is in the layer {layers[0]!r}." if layers and len(found.layer_norms) > 1 else ""
            yield Finding(
                f"The gradients of {one!r} and {other!r} conflict in {share:.0%} of the batches (mean cosine {cosine:.2f} "
                f"at the parameters): an update that improves one makes the other worse.{in_layer} Give the encoder more "
                f"capacity, or these heads layers of their own; or try `balancer=balancing.UPGrad()`{where} and compare "
                "both heads with the plain sum.",
                "conflict",
                [one, other],
            )
        elif layers:
            names = " and ".join(f"{name!r} (cosine {found.layer_cosines[name].mean[i, j]:.2f})" for name in layers)
            yield Finding(
                f"{one!r} and {other!r} conflict in the layer {names} only; over all layers their cosine is {cosine:.2f}. "
                "Give each of them that layer of its own: move a copy of it from the encoder into both heads, and leave "
                "the rest shared.",
                "conflict in one layer",
                [one, other],
            )


def cannot_tell(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Pairs of heads with opposed gradients for which a conflict can be neither shown nor excluded yet."""
    spread = found.spreads["parameters"]
    untold = [
        (i, j)
        for i, j in _pairs(found)
        if not _can_be_told(found, i, j) and spread.mean[i, j] < _STRONGLY_OPPOSED and not spread.high[i, j] > _OPPOSED
    ]
    if untold:
        heads = sorted({k for pair in untold for k in pair})
        early = any(found.progress[k] == "untrained" for k in heads)
        pairs = "; ".join(f"{found.heads[i]!r} and {found.heads[j]!r} (cosine {spread.mean[i, j]:.2f})" for i, j in untold)
        because = (
            "heads that predict no better than a constant mostly move their outputs to the mean of the labels. Train an "
            "epoch, and diagnose again."
            if early
            else "their gradients are mostly noise, which differs from batch to batch. Measure more or larger batches."
        )
        names = [found.heads[k] for k in heads]
        yield Finding(f"It cannot be told whether {pairs} conflict: {because}", "unclear", names)


def are_known(found: Diagnosis) -> bool:
    """Whether it can be told of all pairs of heads that they do not oppose each other."""
    return all(_can_be_told(found, i, j) for i, j in _pairs(found))


def _pairs(found: Diagnosis) -> Iterator[tuple[int, int]]:
    """Pairs of heads that have gradients in common batches."""
    cosines = found.cosines["parameters"]
    return ((i, j) for i, j in itertools.combinations(range(len(found.heads)), 2) if np.isfinite(cosines[i, j]))


def _can_be_told(found: Diagnosis, i: int, j: int) -> bool:
    return all(found.progress[k] in ("learning", "unknown") and found.has_signal[k] for k in (i, j))


def _opposed_layers(found: Diagnosis, i: int, j: int) -> list[str]:
    """The layers with a fair part of both gradients in which these are clearly opposed, the most opposed one first."""
    norms, layers = found.norms["parameters"], []
    for name, spread in found.layer_cosines.items():
        of_layer = found.layer_norms[name]
        is_large = all(of_layer[k] ** 2 >= _LARGE_ENOUGH * norms[k] ** 2 for k in (i, j))
        if is_large and spread.mean[i, j] < _OPPOSED_IN_LAYER and spread.high[i, j] < _OPPOSED:
            layers.append((spread.mean[i, j] * of_layer[i] * of_layer[j], name))
    return [name for _, name in sorted(layers)]
