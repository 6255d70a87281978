"""Each head's loss with the best constant prediction, which shows whether the head has learned anything from its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from multihead._update.labels import Labels
from multihead.heads._named import NamedHead
from multihead.heads._value import why_not_scaled
from multihead.losses._known import CLASSES, ELEMENTS, Known, aligned, with_columns, with_inner

_QUANTILES = np.linspace(0.025, 0.975, 39)
_SHIFTS, _POWERS = np.linspace(-3.0, 3.0, 61), np.linspace(0.05, 1.5, 30)
"""What log-odds are moved by, and frequencies raised to, as class weights and focal losses want; not with many numbers."""
_MAX_NUMBERS = 2**22


def constant_predictions(
    head: NamedHead, spec: tf.TensorSpec, labels: Sequence[Labels | None], predicted: np.ndarray
) -> tuple[float, float, float, bool]:
    """Evaluates a head's own loss on constant predictions, in the range of its `predicted`; see `Diagnosis`.

    Returns:
        The mean loss of the best constant prediction that was found, with class weights and sample weights, NaN if none
        gives a finite loss; the mean and the standard deviation of the labels, NaN unless they are numbers without bounds;
        and whether a `target_scaling` fits the loss and the predictions.
    """
    present = [each for each in labels if each is not None and bool(tf.reduce_any(each.weights > 0))]
    shape = with_columns(spec.shape)
    if not present or shape[-1] is None:
        return np.nan, np.nan, np.nan, False
    present = present if head.loss.couples_rows else _merged(present)
    mean = deviation = np.nan
    over, targets = head.loss.over, present[0].targets
    are_classes = over == CLASSES
    if over is None and targets.dtype.is_integer and shape[-1] > 1:
        are_classes = targets.shape.rank in (shape.rank - 1, shape.rank) and targets.shape[-1] != shape[-1]
    if are_classes:
        counts = np.full(shape[-1], 1e-9)
        for each in present:
            numbers, of_numbers = each.targets.numpy().ravel(), each.weights.numpy().ravel()
            if len(numbers) == len(of_numbers):
                counts += np.bincount(numbers.astype("int64"), of_numbers, minlength=shape[-1])[: shape[-1]]
        constants = [counts / counts.sum()]
    else:
        values, weights = _label_rows(head, shape, present)
        some = np.where(weights > 0, values, np.nan)
        constants = [np.average(values, axis=0, weights=weights), *np.nanquantile(some, _QUANTILES, axis=0)]
        known: Known | None = head.loss.known
        if known is None or (known.over == ELEMENTS and known.low is None and known.high is None):
            some = some[:, ~np.isnan(some).all(axis=0)]
            mean, deviation = float(np.nanmean(some)), float(np.nanmean(np.nanstd(some, axis=0)))
    low, high, smallest, largest = predicted
    if all(((each >= 0) & (each <= 1)).all() for each in constants):
        share = np.clip(constants[0], 1e-6, 1 - 1e-6)
        is_large = sum(each.weights.shape.num_elements() for each in present) * len(share) > _MAX_NUMBERS
        logits = [np.log(share / (1 - share)) + shift for shift in ([0.0] if is_large else _SHIFTS)]
        powers = [power * np.log(share) for power in ([1.0] if is_large else _POWERS)] if len(share) > 1 else []
        if not (low >= 0 and high <= 1):
            constants += logits + powers
        elif len(share) > 1 and abs(smallest - 1) < 1e-3 and abs(largest - 1) < 1e-3:
            constants = [np.exp(each) / np.exp(each).sum() for each in powers]
        else:
            constants = [1 / (1 + np.exp(-each)) for each in logits]
    columns = aligned(targets, shape, over).shape[-1]
    is_scalable = bool(np.isfinite(mean)) and columns == shape[-1]
    is_scalable &= why_not_scaled(head.loss, head.label_spec.class_weight) is None
    return min(_losses(head, spec, present, constants), default=np.nan), mean, deviation, is_scalable


def _merged(labels: Sequence[Labels]) -> list[Labels]:
    """The labels of batches, with those of one shape in one batch."""
    shapes: dict[tuple[tuple[int, ...], ...], list[Labels]] = {}
    for each in labels:
        shapes.setdefault((tuple(each.targets.shape[1:]), tuple(each.weights.shape[1:])), []).append(each)
    return [Labels(*(tf.concat(parts, axis=0) for parts in list(zip(*each))[:2])) for each in shapes.values()]


def _label_rows(head: NamedHead, shape: tf.TensorShape, labels: Sequence[Labels]) -> tuple[np.ndarray, np.ndarray]:
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


def _losses(
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
