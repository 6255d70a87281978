"""The interpretation of the measurements: one small rule per finding, in sentences for people who only want to train."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from multihead._display.tables import plain
from multihead._update.labels import read_different_tensors
from multihead._update.spec import UpdateSpec
from multihead.diagnosis import _conflicts
from multihead.diagnosis._probabilities import no_probabilities
from multihead.diagnosis._report import Diagnosis, Finding
from multihead.diagnosis._suggestion import (
    FEW,
    FLOOR,
    comparable,
    explained,
    in_raw_units,
    largest,
    level_of,
    speeds,
    starved,
    to_scale,
)

_MUCH_CLIPPED, _DEAD, _OPPOSED = 0.5, 1e-7, -0.3
_HAS_LEARNED, _STILL_MOVING = 0.5, -0.1
"""The fraction of the loss of a constant prediction that a head has removed: above the first number, it has learned; below
the second, its outputs are still far from the mean of its labels."""

Rule = Callable[[Diagnosis, UpdateSpec], Iterator[Finding]]


def broken(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Heads whose losses or gradients are not finite."""
    for k, head in enumerate(found.heads):
        if not found.finite[k]:
            yield Finding(
                f"{head!r} has losses or gradients that are not finite, and such updates are skipped. Check its labels and "
                "inputs for invalid values.",
                "not finite",
                [head],
            )


def untrainable(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Heads that have no weight or few labels."""
    for k, head in enumerate(found.heads):
        if found.labelled[k] > 0 and found.finite[k] and not found.weights[k] > 0:
            yield Finding(
                f"{head!r} is not trained, because its weight is 0. Give it a weight if it should learn.",
                "no weight",
                [head],
            )
        if found.labelled[k] < FEW:
            share = "less than 1%" if 0 < found.labelled[k] < 0.005 else f"{found.labelled[k]:.0%}"
            yield Finding(
                f"{head!r} has labels for only {share} of its elements, so its loss is measured on few examples and its "
                "gradient is noisy. Collect more labels, mix datasets (`multihead.mix_datasets`) or sample batches with "
                "more of its labels; a balancer cannot create labels.",
                "few labels",
                [head],
            )


def unreached(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """A frozen or dead encoder, and heads that do not train it."""
    at_representation, at_parameters = found.norms["representation"], found.norms["parameters"]
    if not found.layer_norms:
        yield Finding(
            "The encoder is frozen: it has no trainable variables, so the heads cannot help or disturb each other. Weights, "
            "balancers and schedules change nothing in it. If that is not what you want, set `encoder.trainable = True` "
            "and call `compile` again.",
            "frozen encoder",
        )
        return
    reaching = [k for k in range(len(found.heads)) if at_representation[k] > 0 and found.finite[k]]
    lost = [k for k in reaching if at_parameters[k] <= _DEAD * at_representation[k]]
    for k, (head, reads) in enumerate(zip(found.heads, found.reads)):
        if not spec.network.heads[k].trains_encoder:
            continue
        if not any(reads) or (k in lost and len(lost) < len(reaching)):
            yield Finding(
                f"{head!r} learns by itself and teaches the encoder nothing: what it reads is not a floating-point output "
                "of the encoder's trainable layers. Let it read one (`reads`) if it should.",
                "unreached",
                [head],
            )
        elif at_representation[k] == 0 and found.finite[k]:
            yield Finding(
                f"The representation gradient of {head!r} is zero: this head teaches the encoder nothing. Check for a "
                "constant loss, saturated or dead outputs (a `relu` whose inputs are all negative), a last layer that "
                "starts at zero, or a weight that is too small.",
                "zero gradient",
                [head],
            )
    if lost and len(lost) == len(reaching):
        yield Finding(
            "The encoder is dead: the heads' gradients arrive at its output, but none reaches its parameters, so it will "
            "never learn. Look for `relu` units whose inputs are all negative, saturated `tanh` or `sigmoid` units, inputs "
            "that were not scaled, or a `stop_gradient`. No weight or balancer helps.",
            "dead encoder",
        )


def raw_units(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Labels that are far from unit scale, of heads whose modules do not end in a layer that brings them there."""
    for k, head in enumerate(found.heads):
        if not in_raw_units(found, k):
            continue
        mean, deviation = plain(found.label_means[k]), plain(found.label_deviations[k])
        why = spec.network.heads[k].why_not_scaled()
        if head in to_scale(found):
            remedy = (
                f"Scale them before anything else: `trainer.compile(optimizer, **diagnosis.suggestion)` sets "
                f"`target_scaling='standardize'` for {head!r}, as `add_head` can ('log' if labels are above 0 and span "
                "powers of ten). Predictions and metrics stay in their units."
            )
        elif why is None and found.scalable[k]:
            remedy = (
                "It has learned already, so nothing is suggested; a new run is quicker with `add_head(..., "
                "target_scaling='standardize')`."
            )
        else:
            scale = mean if why else f"{deviation}, {mean}"
            because = f"Its loss {why}" if why else "Its predictions have other columns than its labels"
            remedy = (
                f"{because}, so no `target_scaling` fits: end the module in `keras.layers.Rescaling({scale})`, or scale "
                "the labels yourself; `suggestion` cannot do that."
            )
        yield Finding(
            f"The labels of {head!r} have mean {mean} and standard deviation {deviation}. A head starts near 0 and needs "
            "very many updates to reach numbers far from 0 and 1; weights and balancers cannot do that for it. "
            f"{remedy}",
            "units",
            [head],
        )


def different_norms(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Heads whose gradients are too small beside the largest one."""
    small = starved(found)
    if small:
        heads, level, leader = found.heads, level_of(found), largest(found)
        norms, names = found.norms[level], listed([repr(heads[k]) for k in small])
        ratios = [norms[leader] / norms[k] for k in small]
        low, high = plain(min(ratios)), plain(max(ratios))
        share = found.shares[level][leader]
        most = "almost all" if share > 0.85 else "most" if share > 0.5 else f"{share:.0%}"
        yield Finding(
            f"The {'encoder' if level == 'parameters' else level} gradient of {heads[leader]!r} is "
            f"{low if low == high else f'{low} to {high}'} times as large as {'that' if len(small) == 1 else 'those'} of "
            f"{names}: {most} of the encoder's update serves {heads[leader]!r}. {_cause(found, leader, small)} "
            f"{_advice(found, spec, small)}",
            "scale",
            [heads[k] for k in (leader, *small)],
        )


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _cause(found: Diagnosis, leader: int, small: Sequence[int]) -> str:
    """How much of the ratio of two gradients is in the losses, and what can be changed about it."""
    norms = found.norms[level_of(found)]
    smallest = min(small, key=lambda k: norms[k])
    known = np.isfinite(found.constant_losses) & (found.constant_losses > 0)
    sizes = found.weights * np.where(known, found.constant_losses, np.abs(found.losses))
    times, of_weights = (each[leader] / max(each[smallest], 1e-30) for each in (sizes, found.weights))
    if times < (norms[leader] / norms[smallest]) ** 0.25:
        return "That is not the size of its loss, but the sensitivity of its module."
    weights = f", by its weight {plain(of_weights)} times" if of_weights > 2 else ""
    return f"Its weighted loss is {plain(times)} times as large{weights}."


def _advice(found: Diagnosis, spec: UpdateSpec, small: Sequence[int]) -> str:
    """What to do about different norms, and who pays for it."""
    if spec.weighting is not None or spec.balancer is not None:
        configured = type(spec.weighting or spec.balancer).__name__
        return f"{configured} is configured already; watch whether it brings these heads together."
    before, after = speeds(found), speeds(found, FLOOR)
    gains, pays = ([k for k in comparable(found) if sign * (after - before)[k] > 0.005] for sign in (1, -1))
    said = f"By these norms, {_moves(found, gains, before, after)}"
    said += f"; the cost is that {_moves(found, pays, before, after)}." if pays else ", at almost no cost."
    least = 1 / np.sqrt(1 + (len(comparable(found)) - 1) * FLOOR**2)
    left = [
        listed([f"{found.heads[k]!r} at {speeds(found, floor)[k]:.0%}" for k in pays or [largest(found)]])
        for floor in (0.5, 1.0)
    ]
    wished = {found.heads[k]: float(plain(found.weights[k])) for k in small if found.weights[k] < 1}
    kept = (
        f" If the weight of {listed([repr(head) for head in wished])} was meant, add `preference={wished}`."
        if wished
        else ""
    )
    return (
        "Balance the heads: `trainer.compile(optimizer, **diagnosis.suggestion)` uses `NormFloor()`, which scales smaller "
        f"gradients up to {FLOOR:.0%} of the largest. {said} However the norms change, each head keeps at least {least:.0%} "
        "of its speed in the plain sum. If a small head should gain more, raise the floor: `NormFloor(0.5)` leaves "
        f"{left[0]}, and `NormFloor(1.0)` leaves {left[1]}.{kept} Compare each head with the plain sum on held-out data."
    )


def _moves(found: Diagnosis, heads: Sequence[int], before: np.ndarray, after: np.ndarray) -> str:
    """The speeds of some heads with the suggestion and in the plain sum."""
    alone = (" of its speed alone" if i == 0 else "" for i in range(len(heads)))
    return listed(
        [f"{found.heads[k]!r} moves at {after[k]:.0%}{words} instead of {before[k]:.1%}" for k, words in zip(heads, alone)]
    )


def behind(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Heads that have learned nothing while others have, although their gradients are large enough."""
    heads, removed, small = found.heads, explained(found), starved(found)
    if not (removed > _HAS_LEARNED).any():
        return
    best = int(np.nanargmax(removed))
    for k in comparable(found):
        if found.progress[k] != "untrained" or k in small or not removed[k] > _STILL_MOVING or found.labelled[k] < FEW:
            continue
        cosine = found.mean_cosines[k, best]
        opposed = f", and on average their gradients are opposed (cosine {cosine:.2f})" if cosine < _OPPOSED else ""
        yield Finding(
            f"{heads[k]!r} predicts no better than a constant, while {heads[best]!r} has removed {removed[best]:.0%} of "
            f"the loss of a constant{opposed}. If {heads[k]!r} is new, train an epoch and diagnose again. Otherwise train "
            "it alone for a while (`trainer.set_weight(name, 0.0)` for the other heads). If it learns alone, the heads "
            "compete: give the encoder a larger output or more layers, or these heads layers of their own. If it does not, "
            "look at its labels, its inputs and its module: no weight or balancer helps.",
            "left behind",
            [heads[k], heads[best]],
        )


def clipping(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Clipping that takes most of the gradient away."""
    if spec.clip is not None and found.clipped < _MUCH_CLIPPED:
        yield Finding(
            f"On average, clipping reduces the gradient norm of {plain(found.update_norm)} to {found.clipped:.2g} of its "
            "size. This scales all heads by the same factor and leaves almost nothing of small gradients: bring the heads "
            "to similar norms first, or raise the limit.",
            "clipping",
        )


def different_tensors(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Heads that read different tensors of the representation."""
    apart = read_different_tensors(spec.predictions)
    if apart:
        heads = found.heads
        pairs = "; ".join(f"{heads[i]!r} and {heads[j]!r}" for i, j in apart)
        yield Finding(
            f"{pairs} read no common tensor of the representation, so their gradients cannot be compared there (a cosine of "
            "0 says nothing): they are compared at the parameters. With a balancer, pass `balance_at='parameters'`.",
            "different tensors",
            sorted({heads[k] for pair in apart for k in pair}, key=heads.index),
        )


RULES: tuple[Rule, ...] = (
    broken, no_probabilities, untrainable, unreached, raw_units, different_norms, behind, _conflicts.conflicts,
    clipping,
)  # fmt: skip
"""The rules, in the order in which their findings are shown."""

NOTES: tuple[Rule, ...] = (_conflicts.cannot_tell, different_tensors)
"""Rules about the limits of the measurements; alone they do not mean that anything is wrong."""


def find(found: Diagnosis, spec: UpdateSpec) -> tuple[Finding, ...]:
    """All findings about a diagnosis; a finding of its own if there are no others."""
    findings = [finding for rule in RULES for finding in rule(found, spec)] or [_nothing(found)]
    return (*findings, *(finding for rule in NOTES for finding in rule(found, spec)))


def _nothing(found: Diagnosis) -> Finding:
    if len(comparable(found)) < 2:
        return Finding("There is nothing to compare: fewer than two heads have an encoder gradient.", "nothing to compare")
    known = " and they do not conflict"
    unknown = "; whether they conflict can be told only of heads that have learned something and are not done"
    return Finding(
        f"No head's gradient is below {FLOOR:.0%} of the largest{known if _conflicts.are_known(found) else unknown}. Here "
        "the plain sum is enough: `NormFloor()` would act only if a gradient falls below that later.",
        "healthy",
        found.heads,
    )
