"""How metrics of which nothing is known are updated with the labels that are there; `_probing.py` finds what they read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.calls import function_values
from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import in_xla, where

ELEMENTS, WEIGHTS, COLUMNS, WHOLE = "elements", "weights", "columns", "whole"


class Reading:
    """How a metric is updated with labelled elements alone.

    Args:
        metric: The Keras metric.
        head: The name of its head, for messages.

    Attributes:
        rank: The number of axes that tell its rows apart: with 2, it gets `[batch, time, ...]` as `[batch * time, ...]`.
        way: What it is told where only some labels of a row are there. `"elements"`: each labelled element as a row of its
            own; `"weights"`: a weight for each element; `"columns"`: the rows with a label in a column, for one column after
            another; `"whole"`: the rows in which each column that it reads has a label.
        sizes: The sizes of the axes of a row's columns.
        reads: Which columns it reads, booleans; None for all.
        weighs: Whether it uses `sample_weight`.
        of_batch: Whether it is the mean of a function whose values are not those of rows.
    """

    def __init__(self, metric: Any, head: str) -> None:
        self.metric = metric
        self._head = head
        self.of_batch = False
        self.rank, self.way = 1, WHOLE
        self.sizes: list[int | None] = []
        self.reads: np.ndarray | None = None
        self.weighs = takes_weights(type(metric))

    def update(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Adds the labelled elements of a batch.

        Args:
            targets: The targets.
            predictions: The predictions, of rank 2 at least.
            weights: The weights of the loss's elements.

        Returns:
            How many rows count.

        Raises:
            ValueError: XLA compiles the step, and the metric does not use weights.
        """
        if predictions.dtype in (tf.float16, tf.bfloat16):
            predictions = tf.cast(predictions, tf.float32)
        rows = tf.reduce_prod(tf.shape(predictions)[: self.rank])
        weights = _broadcast(weights, predictions, self.rank)
        inner = weights.shape[self.rank :]
        targets, predictions = (_flat(each, rows, each.shape[self.rank :]) for each in (targets, predictions))
        columns = tf.reduce_prod(tf.shape(weights)[self.rank :])
        weights = _flat(weights, rows, inner) if self.way == WEIGHTS else tf.reshape(weights, [rows, columns])
        if self.way == ELEMENTS:
            targets, predictions, weights = (tf.reshape(each, [-1, 1]) for each in (targets, predictions, weights))
        if self.way == COLUMNS and inner.as_list() == self.sizes:
            are_equal, row = tf.reduce_all(tf.equal(weights, weights[:, :1])), weights[:, 0]
            return _either(
                are_equal,  # no row lacks the labels of some columns only, so that one update does for all
                lambda: self._add(targets, predictions, row, row > 0),
                lambda: self._update_columns(targets, predictions, weights),
            )
        if self.way == WEIGHTS:
            axes, valid = list(range(1, weights.shape.rank)), tf.reshape(targets, [-1])
            if targets.shape.rank == weights.shape.rank:  # what is computed of a missing label must be finite
                valid = tf.gather(valid, tf.argmax(tf.reshape(tf.cast(weights > 0, tf.int32), [-1])))
                targets = where(weights > 0, targets, valid)
            return self._add(targets, predictions, weights, tf.reduce_any(weights > 0, axis=axes))
        if self.reads is not None and inner.as_list() == self.sizes:
            weights = tf.gather(weights, np.flatnonzero(self.reads), axis=1)
        labelled = tf.reduce_all(weights > 0, axis=1)
        return self._add(targets, predictions, where(labelled, tf.reduce_mean(weights, axis=1), 0.0), labelled)

    def _add(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor, labelled: tf.Tensor) -> tf.Tensor:
        """Updates the metric with the labelled rows."""

        def update(*selected: tf.Tensor) -> None:
            if self.of_batch:
                keras.metrics.Mean.update_state(self.metric, function_values(self.metric, *selected[:2]))
            else:
                update_metric(self.metric, *selected)

        if self._selects():
            selected = partial(self._selected, labelled, targets, predictions, weights)
            _either(tf.reduce_any(labelled), lambda: update(*selected()), lambda: None)  # it need not be able to take no row
        else:
            update(*_filled(labelled, targets, predictions), weights)
        return tf.reduce_sum(tf.cast(labelled, tf.float32))

    def _update_columns(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Updates the metric once for each column, with the column's labelled rows, and keeps the column's part of each."""
        variables = [] if self.of_batch else [tensor_variable(variable) for variable in self.metric.variables]
        before = [tf.identity(variable) for variable in variables]
        inner = [int(size or 0) for size in self.sizes]
        number = int(np.prod(inner))

        def found(selected: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            if self.of_batch:
                return [tf.cast(function_values(self.metric, *selected[:2]), tf.float32)]
            for variable, value in zip(variables, before):
                variable.assign(value)
            update_metric(self.metric, *selected)
            return [tf.identity(variable) for variable in variables]

        if self.of_batch:
            before = [tf.zeros(inner)]

        def of_column(k: tf.Tensor, kept: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            of_rows = tf.gather(weights, k, axis=1)
            labelled = of_rows > 0
            if self._selects():
                selected = partial(self._selected, labelled, targets, predictions, of_rows)
                results = _either(tf.reduce_any(labelled), lambda: found(selected()), lambda: before)
            else:
                results = found([*_filled(labelled, targets, predictions), of_rows])
            is_column = tf.equal(tf.range(number), k)
            return k + 1, [where(_along(is_column, each, inner), each, own) for each, own in zip(results, kept)]

        _, kept = tf.while_loop(lambda k, _: k < number, of_column, (tf.constant(0), before), parallel_iterations=1)
        if self.of_batch:
            exist = tf.reduce_any(weights > 0, axis=0)
            keras.metrics.Mean.update_state(
                self.metric, tf.reshape(kept[0], [number]), sample_weight=tf.cast(exist, tf.float32)
            )
        for variable, value in zip(variables, kept):
            variable.assign(value)
        return tf.reduce_sum(tf.cast(tf.reduce_any(weights > 0, axis=1), tf.float32))

    def _selects(self) -> bool:
        """Whether unlabelled rows are left out, not weighed with 0: XLA has no tensors of open size."""
        if not in_xla():
            return True
        if self.of_batch or not self.weighs:
            raise ValueError(
                f"`jit_compile` must not be True for the metric {self.metric.name!r} of head {self._head!r}, which does not "
                "use `sample_weight`: XLA cannot leave out rows without a label. Received: a step that XLA compiles. Let "
                "`update_state` use its `sample_weight`, or omit `jit_compile`."
            )
        return False

    def _selected(self, labelled: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
        places = tf.where(labelled)[:, 0]
        selected = [tf.gather(tensor, places) for tensor in tensors]
        return selected if self.weighs else selected[:2]


def is_function(metric: Any) -> bool:
    """Whether a metric is the mean of a function's values."""
    update = getattr(type(metric), "update_state", None)
    wraps = getattr(metric, "_fn", None) is not None and isinstance(metric, keras.metrics.Mean)
    return wraps and str(getattr(update, "__qualname__", "")).startswith("MeanMetricWrapper.")


def takes_weights(kind: Any) -> bool:
    """Whether `update_state` of a class of metrics has an argument `sample_weight`."""
    parameters = inspect.signature(kind.update_state).parameters.values()
    return any(each.name == "sample_weight" or each.kind is each.VAR_KEYWORD for each in parameters)


def update_metric(metric: Any, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor | None = None) -> None:
    if weights is None:
        metric.update_state(targets, predictions)
    else:
        metric.update_state(targets, predictions, sample_weight=weights)


def _either(condition: tf.Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """`then()` or `otherwise()`, of which only one runs."""
    if tf.executing_eagerly():
        return then() if bool(condition) else otherwise()

    def branch(function: Callable[[], Any]) -> Any:
        result = function()
        return tf.no_op() if result is None else result

    return tf.cond(condition, lambda: branch(then), lambda: branch(otherwise))


def _filled(labelled: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
    """The same with a labelled row wherever there is none: its weight is 0, but what is computed of it must be finite."""
    place = tf.argmax(tf.cast(labelled, tf.int32))
    return [
        where(tf.reshape(labelled, [-1, *[1] * (tensor.shape.rank - 1)]), tensor, tf.gather(tensor, place))
        for tensor in tensors
    ]


def _flat(tensor: tf.Tensor, rows: tf.Tensor, inner: Any) -> tf.Tensor:
    """A tensor with one axis of rows."""
    start = tensor.shape.rank - len(inner)
    if start == 1:
        return tf.identity(tensor)
    return tf.ensure_shape(tf.reshape(tensor, tf.concat([[rows], tf.shape(tensor)[start:]], axis=0)), [None, *inner])


def _broadcast(weights: tf.Tensor, predictions: tf.Tensor, rank: int) -> tf.Tensor:
    """Weights with at least the axes that tell rows apart."""
    if weights.shape.rank >= rank:
        return weights
    weights = tf.reshape(weights, tf.concat([tf.shape(weights), [1] * (rank - weights.shape.rank)], axis=0))
    return tf.broadcast_to(weights, tf.shape(predictions)[:rank])


def _along(is_column: tf.Tensor, tensor: tf.Tensor, inner: Sequence[int]) -> tf.Tensor:
    """A condition on columns, for a tensor that has their axes; one that does not have them stays as it was."""
    shape = tensor.shape.as_list()
    place = place_of(shape, inner)
    if place is None:
        return tf.zeros(shape, tf.bool)
    sizes = [size if place <= i < place + len(inner) else 1 for i, size in enumerate(shape)]
    return tf.broadcast_to(tf.reshape(is_column, sizes), shape)


def place_of(shape: Sequence[int], inner: Sequence[int]) -> int | None:
    """Where the sizes of columns occur in a shape; None if not once."""
    shape, inner = list(shape), list(inner)
    found = [i for i in range(len(shape) - len(inner) + 1) if shape[i : i + len(inner)] == inner]
    return found[0] if len(found) == 1 else None
