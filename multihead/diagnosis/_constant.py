"""Each head's loss with the best constant prediction, which shows whether the head has learned anything from its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from multihead._update.labels import Labels
from multihead.heads._named import NamedHead
from multihead.heads._value import why_not_scaled
from multihead.losses._known import CLASSES, ELEMENTS, Known, aligned, with_columns, with_inner

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_MAX_STEPS, _MAX_NUMBERS = 60, 2**22


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
        starts = [counts / counts.sum()]
    else:
        values, weights = _label_rows(head, shape, present)
        starts = [np.average(values, axis=0, weights=weights), *_quantiles(values, weights)]
        known: Known | None = head.loss.known
        if known is None or (known.over == ELEMENTS and known.low is None and known.high is None):
            some = np.where(weights > 0, values, np.nan)
            some = some[:, ~np.isnan(some).all(axis=0)]
            mean, deviation = float(np.nanmean(some)), float(np.nanmean(np.nanstd(some, axis=0)))
    columns = aligned(targets, shape, over).shape[-1]
    is_scalable = (
        bool(np.isfinite(mean)) and why_not_scaled(head.loss, head.label_spec.class_weight) is None and columns == shape[-1]
    )
    return _least_loss(head, spec, present, starts, predicted), mean, deviation, is_scalable


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


def _quantiles(values: np.ndarray, weights: np.ndarray) -> list[np.ndarray]:
    """Weighted quantiles by column."""
    order = values.argsort(axis=0)
    ordered, mass = (np.take_along_axis(each, order, axis=0) for each in (values, weights))
    mass = mass.cumsum(axis=0) / mass.sum(axis=0)
    rows = [np.minimum((mass < quantile).sum(axis=0), len(values) - 1) for quantile in _QUANTILES]
    return [np.take_along_axis(ordered, each[None], axis=0)[0] for each in rows]


def _least_loss(
    head: NamedHead, spec: tf.TensorSpec, labels: Sequence[Labels], starts: Sequence[np.ndarray], predicted: np.ndarray
) -> float:
    """The loss of the best of some constants, improved by gradient descent within what the module can predict.

    The mean and the frequencies are best for a squared error and a cross-entropy, but not for a focal or an asymmetric loss.
    """
    rank, (low, high, smallest, largest) = spec.shape.rank, predicted
    is_probability = low >= 0 and high <= 1 and all(((each >= 0) & (each <= 1)).all() for each in starts)
    is_row = is_probability and spec.shape[-1] != 1 and abs(smallest - 1) < 1e-3 and abs(largest - 1) < 1e-3
    link = tf.nn.softmax if is_row else tf.sigmoid if is_probability else tf.identity

    def loss(numbers: tf.Tensor) -> tf.Tensor:
        """The head's mean loss if it predicts a constant, `[columns]`, everywhere."""
        constant, sums, counts = link(numbers), [], []
        for each in labels:
            sizes = list(each.targets.shape[: max(rank - 1, 1)])  # of this batch; those of the spec are of the first
            everywhere = tf.broadcast_to(constant[0] if rank == 1 else constant, [*sizes, *spec.shape[len(sizes) :]])
            sums.append(head.loss_sum(each.targets, everywhere, each.weights))
            counts.append(head.count(each.targets, everywhere, each.weights))
        return tf.add_n(sums) / tf.add_n(counts)

    best, of_best = np.nan, np.zeros(0, "float32")
    for start in starts:
        for numbers in ([] if is_probability else [start]) + _logits(start, is_row):
            numbers = numbers.astype("float32")
            try:
                value = float(loss(tf.constant(numbers)))
            except (ValueError, TypeError, tf.errors.OpError):  # the loss cannot take what it is given
                continue
            if np.isfinite(value) and not value >= best:
                best, of_best = value, numbers
    num_numbers = sum(each.weights.shape.num_elements() for each in labels) * len(of_best)
    return _descend(loss, of_best) if 0 < num_numbers <= _MAX_NUMBERS else best


def _logits(start: np.ndarray, is_row: bool) -> list[np.ndarray]:
    """What gives probabilities, if they can be such, under a softmax or a sigmoid."""
    if (start < 0).any() or (start > 1).any():
        return []
    inside = np.clip(start, 1e-6, 1 - 1e-6)
    return [np.log(inside)] if is_row else [np.log(inside / (1 - inside)), np.log(inside)][: 1 + (len(start) > 1)]


def _descend(loss: Callable[[tf.Tensor], tf.Tensor], numbers: np.ndarray) -> float:
    """The least loss that gradient descent finds, with the steps of Barzilai and Borwein, shorter where it does not fall."""

    def at(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        point = tf.constant(numbers)
        with tf.GradientTape() as tape:
            tape.watch(point)
            value = loss(point)
        slope = tape.gradient(value, point)
        return float(value), np.zeros_like(numbers) if slope is None else tf.convert_to_tensor(slope).numpy()

    value, slope = at(numbers)
    step = 1 / max(np.abs(slope).max(), 1e-3)
    for _ in range(_MAX_STEPS):
        moved = (numbers - step * slope).astype("float32")
        new, of_new = at(moved)
        if not new < value:  # or NaN
            step /= 4
            if step * (slope**2).sum() < 1e-6 * abs(value):
                break
            continue
        gain, path, turn = value - new, moved - numbers, of_new - slope
        numbers, value, slope = moved, new, of_new
        if gain < 1e-5 * abs(value):
            break
        curvature = float((path * turn).sum())
        step = float((path**2).sum()) / curvature if curvature > 0 else 2 * step
    return value
