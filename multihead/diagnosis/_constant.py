"""A head's loss with the best constant prediction, which tells whether the head has learned anything from its inputs."""

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
"""Shifts of the log-odds and powers of the frequencies: class weights and focal losses have their best constant there."""
_MAX_NUMBERS = 2**22
"""With more labels than this, log-odds are not shifted and frequencies not raised to powers, to save time."""
_FAR_BELOW = 0.05
"""A loss below this part of the best constant's shows that the constants are in other units than the predictions."""


class LabelRows(NamedTuple):
    """The labels of a head in all batches."""

    batches: list[Labels]  # as the loss takes them
    counts: np.ndarray | None  # `[classes]`: the total weights of the classes; None if the labels are not class numbers
    values: np.ndarray | None  # `[rows, columns]`: the labels; None if they are class numbers
    weights: np.ndarray | None  # of the same shape: their weights; ones in a column without labels

    @property
    def present(self) -> np.ndarray:
        """`[rows, columns]`: the labels with a positive weight, NaN in place of the others."""
        return np.where(np.asarray(self.weights) > 0, self.values, np.nan)


def label_rows(head: NamedHead, spec: tf.TensorSpec, labels: Sequence[Labels | None]) -> LabelRows | None:
    """The labels of a head, merged where its loss allows it; None without any, or without a known number of columns."""
    batches = [batch for batch in labels if batch is not None and bool(tf.reduce_any(batch.weights > 0))]
    shape = with_columns(spec.shape)
    if not batches or shape[-1] is None:
        return None
    batches = batches if head.loss.couples_rows or head.loss.is_undeclared else _merged(batches)
    over, targets = head.loss.over, batches[0].targets
    are_classes = over == CLASSES
    if over is None and targets.dtype.is_integer and shape[-1] > 1:
        has_axes = targets.shape.rank in (shape.rank - 1, shape.rank) and targets.shape[-1] != shape[-1]
        are_classes = has_axes and all(
            ((classes >= 0) & (classes < shape[-1]))[weights > 0].all() for classes, weights in class_numbers(batches)
        )
    if not are_classes:
        return LabelRows(batches, None, *_numbers(head, shape, batches))
    counts = np.full(shape[-1], 1e-9)
    for classes, weights in class_numbers(batches):
        counts += np.bincount(classes.astype("int64"), weights, minlength=shape[-1])[: shape[-1]]
    return LabelRows(batches, counts, None, None)


def class_numbers(batches: Sequence[Labels]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The class numbers of the batches and their weights, without batches in which their numbers differ."""
    flat = [(batch.targets.numpy().ravel(), batch.weights.numpy().ravel()) for batch in batches]
    return [(classes, weights) for classes, weights in flat if len(classes) == len(weights)]


def constant_loss(
    head: NamedHead, spec: tf.TensorSpec, labels: LabelRows | None, predicted: np.ndarray, loss: float, is_guess: bool
) -> float:
    """The mean loss of the best constant prediction that was tried, with class weights and sample weights.

    The loss is the head's own, and the constants are of the kind (logits or probabilities) that it has `predicted`. NaN if
    no loss is finite; and, where they are a guess, in unknown units, if a label has several predictions, or if the
    head's own `loss` is far below those of all constants.
    """
    if labels is None or (is_guess and np.shape(labels.values)[-1] != with_columns(spec.shape)[-1]):
        return float("nan")
    if labels.counts is not None:
        constants = [labels.counts / labels.counts.sum()]
    else:
        mean = np.average(labels.values, axis=0, weights=labels.weights)
        constants = [mean, *_quantiles(labels.values, np.asarray(labels.weights))]
        if is_guess:
            constants += [np.log(constant) for constant in constants if (constant > 0).all()] + [np.zeros_like(mean)]
    low, high, smallest, largest = predicted
    if all(((constant >= 0) & (constant <= 1)).all() for constant in constants):
        share = np.clip(constants[0], 1e-6, 1 - 1e-6)
        is_large = sum(batch.weights.shape.num_elements() for batch in labels.batches) * len(share) > _MAX_NUMBERS
        logits = [np.log(share / (1 - share)) + shift for shift in ([0.0] if is_large else _SHIFTS)]
        powers = [power * np.log(share) for power in ([1.0] if is_large else _POWERS)] if len(share) > 1 else []
        if not (low >= 0 and high <= 1):
            constants += logits + powers
        elif len(share) > 1 and abs(smallest - 1) < 1e-3 and abs(largest - 1) < 1e-3:
            constants = [np.exp(scores) / np.exp(scores).sum() for scores in powers]
        else:
            constants = [1 / (1 + np.exp(-logit)) for logit in logits]
    least = min(losses_of(head, spec, labels.batches, constants), default=float("nan"))
    return float("nan") if is_guess and 0 < loss < _FAR_BELOW * least else least


def _quantiles(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted quantiles of the columns, `[quantiles, columns]`."""
    columns = []
    for column, weight in zip(values.T, weights.T):
        order = np.argsort(column)
        order = order[weight[order] > 0]
        reached = np.cumsum(weight[order])
        columns.append(column[order][np.searchsorted(reached, _QUANTILES * reached[-1])])
    return np.stack(columns, axis=1)


def _merged(labels: Sequence[Labels]) -> list[Labels]:
    """The labels of all batches, concatenated where their shapes agree."""
    shapes: dict[tuple[tuple[int, ...], ...], list[Labels]] = {}
    for batch in labels:
        shapes.setdefault((tuple(batch.targets.shape[1:]), tuple(batch.weights.shape[1:])), []).append(batch)
    return [Labels(*(tf.concat(parts, axis=0) for parts in list(zip(*group))[:2])) for group in shapes.values()]


def _numbers(head: NamedHead, shape: tf.TensorShape, labels: Sequence[Labels]) -> tuple[np.ndarray, np.ndarray]:
    """All labels and their weights, both `[rows, columns]`."""
    rows, row_weights = [], []
    for batch in labels:
        targets = aligned(batch.targets, shape, head.loss.over)
        if targets.shape.rank < shape.rank:  # one label for several predictions, as of quantiles
            targets = targets[..., tf.newaxis]
        wide = tf.cast(targets, tf.float64).numpy()
        weights = with_inner(batch.weights, targets)
        rows.append(wide.reshape(-1, wide.shape[-1]))
        row_weights.append(np.broadcast_to(tf.cast(weights, tf.float64).numpy(), wide.shape).reshape(-1, wide.shape[-1]))
    values, weights = np.concatenate(rows), np.concatenate(row_weights)
    is_empty = weights.sum(axis=0) == 0  # an average with weights that sum to 0 would be an error
    return values, np.where(is_empty, 1.0, weights)


def losses_of(
    head: NamedHead, spec: tf.TensorSpec, labels: Sequence[Labels], constants: Sequence[np.ndarray]
) -> Iterator[float]:
    """The head's mean losses for the constants, `[columns]`, predicted everywhere; only those that are finite."""
    for constant in constants:
        loss_sum, count = loss_terms(head, spec, labels, constant)
        if np.isfinite(loss_sum) and count > 0:
            yield loss_sum / count


def loss_terms(
    head: NamedHead, spec: tf.TensorSpec, labels: Sequence[Labels], constant: np.ndarray, noise: float = 0.0
) -> tuple[float, float]:
    """The sum and the count of the head's loss for a constant, `[columns]`, predicted everywhere; NaN if it rejects that.

    `noise` is the deviation of normal numbers that are added, the same at every call.
    """
    loss_sum, count = 0.0, 0.0
    try:
        for batch, predictions in _predicted(spec, labels, constant, noise):
            loss_sum += float(head.loss_sum(batch.targets, predictions, batch.weights))
            count += float(head.count(batch.targets, predictions, batch.weights))
    except (ValueError, TypeError, tf.errors.OpError):
        return np.nan, np.nan
    return loss_sum, count


def derivatives(
    head: NamedHead, spec: tf.TensorSpec, labels: Sequence[Labels], constant: np.ndarray, noise: float
) -> list[np.ndarray] | None:
    """Those of the sum of `loss_terms` by labels and by predictions, both `[rows, columns]`; None if it rejects these."""
    found = []
    try:
        for batch, predictions in _predicted(spec, labels, constant, noise):
            targets = batch.targets if batch.targets.dtype.is_floating else tf.cast(batch.targets, tf.float32)
            with tf.GradientTape() as tape:
                tape.watch([targets, predictions])
                loss = head.loss_sum(targets, predictions, batch.weights)
            by_both = tape.gradient(loss, [targets, predictions], unconnected_gradients="zero")
            by_both = [tf.cast(tf.convert_to_tensor(part), tf.float64).numpy() for part in by_both]
            has_columns = [part.ndim == spec.shape.rank > 1 for part in by_both]
            found.append([part.reshape(-1, part.shape[-1] if wide else 1) for part, wide in zip(by_both, has_columns)])
    except (ValueError, TypeError, LookupError, tf.errors.OpError):
        return None
    return [np.concatenate(parts) for parts in zip(*found)]


def _predicted(
    spec: tf.TensorSpec, labels: Sequence[Labels], constant: np.ndarray, noise: float
) -> Iterator[tuple[Labels, tf.Tensor]]:
    """The batches, with predictions of a constant and noise."""
    rank, random = spec.shape.rank, np.random.default_rng(0)
    for batch in labels:
        sizes = list(batch.targets.shape[: max(rank - 1, 1)])  # the spec has those of the first batch
        shape = [*sizes, *spec.shape[len(sizes) :]]
        predictions = tf.broadcast_to(tf.constant(constant[0] if rank == 1 else constant, tf.float32), shape)
        if noise:
            predictions += tf.constant(noise * random.standard_normal(shape), tf.float32)
        yield batch, predictions
