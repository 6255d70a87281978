"""The interpretation of the measurements, in sentences for people who only want to train."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from multihead._display.drawing import plain
from multihead._update.labels import read_different_tensors
from multihead._update.spec import UpdateSpec
from multihead.diagnosis import Diagnosis, Finding
from multihead.diagnosis._suggestion import FLOOR, comparable, in_raw_units, level_of, speeds, starved, to_scale
from multihead.heads._value import why_not_scaled
from multihead.losses._known import ELEMENTS, TOLERANCE, remedy

_FEW, _MUCH_CLIPPED, _DEAD = 0.1, 0.5, 1e-7
_HAS_LEARNED, _STILL_MOVING = 0.5, -0.1
"""The fraction of the loss of a constant prediction that a head has removed: above the first number, it has learned; below
the second, its outputs are still far from the mean of its labels."""

_OPPOSED, _OPPOSED_IN_LAYER, _STRONGLY_OPPOSED, _LARGE_ENOUGH = -0.1, -0.3, -0.4, 0.05
_NOTES = ("unclear", "different tensors")
"""Kinds about the limits of the measurements; alone they do not mean that anything is wrong."""

_ORDER = (
    "not finite", "no probabilities", "no weight", "few labels", "frozen encoder", "unreached", "zero gradient",
    "dead encoder", "units", "scale", "left behind", "conflict", "conflict in one layer", "clipping", *_NOTES,
)  # fmt: skip


def find(found: Diagnosis, spec: UpdateSpec) -> tuple[Finding, ...]:
    """All findings about a diagnosis, the most serious first; a finding of its own if there are no others."""
    rules = (
        _labels_and_loss, _encoder, _units, _different_norms, _left_behind, _conflicts, _clipping_and_tensors,
    )  # fmt: skip
    findings = [finding for rule in rules for finding in rule(found, spec)]
    findings = sorted(findings, key=lambda finding: _ORDER.index(finding.kind))
    if any(each.kind not in _NOTES for each in findings):
        return tuple(findings)
    if len(comparable(found)) < 2:
        sentence = "There is nothing to compare: fewer than two heads have an encoder gradient."
        return (Finding(sentence, "nothing to compare"), *findings)
    known = " and they do not conflict"
    unknown = "; whether they conflict can be told only of heads that have learned something and are not done"
    sentence = (
        f"No head's gradient is below {FLOOR:.0%} of the largest{known if all(x[2] for x in _pairs(found)) else unknown}. "
        "Here the plain sum is enough: `NormFloor()` would act only if a gradient falls below that later."
    )
    return (Finding(sentence, "healthy", found.heads), *findings)


def _labels_and_loss(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Heads whose losses cannot train them: by their numbers, predictions, weights or labels."""
    for k, head in enumerate(found.heads):
        if not found.finite[k]:
            sentence = (
                f"{head!r} has losses or gradients that are not finite, and such updates are skipped. Check its labels and "
                "inputs for invalid values."
            )
            yield Finding(sentence, "not finite", [head])
        elif found.labelled[k] > 0 and not found.weights[k] > 0:
            sentence = f"{head!r} is not trained, because its weight is 0. Give it a weight if it should learn."
            yield Finding(sentence, "no weight", [head])
        if found.labelled[k] < _FEW:
            share = "less than 1%" if 0 < found.labelled[k] < 0.005 else f"{found.labelled[k]:.0%}"
            sentence = (
                f"{head!r} has labels for only {share} of its elements, so its loss is measured on few examples and its "
                "gradient is noisy. Collect more labels, mix datasets (`multihead.mix_datasets`) or sample batches with "
                "more of its labels; a balancer cannot create labels."
            )
            yield Finding(sentence, "few labels", [head])
        loss, (low, high, smallest, largest) = spec.network.heads[k].loss, found.predicted[k]
        if loss.known is None or loss.known.largest is None:
            continue
        takes, sentence = f"but its loss, {loss.name}, takes probabilities", ""
        if low < -TOLERANCE or high > loss.known.largest + TOLERANCE:
            sentence = f"lie between {plain(low)} and {plain(high)}, {takes}, from 0 to 1, and the head cannot learn from it"
        elif loss.known.over != ELEMENTS and max(1 - smallest, largest - 1) > TOLERANCE:
            sentence = f"for an example add up to {plain(smallest)} to {plain(largest)}, {takes}, which add up to 1"
        if sentence:
            yield Finding(f"The predictions of {head!r} {sentence}. {remedy(loss)}", "no probabilities", [head])


def _encoder(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """A frozen or dead encoder, and heads that do not train it."""
    if not found.layer_norms:
        sentence = (
            "The encoder is frozen: it has no trainable variables, so the heads cannot help or disturb each other. Weights, "
            "balancers and schedules change nothing in it. If that is not what you want, set `encoder.trainable = True` "
            "and call `compile` again."
        )
        yield Finding(sentence, "frozen encoder")
        return
    at_representation, at_parameters = found.norms["representation"], found.norms["parameters"]
    reaching = [k for k in range(len(found.heads)) if at_representation[k] > 0 and found.finite[k]]
    lost = [k for k in reaching if at_parameters[k] <= _DEAD * at_representation[k]]
    is_dead = bool(lost) and len(lost) == len(reaching)
    for k, head in enumerate(found.heads):
        if not spec.network.heads[k].trains_encoder:
            continue
        if not any(found.reads[k]) or (k in lost and not is_dead):
            sentence = (
                f"{head!r} learns by itself and teaches the encoder nothing: what it reads is not a floating-point output "
                "of the encoder's trainable layers. Let it read one (`reads`) if it should."
            )
            yield Finding(sentence, "unreached", [head])
        elif at_representation[k] == 0 and found.finite[k]:
            sentence = (
                f"The representation gradient of {head!r} is zero: this head teaches the encoder nothing. Check for a "
                "constant loss, saturated or dead outputs (a `relu` whose inputs are all negative), a last layer that "
                "starts at zero, or a weight that is too small."
            )
            yield Finding(sentence, "zero gradient", [head])
    if is_dead:
        sentence = (
            "The encoder is dead: the heads' gradients arrive at its output, but none reaches its parameters, so it will "
            "never learn. Look for `relu` units whose inputs are all negative, saturated `tanh` or `sigmoid` units, inputs "
            "that were not scaled, or a `stop_gradient`. No weight or balancer helps."
        )
        yield Finding(sentence, "dead encoder")


def _units(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Labels that are far from unit scale, of heads whose modules do not end in a layer that brings them there."""
    for k in in_raw_units(found, spec):
        head, mean, deviation = found.heads[k], plain(found.label_means[k]), plain(found.label_deviations[k])
        of_head = spec.network.heads[k]
        why = why_not_scaled(of_head.loss, of_head.label_spec.class_weight)
        scale = mean if why else f"{deviation}, {mean}"
        because = f"Its loss {why}" if why else "Its predictions have other columns than its labels"
        advice = (
            f"{because}, so no `target_scaling` fits: end the module in `keras.layers.Rescaling({scale})`, or scale the "
            "labels yourself; `suggestion` cannot do that."
        )
        if k in to_scale(found, spec):
            advice = (
                "Scale them before anything else: `trainer.compile(optimizer, **diagnosis.suggestion)` sets "
                f"`target_scaling='standardize'` for {head!r}, as `add_head` can ('log' if labels are above 0 and span "
                "powers of ten). Predictions and metrics stay in their units."
            )
        elif found.scalable[k]:
            advice = (
                "It has learned already, so nothing is suggested; a new run is quicker with `add_head(..., "
                "target_scaling='standardize')`."
            )
        sentence = (
            f"The labels of {head!r} have mean {mean} and standard deviation {deviation}. A head starts near 0 and needs "
            f"very many updates to reach numbers far from 0 and 1; weights and balancers cannot do that for it. {advice}"
        )
        yield Finding(sentence, "units", [head])


def _different_norms(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Heads whose gradients are too small beside the largest one."""
    small, usable = starved(found), comparable(found)
    if small:
        heads, level = found.heads, level_of(found)
        norms, names = found.norms[level], _listed([repr(heads[k]) for k in small])
        leader = int(usable[np.argmax(norms[usable])])
        ratios = [norms[leader] / norms[k] for k in small]
        low, high = plain(min(ratios)), plain(max(ratios))
        share, smallest = found.shares[level][leader], min(small, key=lambda k: norms[k])
        known = np.isfinite(found.constant_losses) & (found.constant_losses > 0)
        sizes = found.weights * np.where(known, found.constant_losses, np.abs(found.losses))
        times, of_weights = (each[leader] / max(each[smallest], 1e-30) for each in (sizes, found.weights))
        weights = f", by its weight {plain(of_weights)} times" if of_weights > 2 else ""
        cause = f"Its weighted loss is {plain(times)} times as large{weights}."
        if times < (norms[leader] / norms[smallest]) ** 0.25:
            cause = "That is not the size of its loss, but the sensitivity of its module."
        most = "almost all" if share > 0.85 else "most" if share > 0.5 else f"{share:.0%}"
        sentence = (
            f"The {'encoder' if level == 'parameters' else level} gradient of {heads[leader]!r} is "
            f"{low if low == high else f'{low} to {high}'} times as large as {'that' if len(small) == 1 else 'those'} of "
            f"{names}: {most} of the encoder's update serves {heads[leader]!r}. {cause} "
            f"{_advice(found, spec, leader, small)}"
        )
        yield Finding(sentence, "scale", [heads[k] for k in (leader, *small)])


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence: `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _advice(found: Diagnosis, spec: UpdateSpec, leader: int, small: Sequence[int]) -> str:
    """What to do about different norms, and who pays for it."""
    if spec.weighting is not None or spec.balancer is not None:
        configured = type(spec.weighting or spec.balancer).__name__
        return f"{configured} is configured already; watch whether it brings these heads together."
    heads, usable, before, after = found.heads, comparable(found), speeds(found), speeds(found, FLOOR)

    def moves(some: Sequence[int]) -> str:
        alone = (" of its speed alone" if i == 0 else "" for i in range(len(some)))
        return _listed(
            [f"{heads[k]!r} moves at {after[k]:.0%}{of} instead of {before[k]:.1%}" for k, of in zip(some, alone)]
        )

    gains, pays = ([k for k in usable if sign * (after - before)[k] > 0.005] for sign in (1, -1))
    cost = f"; the cost is that {moves(pays)}." if pays else ", at almost no cost."
    least = 1 / np.sqrt(1 + (len(usable) - 1) * FLOOR**2)
    half, full = (
        _listed([f"{heads[k]!r} at {speeds(found, floor)[k]:.0%}" for k in pays or [leader]]) for floor in (0.5, 1.0)
    )
    wished = {heads[k]: float(plain(found.weights[k])) for k in small if found.weights[k] < 1}
    kept = f" If the weight of {_listed(list(map(repr, wished)))} was meant, add `preference={wished}`." if wished else ""
    return (
        "Balance the heads: `trainer.compile(optimizer, **diagnosis.suggestion)` uses `NormFloor()`, which scales smaller "
        f"gradients up to {FLOOR:.0%} of the largest. By these norms, {moves(gains)}{cost} However the norms change, each "
        f"head keeps at least {least:.0%} of its speed in the plain sum. If a small head should gain more, raise the floor: "
        f"`NormFloor(0.5)` leaves {half}, and `NormFloor(1.0)` leaves {full}.{kept} Compare each head with the plain sum on "
        "held-out data."
    )


def _left_behind(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Heads that have learned nothing while others have, although their gradients are large enough."""
    heads, small = found.heads, starved(found)
    with np.errstate(all="ignore"):
        removed = 1 - found.losses / np.where(found.constant_losses > 0, found.constant_losses, np.nan)
    if not (removed > _HAS_LEARNED).any():
        return
    best = int(np.nanargmax(removed))
    for k in comparable(found):
        if found.progress[k] != "untrained" or k in small or not removed[k] > _STILL_MOVING or found.labelled[k] < _FEW:
            continue
        cosine = found.mean_cosines[k, best]
        is_opposed = cosine < _OPPOSED_IN_LAYER
        opposed = f", and on average their gradients are opposed (cosine {cosine:.2f})" if is_opposed else ""
        sentence = (
            f"{heads[k]!r} predicts no better than a constant, while {heads[best]!r} has removed {removed[best]:.0%} of "
            f"the loss of a constant{opposed}. If {heads[k]!r} is new, train an epoch and diagnose again. Otherwise train "
            "it alone for a while (`trainer.set_weight(name, 0.0)` for the other heads). If it learns alone, the heads "
            "compete: give the encoder a larger output or more layers, or these heads layers of their own. If it does not, "
            "look at its labels, its inputs and its module: no weight or balancer helps."
        )
        yield Finding(sentence, "left behind", [heads[k], heads[best]])


def _pairs(found: Diagnosis) -> Iterator[tuple[int, int, bool]]:
    """Pairs of heads that have gradients in common batches, and whether it can be told if these conflict.

    Gradients of heads that have not learned anything say how far the outputs are from the labels' mean, and those of heads
    that are done are noise. Neither shows a conflict, whatever its cosine.
    """
    tells = [progress in ("learning", "unknown") for progress in found.progress] & found.has_signal
    for i, j in itertools.combinations(range(len(found.heads)), 2):
        if np.isfinite(found.spreads["parameters"].mean[i, j]):
            yield i, j, bool(tells[i] and tells[j])


def _conflicts(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Pairs of heads whose gradients oppose each other, in all layers of the encoder or in some only, or may do so."""
    spread, heads, untold = found.spreads["parameters"], found.heads, []
    for i, j, is_told in _pairs(found):
        one, other, cosine, opposed = heads[i], heads[j], spread.mean[i, j], []
        for name, each in found.layer_cosines.items():  # clearly opposed, and a fair part of both gradients
            norms, of_layer = found.norms["parameters"], found.layer_norms[name]
            is_large = all(of_layer[k] ** 2 >= _LARGE_ENOUGH * norms[k] ** 2 for k in (i, j))
            if is_large and each.mean[i, j] < _OPPOSED_IN_LAYER and each.high[i, j] < _OPPOSED:
                opposed.append((each.mean[i, j] * of_layer[i] * of_layer[j], name))
        layers = [name for _, name in sorted(opposed)]  # the most opposed one first
        if not is_told:
            if cosine < _STRONGLY_OPPOSED and not spread.high[i, j] > _OPPOSED:
                untold.append((i, j))
        elif cosine < _OPPOSED and spread.high[i, j] < 0 and found.mean_cosines[i, j] < _OPPOSED:
            is_seen = found.spreads["representation"].mean[i, j] < _OPPOSED
            where = " with `balance_at='parameters'`, since the conflict does not show at the representation"
            in_layer = f" Most of it is in the layer {layers[0]!r}." if layers and len(found.layer_norms) > 1 else ""
            sentence = (
                f"The gradients of {one!r} and {other!r} conflict in {spread.negative[i, j]:.0%} of the batches (mean "
                f"cosine {cosine:.2f} at the parameters): an update that improves one makes the other worse.{in_layer} Give "
                "the encoder more capacity, or these heads layers of their own; or try `balancer=balancing.UPGrad()`"
                f"{'' if is_seen else where} and compare both heads with the plain sum."
            )
            yield Finding(sentence, "conflict", [one, other])
        elif layers:
            where = _listed([f"{name!r} (cosine {found.layer_cosines[name].mean[i, j]:.2f})" for name in layers])
            sentence = (
                f"{one!r} and {other!r} conflict in the layer {where} only; over all layers their cosine is {cosine:.2f}. "
                "Give each of them that layer of its own: move a copy of it from the encoder into both heads, and leave "
                "the rest shared."
            )
            yield Finding(sentence, "conflict in one layer", [one, other])
    if untold:
        concerned = sorted({k for pair in untold for k in pair})
        pairs = "; ".join(f"{heads[i]!r} and {heads[j]!r} (cosine {spread.mean[i, j]:.2f})" for i, j in untold)
        because = "their gradients are mostly noise, which differs from batch to batch. Measure more or larger batches."
        if any(found.progress[k] == "untrained" for k in concerned):
            because = (
                "heads that predict no better than a constant mostly move their outputs to the mean of the labels. Train an "
                "epoch, and diagnose again."
            )
        names = [heads[k] for k in concerned]
        yield Finding(f"It cannot be told whether {pairs} conflict: {because}", "unclear", names)


def _clipping_and_tensors(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Clipping that takes most of the gradient away; heads that read different tensors of the representation."""
    if spec.clip is not None and found.clipped < _MUCH_CLIPPED:
        sentence = (
            f"On average, clipping reduces the gradient norm of {plain(found.update_norm)} to {found.clipped:.2g} of its "
            "size. This scales all heads by the same factor and leaves almost nothing of small gradients: bring the heads "
            "to similar norms first, or raise the limit."
        )
        yield Finding(sentence, "clipping")
    heads, apart = found.heads, read_different_tensors(spec.predictions)
    if apart:
        pairs = "; ".join(f"{heads[i]!r} and {heads[j]!r}" for i, j in apart)
        sentence = (
            f"{pairs} read no common tensor of the representation, so their gradients cannot be compared there (a cosine of "
            "0 says nothing): they are compared at the parameters. With a balancer, pass `balance_at='parameters'`."
        )
        yield Finding(sentence, "different tensors", sorted({heads[k] for pair in apart for k in pair}, key=heads.index))
