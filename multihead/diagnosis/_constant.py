"""Each head's loss with the best constant prediction, which shows whether the head has learned anything from its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from multihead._update.labels import Labels
from multihead.heads._named import NamedHead
from multihead.losses._known import CLASSES, aligned, with_columns, with_inner

_QUANTILES = np.linspace(0.025, 0.975, 39)
_SHIFTS, _POWERS = np.linspace(-3.0, 3.0, 61), np.linspace(0.05, 1.5, 30)
"""What log-odds are moved by, and frequencies raised to, as class weights and focal losses want; not with many numbers."""
_MAX_NUMBERS = 2**22


class LabelRows(NamedTuple):
    """The labels of a head in all batches.

    Attributes:
        batches: The labels of batches, as the loss takes them.
        counts: `[classes]`: the weights of class numbers; None if the labels are no class numbers.
        values: `[rows, columns]` labels, and their weights; None if they are class numbers.
        weights: As `values`; a column without labels has ones.
    """

    batches: list[Labels]
    counts: np.ndarray | None
    values: np.ndarray | None
    weights: np.ndarray | None

    @property
    def present(self) -> np.ndarray:
        """`[rows, columns]`: the labels that count, NaN for others."""
        return np.where(np.asarray(self.weights) > 0, self.values, np.nan)


def label_rows(head: NamedHead, spec: tf.TensorSpec, labels: Sequence[Labels | None]) -> LabelRows | None:
    """The labels of a head, merged where its loss allows it; None without any, or without a known number of columns."""
    found = [each for each in labels if each is not None and bool(tf.reduce_any(each.weights > 0))]
    shape = with_columns(spec.shape)
    if not found or shape[-1] is None:
        return None
    found = found if head.loss.couples_rows or head.loss.is_undeclared else _merged(found)
    over, targets = head.loss.over, found[0].targets
    are_classes = over == CLASSES
    if over is None and targets.dtype.is_integer and shape[-1] > 1:
        are_classes = targets.shape.rank in (shape.rank - 1, shape.rank) and targets.shape[-1] != shape[-1]
    if not are_classes:
        return LabelRows(found, None, *_numbers(head, shape, found))
    counts = np.full(shape[-1], 1e-9)
    for each in found:
        numbers, of_numbers = each.targets.numpy().ravel(), each.weights.numpy().ravel()
        if len(numbers) == len(of_numbers):
            counts += np.bincount(numbers.astype("int64"), of_numbers, minlength=shape[-1])[: shape[-1]]
    return LabelRows(found, counts, None, None)


def constant_loss(head: NamedHead, spec: tf.TensorSpec, labels: LabelRows | None, predicted: np.ndarray) -> float:
    """The mean loss of the best constant prediction that was found, with class weights and sample weights.

    The loss is the head's own, and the constants lie in the range of what it has `predicted`. NaN if none is finite.
    """
    if labels is None:
        return float("nan")
    if labels.counts is not None:
        constants = [labels.counts / labels.counts.sum()]
    else:
        mean = np.average(labels.values, axis=0, weights=labels.weights)
        constants = [mean, *np.nanquantile(labels.present, _QUANTILES, axis=0)]
    low, high, smallest, largest = predicted
    if all(((each >= 0) & (each <= 1)).all() for each in constants):
        share = np.clip(constants[0], 1e-6, 1 - 1e-6)
        is_large = sum(each.weights.shape.num_elements() for each in labels.batches) * len(share) > _MAX_NUMBERS
        logits = [np.log(share / (1 - share)) + shift for shift in ([0.0] if is_large else _SHIFTS)]
        powers = [power * np.log(share) for power in ([1.0] if is_large else _POWERS)] if len(share) > 1 else []
        if not (low >= 0 and high <= 1):
            constants += logits + powers
        elif len(share) > 1 and abs(smallest - 1) < 1e-3 and abs(largest - 1) < 1e-3:
            constants = [np.exp(each) / np.exp(each).sum() for each in powers]
        else:
            constants = [1 / (1 + np.exp(-each)) for each in logits]
    return min(losses_of(head, spec, labels.batches, constants), default=float("nan"))


def _merged(labels: Sequence[Labels]) -> list[Labels]:
    """The labels of batches, with those of one shape in one batch."""
    shapes: dict[tuple[tuple[int, ...], ...], list[Labels]] = {}
    for each in labels:
        shapes.setdefault((tuple(each.targets.shape[1:]), tuple(each.weights.shape[1:])), []).append(each)
    return [Labels(*(tf.concat(parts, axis=0) for parts in list(zip(*each))[:2])) for each in shapes.values()]


def _numbers(head: NamedHead, shape: tf.TensorShape, labels: Sequence[Labels]) -> tuple[np.ndarray, np.ndarray]:
    """`[rows, columns]` each: all labels, and their weights."""
    rows, of_rows = [], []
    for each in labels:
        targets = aligned(each.targets, shape, head.loss.over)
        wide = tf.cast(targets, tf.float64).numpy()
        weights = with_inner(each.weights, targets)
        rows.append(wide.reshape(-1, wide.shape[-1]))
        of_rows.append(np.broadcast_to(tf.cast(weights, tf.float64).numpy(), wide.shape).reshape(-1, wide.shape[-1]))
    values, weights = np.concatenate(rows), np.concatenate(of_rows)
    empty = weights.sum(axis=0) == 0  # a column without labels counts for nothing
    return values, np.where(empty, 1.0, weights)


def losses_of(
    head: NamedHead, spec: tf.TensorSpec, labels: Sequence[Labels], constants: Sequence[np.ndarray]
) -> Iterator[float]:
    """The head's mean losses if it predicts constants, `[columns]`, everywhere; those that are finite."""
    rank = spec.shape.rank
    for constant in constants:
        sums, counts = [], []
        numbers = tf.constant(constant[0] if rank == 1 else constant, tf.float32)
        try:
            for each in labels:
                sizes = list(each.targets.shape[: max(rank - 1, 1)])  # of this batch; those of the spec are of the first
                everywhere = tf.broadcast_to(numbers, [*sizes, *spec.shape[len(sizes) :]])
                sums.append(float(head.loss_sum(each.targets, everywhere, each.weights)))
                counts.append(float(head.count(each.targets, everywhere, each.weights)))
        except (ValueError, TypeError, tf.errors.OpError):  # the loss cannot take what it is given
            continue
        if np.isfinite(sum(sums)) and sum(counts) > 0:
            yield sum(sums) / sum(counts)
