"""How metrics of which nothing is known are updated with the labels that are present; `_probing.py` finds what they read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.calls import function_values
from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import in_xla, where
from multihead._ground.types import Function, Metric, Nested

WHOLE, BY_ELEMENT, WEIGHTED, BY_COLUMN = "whole", "by element", "weighted", "by column"
"""What a metric gets where only some labels of a row are present: the rows with all labels that it reads; each labelled
element as a row; a weight for each element; or, for one column after another, the rows with a label there."""


class Reading:
    """How a metric is updated with labelled elements alone; the name of its head is for messages."""

    def __init__(self, metric: Metric, head: str) -> None:
        self.metric, self.head = metric, head
        parameters = inspect.signature(type(metric).update_state).parameters.values()
        # Whether it uses `sample_weight`.
        self.weighs = any(each.name == "sample_weight" or each.kind is each.VAR_KEYWORD for each in parameters)
        self.of_batch = False  # whether it is the mean of a function whose values are not those of rows
        self.rank = 1  # the axes that tell its rows apart: with 2, it gets `[batch, time, ...]` as `[batch * time, ...]`
        self.way = WHOLE
        self.sizes: list[int | None] = []  # of the axes of a row's columns
        self.columns: list[int] | None = None  # those that it reads; None for all

    def update(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Adds the labelled elements of a batch, by the weights of the loss's elements; returns how many rows count."""
        if predictions.dtype in (tf.float16, tf.bfloat16):
            predictions = tf.cast(predictions, tf.float32)
        if weights.shape.rank < self.rank:
            ones = [1] * (self.rank - weights.shape.rank)
            weights = tf.reshape(weights, tf.concat([tf.shape(weights), ones], axis=0))
            weights = tf.broadcast_to(weights, tf.shape(predictions)[: self.rank])
        inner = weights.shape[self.rank :].as_list()
        targets, predictions, weights = (self._in_rows(each, predictions) for each in (targets, predictions, weights))
        if self.way == WEIGHTED:
            if targets.shape.rank == weights.shape.rank:  # what is computed of a missing label must be finite
                place = tf.argmax(tf.reshape(tf.cast(weights > 0, tf.int32), [-1]))
                targets = where(weights > 0, targets, tf.reshape(targets, [-1])[place])
            return self._add(targets, predictions, weights, tf.reduce_any(weights > 0, axis=[*range(1, weights.shape.rank)]))
        if self.way == BY_ELEMENT:
            targets, predictions, weights = (tf.reshape(each, [-1, 1]) for each in (targets, predictions, weights))
        else:
            weights = tf.reshape(weights, [tf.shape(weights)[0], tf.reduce_prod(tf.shape(weights)[1:])])
        if self.way == BY_COLUMN and inner == self.sizes:
            return _either(
                tf.reduce_all(tf.equal(weights, weights[:, :1])),  # no row lacks some labels only: one update does for all
                lambda: self._add(targets, predictions, weights[:, 0], weights[:, 0] > 0),
                lambda: self._add_columns(targets, predictions, weights),
            )
        if self.columns is not None and inner == self.sizes:
            weights = tf.gather(weights, self.columns, axis=1)
        labelled = tf.reduce_all(weights > 0, axis=1)
        return self._add(targets, predictions, where(labelled, tf.reduce_mean(weights, axis=1), 0.0), labelled)

    def apply(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor | None = None) -> None:
        """Updates the metric with rows that all count."""
        if self.of_batch:
            keras.metrics.Mean.update_state(self.metric, function_values(self.metric, targets, predictions))
        elif weights is None or not self.weighs:
            self.metric.update_state(targets, predictions)
        else:
            self.metric.update_state(targets, predictions, sample_weight=weights)

    def _in_rows(self, tensor: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        """A tensor with one axis of rows."""
        if self.rank == 1:
            return tf.identity(tensor)
        rows = tf.reduce_prod(tf.shape(predictions)[: self.rank], keepdims=True)
        flat = tf.reshape(tensor, tf.concat([rows, tf.shape(tensor)[self.rank :]], axis=0))
        return tf.ensure_shape(flat, [None, *tensor.shape[self.rank :]])

    def _add(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor, labelled: tf.Tensor) -> tf.Tensor:
        """Updates the metric with the labelled rows; returns their number."""
        self._of_labelled(self.apply, lambda: None, labelled, targets, predictions, weights)
        return tf.reduce_sum(tf.cast(labelled, tf.float32))

    def _add_columns(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Updates the metric once for each column, with the column's labelled rows, and keeps the column's part of each."""
        inner = [int(size or 0) for size in self.sizes]
        number = int(np.prod(inner))
        variables = [] if self.of_batch else [tensor_variable(variable) for variable in self.metric.variables]
        before = [tf.zeros(inner)] if self.of_batch else [tf.identity(variable) for variable in variables]

        def results(*selected: tf.Tensor) -> list[tf.Tensor]:
            if self.of_batch:
                return [tf.cast(function_values(self.metric, *selected[:2]), tf.float32)]
            for variable, value in zip(variables, before):
                variable.assign(value)
            self.apply(*selected)
            return [tf.identity(variable) for variable in variables]

        def of_column(k: tf.Tensor, kept: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            of_rows = tf.gather(weights, k, axis=1)
            found = self._of_labelled(results, lambda: before, of_rows > 0, targets, predictions, of_rows)
            is_column = tf.equal(tf.range(number), k)
            return k + 1, [where(_along(is_column, each, inner), each, own) for each, own in zip(found, kept)]

        _, kept = tf.while_loop(lambda k, _: k < number, of_column, (tf.constant(0), before), parallel_iterations=1)
        if self.of_batch:
            exist = tf.cast(tf.reduce_any(weights > 0, axis=0), tf.float32)
            keras.metrics.Mean.update_state(self.metric, tf.reshape(kept[0], [number]), sample_weight=exist)
        for variable, value in zip(variables, kept):
            variable.assign(value)
        return tf.reduce_sum(tf.cast(tf.reduce_any(weights > 0, axis=1), tf.float32))

    def _of_labelled(
        self, then: Function, otherwise: Callable[[], Nested], labelled: tf.Tensor, *tensors: tf.Tensor
    ) -> Nested:
        """`then` of the labelled rows, or `otherwise()` without any: a metric need not be able to take no row.

        XLA has no tensors of open size. There, unlabelled rows weigh 0 and repeat a labelled one, so that all is finite.
        """
        if in_xla():
            if not self.weighs:
                raise ValueError(
                    f"`jit_compile` must not be True for the metric {self.metric.name!r} of head {self.head!r}, which "
                    "does not use `sample_weight`: XLA cannot leave out rows without a label. Received: a step that XLA "
                    "compiles. Let `update_state` use its `sample_weight`, or omit `jit_compile`."
                )
            place = tf.argmax(tf.cast(labelled, tf.int32))
            shaped = [tf.reshape(labelled, [-1, *[1] * (each.shape.rank - 1)]) for each in tensors]
            filled = [where(rows, each, tf.gather(each, place)) for rows, each in zip(shaped, tensors)]
            return then(*filled[:2], tensors[2])
        places = tf.where(labelled)[:, 0]
        return _either(tf.reduce_any(labelled), lambda: then(*(tf.gather(each, places) for each in tensors)), otherwise)


def _either(condition: tf.Tensor, then: Callable[[], Nested], otherwise: Callable[[], Nested]) -> Nested:
    """`then()` or `otherwise()`, of which only one runs."""
    if tf.executing_eagerly():
        return then() if bool(condition) else otherwise()

    def branch(function: Callable[[], Nested]) -> Nested:
        result = function()
        return tf.no_op() if result is None else result

    return tf.cond(condition, lambda: branch(then), lambda: branch(otherwise))


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
