"""What the measurements mean, in sentences for users who only want to train: gradients here, labels in `_label_findings`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from multihead._display.drawing import plain
from multihead._ground.validation import quoted
from multihead._update.network import read_different_tensors
from multihead._update.spec import UpdateSpec
from multihead.diagnosis import FEW_IN_COMMON, Diagnosis, Finding, _label_findings
from multihead.diagnosis._suggestion import FLOOR, comparable, level_of, starved

_MUCH_CLIPPED, _DEAD = 0.5, 1e-7
_HAS_LEARNED, _STILL_MOVING = 0.5, -0.1
"""Fractions of a constant's loss that a head has removed: above the first it has learned; below the second its outputs are
still moving to the labels' mean."""
_OPPOSED, _OPPOSED_IN_LAYER, _STRONGLY_OPPOSED, _LARGE_ENOUGH = -0.1, -0.3, -0.4, 0.05
_NOTES = ("unclear", "few common rows", "different tensors")
"""Kinds that state limits of the measurements; alone they do not mean that anything is wrong."""
_ORDER = (
    "not finite", "no probabilities", "equal labels", "zero labels", "placeholder", "out of reach", "inputs",
    "no weight", "few labels", "frozen encoder", "unreached", "zero gradient", "dead encoder", "units", "scale",
    "left behind", "conflict", "conflict in one layer", "clipping",
    *_NOTES,
)  # fmt: skip


def all_findings(diagnosis: Diagnosis, spec: UpdateSpec) -> tuple[Finding, ...]:
    """All findings about a diagnosis, the most serious first; `"healthy"` or `"nothing to compare"` if nothing is wrong."""
    rules = (
        _label_findings.cannot_learn,
        _label_findings.single_labels,
        _label_findings.unscaled_inputs,
        _label_findings.out_of_reach,
        _encoder,
        _label_findings.raw_units,
        _different_norms,
        _left_behind,
        _conflicts,
        _clipping_and_tensors,
    )
    findings = [finding for rule in rules for finding in rule(diagnosis, spec)]
    findings = sorted(findings, key=lambda finding: _ORDER.index(finding.kind))
    if any(finding.kind not in _NOTES for finding in findings):
        return tuple(findings)
    if len(comparable(diagnosis)) < 2:
        sentence = "There is nothing to compare: fewer than two heads have an encoder gradient."
        return (Finding(sentence, "nothing to compare"), *findings)
    sentence = (
        f"No head's gradient is below {FLOOR:.0%} of the largest, and no conflict shows, as it can between heads that have "
        "learned something and are not done. Here the plain sum is enough: `NormFloor()` would act only if a gradient "
        "falls below that later."
    )
    return (Finding(sentence, "healthy", diagnosis.heads), *findings)


def _encoder(diagnosis: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """A frozen or dead encoder, and heads that do not train it."""
    if not diagnosis.layer_norms:
        sentence = (
            "The encoder is frozen: it has no trainable variables, so weights, balancers and schedules change nothing in "
            "it. If that is not what you want, set `encoder.trainable = True` and call `compile` again."
        )
        yield Finding(sentence, "frozen encoder")
        return
    at_representation, at_parameters = diagnosis.norms["representation"], diagnosis.norms["parameters"]
    reaching = [k for k in range(len(diagnosis.heads)) if at_representation[k] > 0 and diagnosis.finite[k]]
    not_reaching = [k for k in reaching if at_parameters[k] <= _DEAD * at_representation[k]]
    is_dead = bool(not_reaching) and len(not_reaching) == len(reaching)
    for k, head in enumerate(diagnosis.heads):
        if not spec.network.heads[k].trains_encoder:
            continue
        if not any(diagnosis.reads[k]) or (k in not_reaching and not is_dead):
            sentence = (
                f"{head!r} learns by itself and teaches the encoder nothing: what it reads is not a floating-point output "
                "of the encoder's trainable layers. Let it read one (`reads`) if it should."
            )
            yield Finding(sentence, "unreached", [head])
        elif at_representation[k] == 0 and diagnosis.finite[k]:
            sentence = (
                f"The representation gradient of {head!r} is zero: this head teaches the encoder nothing. Check for a "
                "constant loss, saturated or dead outputs, a last layer that starts at zero, or too small a weight."
            )
            yield Finding(sentence, "zero gradient", [head])
    if is_dead:
        sentence = (
            "The encoder is dead: the heads' gradients arrive at its output, but none reaches its parameters. Look for "
            "`relu` units whose inputs are all negative, saturated units, inputs that were not scaled, or a `stop_gradient`."
        )
        yield Finding(sentence, "dead encoder")


def _different_norms(diagnosis: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Heads whose gradients are too small beside the largest one."""
    heads, level, small, usable = diagnosis.heads, level_of(diagnosis), starved(diagnosis), comparable(diagnosis)
    if not small:
        return
    norms = diagnosis.norms[level]
    leader = int(usable[np.argmax(norms[usable])])
    low, high = (plain(norms[leader] / extreme(norms[k] for k in small)) for extreme in (max, min))
    if spec.methods.weighting is not None or spec.methods.balancer is not None:
        configured = type(spec.methods.weighting or spec.methods.balancer).__name__
        advice = f"{configured} is configured already; watch whether it brings these heads together."
    else:
        # As the docstring of `NormFloor` says: of orthogonal gradients, a head's speed is its share of the combined norm.
        raised = np.maximum(norms[usable], FLOOR * norms[leader])
        before, after = (norms[leader] / np.linalg.norm(sizes) for sizes in (norms[usable], raised))
        wished = {heads[k]: float(plain(diagnosis.weights[k])) for k in small if diagnosis.weights[k] < 1}
        kept = f" If the weight of {quoted(wished)} was meant, add `preference={wished}`." if wished else ""
        advice = (
            "Balance the heads: `trainer.compile(optimizer, **diagnosis.suggestion)` uses `NormFloor()`, which scales "
            f"smaller gradients up to {FLOOR:.0%} of the largest. By these norms, each of them then moves at "
            f"{FLOOR * after:.0%} of its speed alone, and {heads[leader]!r} at {after:.0%} instead of {before:.0%}. If a "
            f"small head should gain more, raise the floor, up to `NormFloor(1.0)`.{kept} Compare each head with the plain "
            "sum on held-out data."
        )
    sentence = (
        f"The {'encoder' if level == 'parameters' else level} gradient of {heads[leader]!r} is "
        f"{low if low == high else f'{low} to {high}'} times as large as {'that' if len(small) == 1 else 'those'} of "
        f"{quoted(heads[k] for k in small)}: {diagnosis.shares[level][leader]:.0%} of the encoder's gradient serves "
        f"{heads[leader]!r}. {advice}"
    )
    yield Finding(sentence, "scale", [heads[k] for k in (leader, *small)])


def _left_behind(diagnosis: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Heads that have learned nothing while others have, although their gradients are large enough."""
    heads, small = diagnosis.heads, starved(diagnosis)
    removed = 1 - diagnosis.losses / np.where(diagnosis.constant_losses > 0, diagnosis.constant_losses, np.nan)
    if not (removed > _HAS_LEARNED).any():
        return
    best = int(np.nanargmax(removed))
    for k in comparable(diagnosis):
        if (
            diagnosis.progress[k] != "untrained"
            or k in small
            or not removed[k] > _STILL_MOVING
            or diagnosis.labelled[k] < _label_findings.FEW
        ):
            continue
        sentence = (
            f"{heads[k]!r} predicts no better than a constant, while {heads[best]!r} has removed {removed[best]:.0%} of "
            f"the loss of a constant. If {heads[k]!r} is new, train an epoch and diagnose again. Otherwise train it alone "
            "for a while (`trainer.set_weight(name, 0.0)` for the others). If it learns then, the heads compete: give the "
            "encoder a larger output or more layers, or these heads layers of their own. If it does not, look at its "
            "labels, inputs and module: no weight or balancer helps."
        )
        yield Finding(sentence, "left behind", [heads[k], heads[best]])


def _pairs(diagnosis: Diagnosis) -> Iterator[tuple[int, int, bool]]:
    """Pairs of heads with gradients in common batches, and whether their cosines can show a conflict.

    Gradients of heads that have not learned anything lead to the labels' mean, and those of heads that are done are noise.
    Neither shows a conflict, whatever the cosine.
    """
    shows_conflicts = [progress in ("learning", "unknown") for progress in diagnosis.progress] & diagnosis.has_signal
    for i, j in itertools.combinations(range(len(diagnosis.heads)), 2):
        if np.isfinite(diagnosis.spreads["parameters"].mean[i, j]) and not diagnosis.overlaps[i, j] < FEW_IN_COMMON:
            yield i, j, bool(shows_conflicts[i] and shows_conflicts[j])


def _conflicts(diagnosis: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Pairs of heads whose gradients oppose each other, in all layers of the encoder or in some only, or may do so."""
    spread, heads, unclear = diagnosis.spreads["parameters"], diagnosis.heads, []
    for i, j, is_clear in _pairs(diagnosis):
        one, other, cosine, opposed = heads[i], heads[j], spread.mean[i, j], []
        for name, cosines in diagnosis.layer_cosines.items():  # clearly opposed, with a substantial part of both gradients
            norms, layer_norms = diagnosis.norms["parameters"], diagnosis.layer_norms[name]
            is_large = all(layer_norms[k] ** 2 >= _LARGE_ENOUGH * norms[k] ** 2 for k in (i, j))
            if is_large and cosines.mean[i, j] < _OPPOSED_IN_LAYER and cosines.high[i, j] < _OPPOSED:
                opposed.append((cosines.mean[i, j] * layer_norms[i] * layer_norms[j], name))
        layers = [name for _, name in sorted(opposed)]  # the most opposed one first
        if not is_clear:
            if cosine < _STRONGLY_OPPOSED and not spread.high[i, j] > _OPPOSED:
                unclear.append((i, j))
        elif cosine < _OPPOSED and spread.high[i, j] < 0 and diagnosis.mean_cosines[i, j] < _OPPOSED:
            is_seen = diagnosis.spreads["representation"].mean[i, j] < _OPPOSED
            remark = "" if is_seen else " with `balance_at='parameters'`, as it does not show at the representation,"
            in_layer = f" Most of it is in the layer {layers[0]!r}." if layers and len(diagnosis.layer_norms) > 1 else ""
            sentence = (
                f"The gradients of {one!r} and {other!r} conflict in {spread.negative[i, j]:.0%} of the batches (mean "
                f"cosine {cosine:.2f} at the parameters): an update that improves one makes the other worse.{in_layer} Give "
                "the encoder more capacity, or these heads layers of their own; or try `balancer=balancing.UPGrad()`"
                f"{remark} and compare both heads with the plain sum."
            )
            yield Finding(sentence, "conflict", [one, other])
        elif layers:
            named = ", ".join(f"{name!r} (cosine {diagnosis.layer_cosines[name].mean[i, j]:.2f})" for name in layers)
            sentence = (
                f"{one!r} and {other!r} conflict in the layer {named} only; over all layers their cosine is {cosine:.2f}. "
                "Move a copy of that layer from the encoder into both heads, and leave the rest shared."
            )
            yield Finding(sentence, "conflict in one layer", [one, other])
    if unclear:
        concerned = sorted({k for pair in unclear for k in pair})
        pairs = "; ".join(f"{heads[i]!r} and {heads[j]!r} (cosine {spread.mean[i, j]:.2f})" for i, j in unclear)
        sentence = (
            f"It cannot be told whether {pairs} conflict: heads that predict no better than a constant mostly move their "
            "outputs to the mean of the labels, and other gradients may be mostly noise. Train an epoch, or measure more or "
            "larger batches, and diagnose again."
        )
        yield Finding(sentence, "unclear", [heads[k] for k in concerned])


def _clipping_and_tensors(diagnosis: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Clipping that removes most of the gradient; heads with few labelled rows in common, or that read different tensors."""
    if spec.methods.clip is not None and diagnosis.clipped < _MUCH_CLIPPED:
        sentence = (
            f"On average, clipping reduces the gradient norm of {plain(diagnosis.update_norm)} to {diagnosis.clipped:.2g} "
            "of its size, which leaves little of small gradients. Bring the heads to similar norms first, or raise the "
            "limit."
        )
        yield Finding(sentence, "clipping")
    pairs_of_heads = itertools.combinations(range(len(diagnosis.heads)), 2)
    few = [pair for pair in pairs_of_heads if diagnosis.overlaps[pair] < FEW_IN_COMMON]
    if few:
        parts = [f"{diagnosis.heads[i]!r} and {diagnosis.heads[j]!r} ({diagnosis.overlaps[i, j]:.0%})" for i, j in few]
        concerned = sorted({k for pair in few for k in pair})
        disjoint = (
            " Where no row has labels of both, gradients at the representation are orthogonal by construction: a balancer "
            "there cannot see how these heads affect each other; with `balance_at='parameters'` it compares other rows."
        )
        sentence = (
            f"Few rows have labels of both heads: {'; '.join(parts)}. Below {FEW_IN_COMMON:.0%}, cosines of gradients are "
            "mostly noise (arXiv:2604.07848), so no conflict is stated between these heads."
            f"{disjoint if any(diagnosis.overlaps[pair] == 0 for pair in few) else ''}"
        )
        yield Finding(sentence, "few common rows", [diagnosis.heads[k] for k in concerned])
    heads, reading_apart = diagnosis.heads, read_different_tensors(spec.network)
    if reading_apart:
        pairs = "; ".join(f"{heads[i]!r} and {heads[j]!r}" for i, j in reading_apart)
        sentence = (
            f"{pairs} read no common tensor of the representation, so their gradients cannot be compared there (a cosine of "
            "0 says nothing): they are compared at the parameters. With a balancer, pass `balance_at='parameters'`."
        )
        yield Finding(
            sentence, "different tensors", sorted({heads[k] for pair in reading_apart for k in pair}, key=heads.index)
        )
