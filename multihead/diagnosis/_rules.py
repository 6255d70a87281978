"""The interpretation of the figures: one small rule per finding, in sentences for people who only want to train."""

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
    MUCH_LARGER,
    comparable,
    explained,
    floor,
    in_raw_units,
    is_noise,
    largest,
    left_behind,
    level_of,
    meant,
    paces,
    ratios,
    raw_both_ways,
    scales,
    starved,
    suggest,
)

_MUCH_CLIPPED, _DEAD, _OPPOSED = 0.5, 1e-7, -0.3

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
    for head, reads in zip(spec.network.heads, found.reads):
        if head.trains_encoder and not any(reads):
            yield Finding(
                f"{head.name!r} reads none of the encoder's floating-point outputs, so it learns by itself and teaches the "
                "encoder nothing. Let it read one of them (`reads`) if it should.",
                "unreached",
                [head.name],
            )
    hearing = [k for k, reads in enumerate(found.reads) if any(reads)]
    silent = [k for k in hearing if at_representation[k] == 0 and found.finite[k]]
    for k in silent:
        yield Finding(
            f"The representation gradient of {found.heads[k]!r} is zero: this head teaches the encoder nothing. Check for a "
            "constant loss, saturated or dead outputs (a `relu` whose inputs are all negative), a last layer that starts at "
            "zero, or a weight that is too small.",
            "zero gradient",
            [found.heads[k]],
        )
    reaching = [k for k in range(len(found.heads)) if at_representation[k] > 0 and found.finite[k]]
    lost = [k for k in reaching if at_parameters[k] <= _DEAD * at_representation[k]]
    if lost and len(lost) == len(reaching):
        yield Finding(
            "The encoder is dead: the heads' gradients arrive at its output, but none reaches its parameters, so it will "
            "never learn. Look for `relu` units whose inputs are all negative, saturated `tanh` or `sigmoid` units, inputs "
            "that were not scaled, or a `stop_gradient`. No weight or balancer helps.",
            "dead encoder",
        )
    elif lost:
        for k in lost:
            yield Finding(
                f"{found.heads[k]!r} never reaches the encoder's parameters: what it reads does not depend on trainable "
                "variables of the encoder. It learns by itself and shares nothing with the other heads. Let it read an "
                "output of the encoder's layers (`reads`) if it should.",
                "unreached",
                [found.heads[k]],
            )


def raw_units(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Labels that are far from unit scale, of heads whose modules do not end in a layer that brings them there."""
    for k, head in enumerate(found.heads):
        if in_raw_units(found, k) and not found.rescales[k]:
            mean, deviation = plain(found.label_means[k]), plain(found.label_deviations[k])
            yield Finding(
                f"The labels of {head!r} have mean {mean} and standard deviation {deviation}. Scale them before anything "
                f"else: `add_head({head!r}, ..., target_scaling='standardize')`, or 'log' if they are above 0 and span "
                "powers of ten; predictions and metrics stay in their units. A head starts near 0 and needs very many "
                "updates to reach numbers far from 0 and 1; weights and balancers cannot do that for it.",
                "units",
                [head],
            )


def different_norms(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Heads whose gradients are too small beside the largest one."""
    heads, level = found.heads, level_of(found)
    usable, norms = comparable(found), found.norms[level]
    small = starved(found)
    if small:
        leader = largest(found)
        names = listed([repr(heads[k]) for k in small])
        kind = "encoder" if level == "parameters" else "representation"
        cause, is_scale = _cause(found, leader, small)
        advice = _advice(found, spec)
        yield Finding(
            f"The {kind} gradient of {heads[leader]!r} is {_span([norms[leader] / norms[k] for k in small])} times as large "
            f"as {'that' if len(small) == 1 else 'those'} of {names}: {_most(found.shares[level][leader])} of the encoder's "
            f"update serves {heads[leader]!r}. Cause: {cause}.{_of_clipping(found, spec, names)} {advice}",
            "scale" if is_scale else "sensitivity",
            [heads[k] for k in (leader, *small)],
        )
    for k in usable:
        if norms[k] * MUCH_LARGER >= norms[usable].max() or k in small:
            continue
        if found.progress[k] == "done":
            yield Finding(
                f"{heads[k]!r} is done: its loss of {plain(found.losses[k])} is far below the "
                f"{plain(found.constant_losses[k])} of a constant prediction, and its gradient is small because there is "
                "little left to learn. Leave its weight alone.",
                "done",
                [heads[k]],
            )
        elif ratios(found)[k] <= MUCH_LARGER:
            yield Finding(
                f"The gradient of {heads[k]!r} is small because of its weight, {plain(found.weights[k])}. If it is an "
                "auxiliary head, that is as it should be; give it a weight of 1 if it should count as much as the others.",
                "small weight",
                [heads[k]],
            )
        elif is_noise(found, k):
            yield Finding(
                f"{heads[k]!r} predicts no better than a constant, and its gradient is nothing but noise in these batches: "
                "its labels may not depend on the inputs. A larger share of the encoder would only disturb the others. "
                "Train it alone to see whether it can learn, or diagnose with more batches (`batches=`).",
                "noise",
                [heads[k]],
            )
        elif found.progress[k] == "noisy":
            yield Finding(
                f"The gradient of {heads[k]!r} is small, and in these batches mostly noise: there may be little left to "
                "learn, or it learns slowly. Leave its weight alone, and diagnose with more batches (`batches=`) if its "
                "metrics should be better.",
                "noise",
                [heads[k]],
            )


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _most(share: float) -> str:
    """A share in words."""
    return "almost all" if share > 0.85 else "most" if share > 0.5 else f"{share:.0%}"


def _span(ratios: Sequence[float]) -> str:
    """One ratio, or the smallest and the largest of several."""
    low, high = plain(min(ratios)), plain(max(ratios))
    return low if low == high else f"{low} to {high}"


def behind(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Heads that have learned nothing while others have, although their gradients are large enough."""
    heads, removed = found.heads, explained(found)
    best = int(np.nanargmax(removed)) if np.isfinite(removed).any() else 0
    for k in left_behind(found):
        cosine = found.mean_cosines[k, best]
        opposed = ""
        if cosine < _OPPOSED:
            opposed = f", and on average their gradients are opposed (cosine {cosine:.2f}), as of heads that compete"
        yield Finding(
            f"{heads[k]!r} predicts no better than a constant, while {heads[best]!r} has removed {removed[best]:.0%} of "
            f"the loss of a constant{opposed}. If {heads[k]!r} was added only now, train an epoch and diagnose again. "
            "Otherwise train it alone for a while (`trainer.set_weight(name, 0.0)` for the other heads). If it learns "
            "alone, the heads compete for the encoder: give the encoder a larger output or more layers, or these heads "
            "layers of their own. If it does not learn alone, look at its labels, its inputs and its module: no weight or "
            "balancer helps.",
            "left behind",
            [heads[k], heads[best]],
        )


def _cause(found: Diagnosis, leader: int, small: list[int]) -> tuple[str, bool]:
    """Why a head's gradient is much larger than those of others, and whether it is the size of its loss."""
    norms, size = found.norms[level_of(found)], scales(found)
    smallest = min(small, key=lambda k: norms[k])
    ratio = norms[leader] / norms[smallest]
    by_losses = size[leader] / size[smallest] if size[smallest] > 0 else np.inf
    by_module = "the sensitivity of its module to the representation"
    if found.losses[leader] > 4 * found.constant_losses[leader] and by_losses <= ratio**0.5:
        by_module = "that its outputs are still far from the mean of its labels"
    by_size = f"its weighted loss is {plain(by_losses)} times as large; {_of_size(found, leader, smallest, by_losses)}"
    if by_losses > ratio**0.5:
        return by_size, True
    if by_losses > ratio**0.25:
        return f"{by_size}. A second cause is {by_module}", True
    return f"not the size of its loss, but {by_module}", False


def _of_size(found: Diagnosis, leader: int, smallest: int, by_losses: float) -> str:
    """Why a weighted loss is much larger than another."""
    if found.weights[leader] > found.weights[smallest] * by_losses**0.5:
        times = plain(found.weights[leader] / found.weights[smallest])
        return f"it has {times} times the weight, as a loss has that is summed over the batch (if you want that, keep it)"
    if found.is_summed[leader]:
        return "it grows with the size of the batch, so it is summed over it: divide it by the number of examples"
    if in_raw_units(found, leader) or in_raw_units(found, smallest):
        return "the labels are in different units"
    return "the losses are on different scales, as a squared error and a cross-entropy of rare classes are"


def _advice(found: Diagnosis, spec: UpdateSpec) -> str:
    """What to do about different norms."""
    if spec.weighting is not None or spec.balancer is not None:
        configured = type(spec.weighting or spec.balancer).__name__
        return f"{configured} is configured already; watch whether it brings these heads together."
    if raw_both_ways(found):
        return (
            "Scale the labels first, and change nothing else: some are far above unit scale and others far below it, and a "
            "balancer would make the larger errors larger. Then diagnose again."
        )
    if not suggest(found, spec):
        return (
            "That may change as soon as the modules have learned: change nothing yet, train an epoch, and diagnose again. "
            "If it stays so, try `balancer=balancing.NormFloor()` and compare."
        )
    weights = ", ".join(
        f"{plain(found.weights[k] * found.factors[head])} for {head!r}" for k, head in enumerate(found.heads)
    )
    return (
        "Balance the heads: `trainer.compile(optimizer, **diagnosis.suggestion)` uses `NormFloor`, which scales smaller "
        f"gradients up to {floor(found):.0%} of the largest{_as_meant(found)} and leaves the others in proportion. "
        f"{_of_pace(found)} A lower floor costs less, a higher one helps more. Compare each head with the plain sum on "
        f"held-out data. Without a balancer, these weights do part of it: {weights}."
    )


def _as_meant(found: Diagnosis) -> str:
    """That weights below 1 stay in force."""
    names = [repr(found.heads[k]) for k in comparable(found) if meant(found)[k] < 1]
    return f" (times the weight of {listed(names)}, which is below 1)" if names else ""


def _of_pace(found: Diagnosis) -> str:
    """Who gains and who pays, by the law of the pace; see `NormFloor`."""
    before, after = paces(found), paces(found, floor(found))
    gain, pay = [[k for k in comparable(found) if sign * (after - before)[k] > 0.005] for sign in (1, -1)]
    said = f"By these norms, {_moves(found, gain, before, after)}"
    return f"{said}; the cost is that {_moves(found, pay, before, after)}." if pay else f"{said}, at almost no cost."


def _moves(found: Diagnosis, heads: Sequence[int], before: np.ndarray, after: np.ndarray) -> str:
    """The paces of some heads with the suggestion and in the plain sum."""
    alone = (" of its pace alone" if i == 0 else "" for i in range(len(heads)))
    return listed(
        [f"{found.heads[k]!r} moves at {after[k]:.0%}{words} instead of {before[k]:.1%}" for k, words in zip(heads, alone)]
    )


def _of_clipping(found: Diagnosis, spec: UpdateSpec, names: str) -> str:
    if spec.clip is None or not found.clipped < _MUCH_CLIPPED:
        return ""
    return f" Clipping by a shared norm then leaves almost nothing of the gradient of {names}."


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


def configured_balancer(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """A reminder that a balancer is not part of the figures."""
    if spec.balancer is not None:
        yield Finding(
            f"All measurements are taken before balancing with {type(spec.balancer).__name__}.", "balancer", found.heads
        )


RULES: tuple[Rule, ...] = (
    broken, no_probabilities, untrainable, unreached, raw_units, different_norms, behind, _conflicts.conflicts,
    _conflicts.conflicts_in_layers, _conflicts.equal_heads, clipping,
)  # fmt: skip
"""The rules, in the order in which their findings are shown."""

NOTES: tuple[Rule, ...] = (_conflicts.cannot_tell, different_tensors, configured_balancer)
"""Rules about the limits of the figures; alone they do not mean that anything is wrong."""


def find(found: Diagnosis, spec: UpdateSpec) -> tuple[Finding, ...]:
    """All findings about a diagnosis; a finding of its own if there are no others."""
    findings = [finding for rule in RULES for finding in rule(found, spec)]
    if not findings:
        findings.append(_nothing(found))
    return (*findings, *(finding for rule in NOTES for finding in rule(found, spec)))


def _nothing(found: Diagnosis) -> Finding:
    if len(comparable(found)) < 2:
        return Finding("There is nothing to compare: fewer than two heads have an encoder gradient.", "nothing to compare")
    if _conflicts.are_known(found):
        known = "The heads' gradients have similar norms and do not conflict: the plain sum is enough."
    else:
        known = (
            "The heads' gradients have similar norms: the plain sum is enough. Whether they conflict can be told only of "
            "heads that have learned something and are not done; diagnose again after an epoch if one falls behind."
        )
    return Finding(known, "healthy", found.heads)
