"""Findings about labels, losses and inputs, in sentences for users who only want to train."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from multihead._display.drawing import plain
from multihead._ground.validation import quoted
from multihead._update.spec import UpdateSpec
from multihead.diagnosis import Diagnosis, Finding
from multihead.diagnosis._reached import takes_logits
from multihead.diagnosis._suggestion import (
    PERCENTAGE,
    comparable,
    enlarged_by,
    fitting_scalings,
    heads_to_scale,
    in_raw_units,
    predicts_in_units,
    rescales_to_other_units,
)
from multihead.losses._known import ELEMENTS, ROWS, TOLERANCE, remedy

FEW = 0.1
"""A smaller part of labelled elements is few."""
_FEW_OF_A_CLASS = 20
"""So few labels of a class are learned by heart, and a metric on as few others is uncertain."""
_LARGE = 20.0
"""The size of a representation that is large before training: layers begin with outputs of the size of their inputs."""


def cannot_learn(diagnosis: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Heads that cannot learn: losses that are not finite, a weight of 0, or invalid predictions."""
    for k, (head, labels) in enumerate(zip(diagnosis.heads, diagnosis.labels)):
        if not diagnosis.finite[k]:
            sentence = f"{head!r} has losses or gradients that are not finite, and such updates are skipped."
            yield Finding(f"{sentence} {_why_not_finite(diagnosis, spec, k)}", "not finite", [head])
        elif diagnosis.labelled[k] > 0 and not diagnosis.weights[k] > 0:
            sentence = f"{head!r} is not trained, because its weight is 0. Give it a weight if it should learn."
            yield Finding(sentence, "no weight", [head])
        loss, (low, high, smallest, largest) = spec.network.heads[k].loss, diagnosis.predicted[k]
        if loss.known is None or loss.known.largest is None:
            continue
        takes, sentence = f"but its loss, {loss.name}, takes probabilities", ""
        if low < -TOLERANCE or high > loss.known.largest + TOLERANCE:
            sentence = f"lie between {plain(low)} and {plain(high)}, {takes}, from 0 to 1, and the head cannot learn from it"
        elif loss.known.over != ELEMENTS and max(1 - smallest, largest - 1) > TOLERANCE and not labels.unreachable:
            sentence = f"for an example add up to {plain(smallest)} to {plain(largest)}, {takes}, which add up to 1"
        if sentence:
            advice = "" if labels.unreachable else f" {remedy(loss)}"  # which those labels would not suit
            yield Finding(f"The predictions of {head!r} {sentence}.{advice}", "no probabilities", [head])


def _why_not_finite(diagnosis: Diagnosis, spec: UpdateSpec, k: int) -> str:
    """What to do about losses that are not finite."""
    head = spec.network.heads[k]
    if head.loss.name == "poisson" and diagnosis.predicted[k, 0] < 0:
        return (
            "Its loss, poisson, takes the logarithm of predictions, and some of these are negative: end the module with "
            "`softplus` or `exponential`."
        )
    if tf.as_dtype(getattr(head.module, "compute_dtype", None) or tf.float32) == tf.float16:
        return (
            "Check its labels and inputs for invalid values. In float16, numbers above 65,504 overflow, squared errors of "
            "more than 255 for one: scale its labels, by `target_scaling`, or diagnose in float32."
        )
    return "Check its labels and inputs for invalid values."


def single_labels(diagnosis: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Labels that are few, all equal, of no use to their loss, or none at all."""
    for k, (head, labels) in enumerate(zip(diagnosis.heads, diagnosis.labels)):
        if diagnosis.labelled[k] < FEW:
            sentence = (
                f"{head!r} has labels for only {100 * diagnosis.labelled[k]:.2g}% of its elements, so its gradient is "
                "noisy. Collect more labels, mix datasets (`multihead.mix_datasets`) or sample batches with more of its "
                "labels; a balancer cannot create labels."
            )
            yield Finding(sentence, "few labels", [head])
        if labels.only is not None:
            sentence = (
                f"All labels of {head!r} in these batches are {plain(labels.only)}, so there is nothing to learn. Check "
                "where they come from."
            )
            yield Finding(sentence, "equal labels", [head])
        if spec.network.heads[k].loss.known == PERCENTAGE and labels.zeros:
            sentence = (
                f"{labels.zeros:,} labels of {head!r} are 0, and its loss divides by the labels: these alone decide what it "
                "learns. Take another loss, such as 'mae' or, on logarithms, 'msle', or leave them out as NaN."
            )
            yield Finding(sentence, "zero labels", [head])
        if labels.placeholder is not None:
            value, number = labels.placeholder
            sentence = (
                f"{number:,} labels of {head!r} are {value:g}, far from all others. If that stands for missing values, "
                "write NaN in its place, and diagnose again: as numbers, they outweigh what the head should learn."
            )
            yield Finding(sentence, "placeholder", [head])
        rarer, number = labels.rarer or (_FEW_OF_A_CLASS, 0)
        if labels.only is None and rarer < _FEW_OF_A_CLASS:
            sentence = (
                f"Only {rarer} of the {number:,} labels of {head!r} are of its rarer class. It learns them by heart, the "
                "sooner the larger its share of the encoder's update, and a metric on as few held-out ones says little: "
                "collect more, and compare it with the plain sum over several seeds."
            )
            yield Finding(sentence, "few labels", [head])


def _reads_large_numbers(diagnosis: Diagnosis, k: int) -> bool:
    """Whether a head that has learned nothing yet reads a representation with large values."""
    return diagnosis.progress[k] == "untrained" and bool(diagnosis.representation_sizes[k] > _LARGE)


def unscaled_inputs(diagnosis: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Heads that read large numbers before anything is trained, as inputs cause that are not scaled."""
    large = [k for k in range(len(diagnosis.heads)) if _reads_large_numbers(diagnosis, k)]
    if large:
        names = [diagnosis.heads[k] for k in large]
        size = plain(max(diagnosis.representation_sizes[k] for k in large))
        sentence = (
            f"The representation that {quoted(names)} {'reads' if len(large) == 1 else 'read'} has values of about {size}, "
            "and first predictions are far off. Inputs that are not scaled cause that: scale them, or put an adapted "
            "`keras.layers.Normalization` in front, and diagnose again."
        )
        yield Finding(sentence, "inputs", names)


def out_of_reach(diagnosis: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Labels that a module cannot predict, whatever it learns."""
    suggested = heads_to_scale(diagnosis, spec)
    for k, (head, labels) in enumerate(zip(diagnosis.heads, diagnosis.labels)):
        if not labels.unreachable or labels.reach is None:
            continue
        part = f"{labels.unreachable:,} of {labels.number:,}"
        own = "scaled labels" if spec.network.heads[k].scaling is not None else "labels"
        if labels.reach.sums_to_one:
            loss = spec.network.heads[k].loss
            takes_rows = loss.known is not None and loss.known.over == ROWS
            predicted = f"its loss, {loss.name}, takes" if takes_rows else "its module predicts"
            also = " and take the loss `binary_crossentropy`" if takes_rows else ""
            sentence = (
                f"{part} rows of {own} of {head!r} do not add up to 1, but {predicted} {labels.reach}, as after a softmax. "
                f"For several labels at once, or a single column, end the module with a sigmoid{also}. For one label in "
                "parts, divide the rows by their sums."
            )
        else:
            remedy = "End the module without the activation that limits it, or correct the labels."
            if takes_logits(spec.network.heads[k].loss):
                remedy = (
                    "Its loss takes logits, which are below 0 for one class and above 0 for the other: end the module "
                    "without an activation, or with a sigmoid and the loss without `from_logits=True`."
                )
            elif k not in suggested and labels.why:
                remedy = (
                    f"End the module without the activation that limits it. {labels.why} Diagnose all, with a larger "
                    "`batches`, or pass `target_scaling=scaling.Standardize(mean=0.0, deviation=...)`."
                )
            elif k in suggested:
                remedy = (
                    "End the module without the activation that limits it, or divide the labels: "
                    f"`trainer.compile(optimizer, **diagnosis.suggestion)` sets `target_scaling={suggested[k]!r}`."
                )
            low, high = (plain(end, labels.ends[1] - labels.ends[0]) for end in labels.ends)
            sentence = (
                f"{part} {own} of {head!r} are out of reach: they lie between {low} and {high}, and its module predicts "
                f"{labels.reach}, whatever it learns. {remedy}"
            )
        yield Finding(sentence, "out of reach", [head])


def raw_units(diagnosis: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Labels that are far from unit scale, of heads whose modules do not end in a layer that brings them there."""
    suggested, raw = heads_to_scale(diagnosis, spec), in_raw_units(diagnosis, spec)
    factors, weighed = enlarged_by(suggested, spec), fitting_scalings(diagnosis, spec).keys() - suggested.keys()
    usable, is_plain = comparable(diagnosis), spec.methods.balancer is None and spec.methods.weighting is None
    first = next((k for k in raw if k in suggested), None)  # its finding speaks of the other heads, too
    for k in raw:
        head, labels, weight = diagnosis.heads[k], diagnosis.labels[k], plain(diagnosis.weights[k])
        advice = f"`suggestion` leaves them: {_why_left(diagnosis, spec, k)}."
        if k in suggested:
            others = ""
            if k in factors:
                others = (
                    f" The gradient of {head!r} is then {plain(factors[k])} times as large, as its loss stays the same: "
                    "beside other heads, pass the suggested balancer, too."
                )
            elif labels.spread > 1 and k in usable and len(usable) > 1 and is_plain:
                others = (
                    f" In these units {head!r} can outweigh the others, if not at first then once its predictions are as "
                    "large; scaled, it does not: if it matters most, raise its `weight`."
                )
            if diagnosis.weights[k] != 1 and spec.methods.weighting is None:
                others += (
                    f" Its weight, {weight}, is then that of the scaled loss: if it was chosen for these units, call "
                    f"`trainer.set_weight({head!r}, 1.0)`."
                )
            faster = (
                " The other heads then learn faster, and one with few or noisy labels overfits sooner: compare each head "
                "with the plain sum on held-out data."
            )
            advice = (
                "Scale them before anything else: `trainer.compile(optimizer, **diagnosis.suggestion)` sets "
                f"`target_scaling={suggested[k]!r}` for {head!r}, as `add_head` can. Predictions and metrics stay in their "
                f"units.{' ' + labels.why if labels.why else ''}{others}"
                f"{faster if k == first and len(diagnosis.heads) > 1 else ''}"
            )
        elif k in weighed:
            advice = (
                f"`suggestion` leaves them: the weight of {head!r}, {weight}, suits these units. To scale the labels, call "
                f"`trainer.set_weight({head!r}, 1.0)` first, diagnose again, and compare."
            )
        elif labels.why:
            advice = f"{advice} {labels.why}"
        if labels.has_unknown_units:
            advice = ""
        mean, deviation, number = labels.center, labels.spread, len(labels.columns)
        trouble = "A head starts near 0 and needs very many updates to get there, whatever its weight and the balancer."
        if labels.has_unknown_units:
            trouble = (
                "Its loss is not one of Keras's, and does not show what the module predicts. If these are numbers in the "
                "labels' units, end it in a `keras.layers.Rescaling`, since a head starts near 0. If they are logarithms, "
                "risks, parameters or embeddings, leave it."
            )
        elif predicts_in_units(diagnosis, k) and not _reads_large_numbers(diagnosis, k):
            trouble = "Beside heads whose losses are small, its own can outweigh them."
        elif deviation < 1 and abs(mean) <= 5:
            trouble = "Once the head predicts their mean, its loss and its gradient are tiny."
        middle = plain(mean, deviation)
        numbers = f"have mean {middle} and standard deviation {plain(deviation)}"
        if labels.is_robust:
            numbers = f"have median {middle}, and two thirds of them lie within about {plain(deviation)} of it"
        column = f" in column {labels.column}, the largest of {number}," if number > 1 else ""
        sentence = f"The labels of {head!r}{column} {numbers}. {trouble} {advice}".rstrip()
        yield Finding(sentence, "units", [head])


def _why_left(diagnosis: Diagnosis, spec: UpdateSpec, k: int) -> str:
    """Why the labels of a head in raw units are not scaled."""
    labels = diagnosis.labels[k]
    if rescales_to_other_units(diagnosis, spec, k):
        low, high = (plain(end) for end in diagnosis.predicted[k, :2])
        return (
            f"the module ends in a layer that rescales, but begins with predictions between {low} and {high}; correct its "
            "scale and its offset"
        )
    if labels.placeholder is not None:
        return "not all of them seem to be labels"
    if labels.scaling is None and labels.unreachable:
        return "the module must be able to predict them first"
    if labels.scaling is None and not labels.is_robust:
        return "no `target_scaling` fits its loss, its labels and its module; end the module in a `keras.layers.Rescaling`"
    if _reads_large_numbers(diagnosis, k) and predicts_in_units(diagnosis, k):
        return "the inputs come first"
    if predicts_in_units(diagnosis, k):
        return "the head predicts in these units already; for a new run, end the module in a `keras.layers.Rescaling`"
    if labels.is_robust:
        return "it depends on what the far ones are"
    return "the head has been trained on them already; for a new run, scale them from the start"
