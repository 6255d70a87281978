"""Each head's loss with a constant prediction, which shows whether the head has learned anything from its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from multihead._update.labels import Labels
from multihead.heads import Head
from multihead.losses._known import CLASSES, ELEMENTS, ROWS
from multihead.losses._shapes import Elements, aligned, with_columns

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Targets(NamedTuple):
    """Statistics of a head's labels.

    Attributes:
        constant_loss: The mean loss of the best constant prediction that was found; NaN if none gives a finite loss.
        mean: The mean of the labels, if they are numbers without bounds; otherwise NaN.
        deviation: Their standard deviation; otherwise NaN.
        is_summed: Whether the loss of each element grows with the number of examples in the batch.
    """

    constant_loss: float
    mean: float
    deviation: float
    is_summed: bool


def targets_of(head: Head, predictions: tf.TensorSpec, labels: Sequence[Labels | None]) -> Targets:
    """Evaluates the head's own loss on constant predictions.

    Args:
        head: The head.
        predictions: The spec of its predictions.
        labels: Its labels in each batch, or None.
    """
    present = [each for each in labels if each is not None and bool(tf.reduce_any(each.weights > 0))]
    shape = with_columns(predictions.shape)
    if not present or shape[-1] is None:
        return Targets(np.nan, np.nan, np.nan, False)
    kind = _kind(head, shape, present[0].targets)
    if kind == CLASSES:
        constants, values = _of_frequencies(head, _class_frequencies(present, shape[-1]), predictions, present[0]), None
    else:
        values = _label_rows(head, shape, present)
        constants = _of_numbers(head, values, predictions, present[0], kind)
    losses = [(_mean_loss(head, constant, predictions, present), constant) for constant in constants]
    finite = [(loss, constant) for loss, constant in losses if np.isfinite(loss)]
    best, constant = min(finite, key=lambda each: each[0]) if finite else (np.nan, None)
    is_summed = constant is not None and _grows_with_the_batch(head, constant, predictions, present)
    mean, deviation = _moments(head, values) if kind == ELEMENTS and values is not None else (np.nan, np.nan)
    return Targets(float(best), mean, deviation, is_summed)


def _kind(head: Head, shape: tf.TensorShape, targets: tf.Tensor) -> str:
    """The kind of the labels: class numbers, rows such as distributions, or numbers."""
    if head.loss.over is not None:
        return head.loss.over
    is_classes = targets.dtype.is_integer and shape[-1] > 1 and targets.shape.rank in (shape.rank - 1, shape.rank)
    return CLASSES if is_classes and targets.shape[-1] != shape[-1] else ELEMENTS


def _class_frequencies(labels: Sequence[Labels], num_classes: int) -> np.ndarray:
    counts = np.zeros(num_classes)
    for each in labels:
        numbers, weights = each.targets.numpy().ravel(), each.weights.numpy().ravel()
        if len(numbers) == len(weights):
            counts += np.bincount(numbers.astype("int64"), weights, minlength=num_classes)[:num_classes]
    return counts / counts.sum() if counts.sum() > 0 else np.full(num_classes, 1 / num_classes)


def _label_rows(head: Head, shape: tf.TensorShape, labels: Sequence[Labels]) -> np.ndarray:
    """`[rows, columns]`: all labels, with NaN for missing ones."""
    rows = []
    for each in labels:
        targets = aligned(each.targets, shape, head.loss.over)
        weights = Elements(targets, each.weights.shape.rank).with_inner(each.weights)
        wide = tf.cast(targets, tf.float64).numpy()
        rows.append(np.where(np.broadcast_to(weights.numpy() > 0, wide.shape), wide, np.nan).reshape(-1, wide.shape[-1]))
    return np.concatenate(rows)


def _of_numbers(head: Head, values: np.ndarray, predictions: tf.TensorSpec, labels: Labels, kind: str) -> list[np.ndarray]:
    """Constants for numbers, by column: the mean, quantiles, and the logit of the mean."""
    labelled = values[:, ~np.isnan(values).all(axis=0)]
    if labelled.shape[1] < values.shape[1]:
        values = np.where(np.isnan(values).all(axis=0), 0.0, values)  # a column without labels counts for nothing
    mean = np.nanmean(values, axis=0)
    if kind == ROWS:
        return [mean] if (mean <= 0).any() else _of_frequencies(head, mean, predictions, labels)
    constants = [mean, *np.nanquantile(values, _QUANTILES, axis=0)]
    inside = np.clip(mean, 1e-6, 1 - 1e-6)
    return [*constants, np.log(inside / (1 - inside))] if ((mean >= 0) & (mean <= 1)).all() else constants


def _of_frequencies(head: Head, frequencies: np.ndarray, predictions: tf.TensorSpec, labels: Labels) -> list[np.ndarray]:
    """The frequencies as probabilities or, for a loss that does not change if a number is added, as logits."""
    one, other = (_mean_loss(head, frequencies + shift, predictions, [labels]) for shift in (0.0, 3.0))
    return [np.log(np.maximum(frequencies, 1e-9))] if np.isclose(one, other, rtol=1e-4) else [frequencies]


def _mean_loss(head: Head, constant: np.ndarray, predictions: tf.TensorSpec, labels: Sequence[Labels]) -> float:
    """The head's mean loss if it predicts a constant, `[columns]`, everywhere; NaN if the loss cannot take it."""
    sums = counts = 0.0
    for each in labels:
        try:
            sums += float(head.loss_sum(each.targets, _everywhere(constant, predictions, each.targets), each.weights))
        except (ValueError, TypeError, tf.errors.OpError):
            return np.nan
        counts += float(tf.reduce_sum(each.weights))
    return sums / counts


def _everywhere(constant: np.ndarray, predictions: tf.TensorSpec, targets: tf.Tensor) -> tf.Tensor:
    """A constant in the shape of the predictions for some targets."""
    sizes = list(targets.shape[: max(predictions.shape.rank - 1, 1)])  # of this batch; those of the spec are of the first
    shape = [*sizes, *predictions.shape[len(sizes) :]]
    value = constant[0] if predictions.shape.rank == 1 else constant
    return tf.cast(tf.broadcast_to(tf.constant(value, tf.float32), shape), tf.float32)


def _grows_with_the_batch(head: Head, constant: np.ndarray, predictions: tf.TensorSpec, labels: Sequence[Labels]) -> bool:
    """Whether a batch's loss is larger than that of its two halves together."""
    for each in labels:
        half = int(each.weights.shape[0] or 0) // 2
        if half < 1:
            continue
        halves = [Labels(each.targets[:half], each.weights[:half]), Labels(each.targets[half:], each.weights[half:])]
        whole = _mean_loss(head, constant, predictions, [each])
        apart = _mean_loss(head, constant, predictions, [part for part in halves if float(tf.reduce_sum(part.weights)) > 0])
        return bool(whole > 1.5 * apart > 0)
    return False


def _moments(head: Head, values: np.ndarray) -> tuple[float, float]:
    """The mean and the standard deviation of labels that are numbers without bounds; NaN otherwise."""
    known: Any = head.loss.known
    if known is not None and (known.low is not None or known.high is not None):
        return np.nan, np.nan
    return float(np.nanmean(values)), float(np.nanmean(np.nanstd(values, axis=0)))
