"""Metrics for replies, classes and numbers."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from examples.seq2seq_price.ranges import NO_LABEL

_SLOT = re.compile(r"([^\[\],;]+)\[([^\[\]]*)\]")
_CUT = re.compile(r"@@( |$)")


def slots(text: str) -> Counter[tuple[str, str]]:
    """The (slot, value) pairs of a meaning such as `name[The Mill], area[riverside]`, with their counts."""
    return Counter((name.strip(), value.strip()) for name, value in _SLOT.findall(text))


def reply_figures(wanted: Sequence[str], received: Sequence[str]) -> dict[str, float]:
    """Exact match, and slot F1 if the reference replies have slots.

    `reply_exact` is the fraction of replies that equal their references, up to the amount of white space. `reply_slot_f1`
    is micro-averaged: `2 tp / (wanted + received)`, with `tp` the number of (slot, value) pairs in both.
    """
    pairs = [(" ".join(left.split()), " ".join(right.split())) for left, right in zip(wanted, received)]
    figures = {"reply_exact": float(np.mean([left == right for left, right in pairs]))}
    counted = [(slots(left), slots(right)) for left, right in pairs]
    number_wanted = sum(left.total() for left, _ in counted)
    if number_wanted:
        both = sum((left & right).total() for left, right in counted)
        figures["reply_slot_f1"] = 2 * both / (number_wanted + sum(right.total() for _, right in counted))
    return figures


def overlap_figures(wanted: Sequence[str], received: Sequence[str]) -> dict[str, float]:
    """Corpus BLEU and chrF from sacrebleu, from 0 to 100; empty if sacrebleu is not installed.

    Both are computed on whole words: subwords, where `@@` marks a piece that continues in the next one (Sennrich, Haddow
    and Birch, 2016, arXiv 1508.07909), are joined first.
    """
    if importlib.util.find_spec("sacrebleu") is None:
        return {}
    from sacrebleu.metrics import BLEU, CHRF

    wanted, received = ([_CUT.sub("", text) for text in texts] for texts in (wanted, received))
    # Forced, because sacrebleu mistakes replies that end with a space and a full stop for tokenized texts.
    bleu, chrf = (metric.corpus_score(received, [wanted]) for metric in (BLEU(force=True), CHRF()))
    return {"reply_bleu": float(bleu.score), "reply_chrf": float(chrf.score)}


def confusion(labels: np.ndarray, predicted: np.ndarray, number: int) -> np.ndarray:
    """The confusion matrix, int64 `[number, number]`, with labels in rows and predictions in columns.

    Args:
        labels: Class numbers `[rows]`, `NO_LABEL` where a label is missing.
        predicted: Class numbers `[rows]`.
        number: The number of classes.
    """
    labelled = labels != NO_LABEL
    pairs = labels[labelled].astype(np.int64) * number + predicted[labelled]
    return np.bincount(pairs, minlength=number * number).reshape(number, number)


def class_figures(labels: np.ndarray, predicted: np.ndarray, head: str = "price") -> dict[str, float]:
    """Accuracy and macro F1 over labelled rows; empty if no row has a label.

    `price_macro_f1` is the mean of `2 tp / (labelled + predicted)` over the classes that occur among labels or
    predictions.

    Args:
        labels: Class numbers `[rows]`, `NO_LABEL` where a label is missing.
        predicted: Class numbers `[rows]`.
        head: Prefix of the metrics' names.
    """
    labelled = labels != NO_LABEL
    if not labelled.any():
        return {}
    labels, predicted = labels[labelled], predicted[labelled]
    scores = []
    for number in np.union1d(labels, predicted):
        wanted, received = labels == number, predicted == number
        scores.append(2 * np.sum(wanted & received) / (np.sum(wanted) + np.sum(received)))
    return {f"{head}_accuracy": float(np.mean(labels == predicted)), f"{head}_macro_f1": float(np.mean(scores))}


def number_figures(targets: np.ndarray, predicted: np.ndarray, head: str) -> dict[str, float]:
    """Mean absolute error and coefficient of determination over the rows with a number; empty if there are none.

    `_r2` is `1 - sum (target - predicted)^2 / sum (target - mean)^2`, left out where all targets are equal.

    Args:
        targets: Numbers `[rows]`, NaN where there is none.
        predicted: Numbers `[rows]`.
        head: Prefix of the metrics' names.
    """
    known = ~np.isnan(targets)
    if not known.any():
        return {}
    targets, errors = targets[known].astype(np.float64), (predicted - targets)[known].astype(np.float64)
    figures = {f"{head}_mae": float(np.mean(np.abs(errors)))}
    if np.ptp(targets):
        figures[f"{head}_r2"] = float(1 - np.mean(errors**2) / np.var(targets))
    return figures
