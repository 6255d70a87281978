"""A head's metrics, which are updated with labelled elements only."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Sequence
from contextlib import suppress

import keras
import tensorflow as tf

from multihead._ground.calls import call_users, graph_function, with_columns_of_keras
from multihead._ground.keras import options_of, wrapped_function
from multihead._ground.tensors import in_xla, outside_of_graphs, where
from multihead._ground.trials import made_up_rows, returned_by, with_rows
from multihead._ground.types import Function, Metric
from multihead._ground.validation import in_short, quoted
from multihead.heads._metric_names import snake_case
from multihead.losses._known import (
    CLASSES,
    ELEMENTS,
    FUNCTIONS,
    ROWS,
    aligned,
    aligned_shape,
    is_keras,
    known,
    spread,
    with_columns,
)

READS = ("elements", "rows")
"""The values of a metric's `reads` other than column numbers."""


class HeadMetric:
    """A Keras metric, which is updated with the rows that have all the labels it reads.

    For Keras's own metrics it is known what they read. Others declare it in an attribute `reads` of the metric or of its
    function; a metric without one gets whole examples, which then must have all of their labels or none.
    """

    def __init__(self, metric: Metric, head: str = "") -> None:
        self.metric, self._head = metric, head
        # `"elements"`, `"rows"` or `"classes"` for Keras's metrics in which weights of 0 leave rows out; None for others,
        # which get only the labelled rows.
        self.over: str | None = None
        self.column: int | None = None  # the only column that it reads
        self._is_paired = False  # whether targets need the shape of the predictions although `over` is None
        self._fewest_columns = 1  # of predictions: with fewer, its value is constant
        self.by_column = False  # whether it distinguishes columns although it counts elements
        self.rank = 1  # the number of axes that are merged into one axis of rows
        # Counts the rows, since there may be none although there are labels; None if the count is not needed.
        self.counted: Metric = None
        kind = _keras_kind(metric)
        self._wrapped = wrapped_function(metric) if kind is keras.metrics.MeanMetricWrapper else None
        kind = None if self._wrapped is not None and not is_keras(self._wrapped) else kind
        self._is_users = kind is None
        self._reads = _declared(metric, self._wrapped, head) if kind is None else "rows"
        parameters = inspect.signature(type(metric).update_state).parameters.values()
        self._weighs = any(p.name == "sample_weight" or p.kind is p.VAR_KEYWORD for p in parameters)
        if kind is not None:
            self._read_kind(kind)

    def _read_kind(self, kind: type) -> None:
        """Finds what a metric reads whose `update_state` is that of a Keras class."""
        metric, options = self.metric, options_of(self.metric)
        if _has_columns(metric, kind):
            self.over, self.by_column = ELEMENTS, True
        elif isinstance(metric, keras.metrics.FBetaScore):  # whose `axis` means something else
            self._is_paired = True
        elif {options.get("axis", -1), getattr(metric, "axis", -1)} != {-1}:
            self._reads = None
        elif hasattr(metric, "sparse_y_true"):  # intersection over union: numbers, or a column per class, on either side
            sides = (metric.sparse_y_true, metric.sparse_y_pred)
            self.over = {(True, True): ELEMENTS, (True, False): CLASSES, (False, False): ROWS}.get(sides)
        elif getattr(metric, "top_k", None) is not None:
            self.over = ROWS
        else:
            function = FUNCTIONS.get(snake_case(kind.__name__)) if self._wrapped is None else known(self._wrapped, options)
            # A correlation is not finite for the rows of zeros in place of missing labels, whatever their weight.
            self._is_paired = "correlation" in getattr(self._wrapped, "__name__", snake_case(kind.__name__))
            if function is not None:
                self.over, self._fewest_columns = None if self._is_paired else function.over, function.columns
            self.column = getattr(metric, "class_id", None)

    @property
    def is_undeclared(self) -> bool:
        """Whether it is unknown which labels of a row it reads."""
        return self.over is None and self._reads is None

    def build(
        self,
        head: str,
        targets: tf.TensorSpec,
        predictions: tf.TensorSpec,
        rank: int,
        *,
        is_counted: bool,
        eagerly: bool = False,
    ) -> None:
        """Finds which axes of targets and predictions are rows; a `ValueError` if they do not fit the metric.

        The first `rank` axes index the elements of the loss. With `is_counted`, the rows are always counted.
        """
        shape = with_columns(predictions.shape)
        actual, expected = aligned_shape(targets.shape, shape, self.over), shape[:-1] if self.over == CLASSES else shape
        fits = actual.rank == expected.rank and actual.is_compatible_with(expected)
        if (self.over is not None or self._is_paired) and not fits:
            raise ValueError(
                f"`metrics` of head {head!r} must fit its targets, but {self.metric.name!r} needs targets of shape "
                f"{expected} for predictions of shape {predictions.shape}. Received: targets of shape {targets.shape}. "
                "Choose a metric for such targets; those for class numbers are called sparse."
            )
        if shape[-1] == 1 and (self.over == CLASSES or self._fewest_columns > 1):
            raise ValueError(
                f"`metrics` of head {head!r} must fit its predictions, but {self.metric.name!r} compares several columns. "
                f"Received: predictions of shape {predictions.shape}. Choose 'accuracy', or for numbers 'mae'."
            )
        if self.over is not None:
            self.rank = shape.rank - (self.over != ELEMENTS or self.by_column or self.column is not None)
        elif self._reads is not None:
            self.rank = min(actual.rank, shape.rank - (self._reads != "elements" or actual.rank < shape.rank))
            invalid_columns = [k for k in self._columns if shape[-1] is not None and not -shape[-1] <= k < shape[-1]]
            if invalid_columns:
                raise ValueError(
                    f"`reads` of the metric {self.metric.name!r} of head {head!r} must name columns of its predictions. "
                    f"Received: {invalid_columns[0]} for predictions of shape {predictions.shape}. Correct the number."
                )
        if is_counted or (rank > self.rank and shape[self.rank :].num_elements() != 1):
            self.counted = keras.metrics.Sum(name=f"{self.metric.name}_counted", dtype="float32")
        dtype = tf.float32 if predictions.dtype in (tf.float16, tf.bfloat16) else predictions.dtype
        of_targets = dtype if self._takes_floats else targets.dtype
        self._trace(tf.TensorSpec(actual, of_targets), tf.TensorSpec(shape, dtype), eagerly=eagerly)

    @property
    def _takes_floats(self) -> bool:
        """Whether targets get the dtype of the predictions, as in Keras: some of its metrics take no other on Keras 2."""
        return not self._is_users and self.over != CLASSES

    @property
    def _columns(self) -> tuple[int, ...]:
        return self._reads if isinstance(self._reads, tuple) else ()

    def _trace(self, targets: tf.TensorSpec, predictions: tf.TensorSpec, *, eagerly: bool) -> None:
        """Creates the variables that a metric creates in its first update, and finds whether a function returns rows.

        Traces a graph, which needs only shapes and computes nothing; see `_ground/trials.py` for eager steps.
        """
        columns = [1] if self.rank == predictions.shape.rank else []
        pair = (targets, predictions)
        specs = with_rows(*(tf.TensorSpec([None, *spec.shape[self.rank :], *columns], spec.dtype) for spec in pair))
        rows, is_eager = specs[0].shape[0], eagerly and self._is_users
        with outside_of_graphs():
            if self._wrapped is not None and self.over is None:
                function: Function = self._wrapped
                of_rows = lambda y_true, y_pred: call_users(function, self._handed(y_true), y_pred)  # noqa: E731
                with suppress(Exception):  # an update calls it, too, and says what is wrong
                    values = returned_by(of_rows, specs, rows + 1, eagerly=is_eager)
                    self._weighs = bool(values.shape.rank) and values.shape[0] == rows
            elif self.by_column or not ((self.metric.variables or is_eager) and self._has_result()):
                try:
                    self._create_variables(specs, eagerly=is_eager)
                except Exception as error:
                    if not self._has_result():  # otherwise, its first update raises the same
                        raise ValueError(
                            f"`metrics` of head {self._head!r} must take its targets and predictions. Received: "
                            f"{self.metric.name!r} for targets of shape {targets.shape} and predictions of shape "
                            f"{predictions.shape}. The metric says: {in_short(error)}"
                        ) from error

    def _has_result(self) -> bool:
        """Whether the metric has a result; without one, it lacks variables."""
        try:
            self.metric.result()
        except Exception:  # noqa: BLE001 - whatever a metric raises before its first update; the logs call this, too
            return False
        return True

    def _create_variables(self, specs: Sequence[tf.TensorSpec], *, eagerly: bool) -> None:
        if eagerly:
            self._apply(*made_up_rows(specs, 1))
            self.metric.reset_state()
        else:
            strategy = tf.distribute.get_strategy()
            specs = [tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) for spec in specs]
            graph_function(lambda *rows: strategy.run(self._apply, rows)).get_concrete_function(*specs)

    def update(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor, *, are_weighted: bool = False) -> None:
        """Adds the labelled rows of a batch; a row's weight is the mean of the weights of its elements."""
        predictions = predictions[:, tf.newaxis] if predictions.shape.rank == 1 else predictions
        if predictions.dtype in (tf.float16, tf.bfloat16):
            predictions = tf.cast(predictions, tf.float32)
        targets = aligned(targets, predictions.shape, self.over)
        if self._takes_floats:
            targets = tf.cast(targets, predictions.dtype)
        if self.by_column or self.column is not None or self._columns:
            weights = spread(weights, predictions, predictions.shape.rank)
            weights = weights if self.column is None else weights[..., self.column]
            if self._columns:  # counted from the first one
                columns = tf.math.floormod(tf.constant(self._columns), tf.shape(weights)[-1])
                weights = tf.gather(weights, columns, axis=-1)
        elif weights.shape.rank < self.rank:
            weights = spread(weights, predictions, self.rank)
        if not self.by_column:
            axes = list(range(self.rank, weights.shape.rank))
            is_whole = tf.reduce_all(weights > 0, axis=axes)
            weights = where(is_whole, tf.reduce_mean(weights, axis=axes), 0.0) if axes else weights
        are_elements = self.rank == predictions.shape.rank
        y, p = (in_rows(tensor, self.rank, are_elements=are_elements) for tensor in (targets, predictions))
        weights = in_rows(weights, self.rank, are_elements=False)
        if self.over is None:
            self._update_labelled(y, p, weights, are_weighted=are_weighted)
        elif isinstance(self.metric, keras.metrics.FBetaScore):  # which takes only weights of rows
            self._update_columns(y, p, weights)
        else:
            self._apply(y, p, weights)
        if self.counted is not None:
            self.counted.update_state(tf.reduce_sum(tf.cast(weights > 0, tf.float32)))

    def _apply(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor | None = None) -> None:
        """Updates the metric with rows; without weights, all of them count."""
        targets = self._handed(targets)
        if weights is None or not self._weighs:
            self.metric.update_state(targets, predictions)
        else:
            self.metric.update_state(targets, predictions, sample_weight=weights)

    def _handed(self, targets: tf.Tensor) -> tf.Tensor:
        """Targets with the axes in which Keras hands them to the metric."""
        return with_columns_of_keras(targets) if self._is_users else targets

    def _update_labelled(
        self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor, *, are_weighted: bool
    ) -> None:
        """Adds the labelled rows, if there are any: a user's metric may not accept zero rows, or weights."""
        if in_xla():
            raise ValueError(
                f"`jit_compile` must not be True for the metric {self.metric.name!r} of head {self._head!r}, which gets the "
                "rows that have a label: XLA has no tensors of open size. Received: a step that XLA compiles. Omit "
                "`jit_compile`, or take a metric of Keras."
            )
        labelled = weights > 0
        rows = tf.where(labelled)[:, 0]

        def add() -> tf.Operation:
            parts = (targets, predictions, weights) if are_weighted else (targets, predictions)
            self._apply(*(tf.gather(tensor, rows) for tensor in parts))
            return tf.no_op()

        tf.cond(tf.reduce_any(labelled), add, tf.no_op)

    def _update_columns(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> None:
        """Adds elements to an F score, which ignores those whose target and prediction are 0.

        If the columns of a row have different weights, the columns are added one after another.
        """
        targets, largest = tf.cast(targets, predictions.dtype), tf.reduce_max(weights, axis=1)
        is_one = tf.reduce_all((weights == 0) | (weights == largest[:, tf.newaxis]))

        def add(k: tf.Tensor) -> list[tf.Tensor]:
            counts = tf.cast(where(is_one, weights > 0, tf.equal(tf.range(tf.shape(weights)[1]), k)), predictions.dtype)
            row_weights = where(is_one, largest, weights[:, k])
            self.metric.update_state(targets * counts, predictions * counts, sample_weight=row_weights)
            return [k + 1]

        number = where(is_one, 1, tf.shape(weights)[1])
        tf.while_loop(lambda k: k < number, add, [tf.constant(0)], parallel_iterations=1)


def _keras_kind(metric: Metric) -> type | None:
    """The Keras class whose `update_state` a metric has; None if the metric has its own."""
    kind: Metric = next(kind for kind in type(metric).__mro__ if is_keras(kind))
    return kind if getattr(type(metric), "update_state", None) is kind.update_state else None


def _declared(metric: Metric, function: Function | None, head: str) -> str | tuple[int, ...] | None:
    """What a metric, or the function that it averages, declares in `reads`."""
    reads = getattr(metric if function is None else function, "reads", None)
    if reads is None or (isinstance(reads, str) and reads in READS):
        return reads
    columns = (reads,) if isinstance(reads, numbers.Integral) else reads
    is_sequence = isinstance(columns, Sequence) and not isinstance(columns, str) and len(columns) > 0
    if not is_sequence or not all(isinstance(k, numbers.Integral) and not isinstance(k, bool) for k in columns):
        raise ValueError(
            f"`reads` of the metric {metric.name!r} of head {head!r} must be {quoted(READS)}, the number of a column, or a "
            f"list of numbers. Received: reads={reads!r}. Pass, say, 0 for the first column of the targets."
        )
    return tuple(map(int, columns))


def _has_columns(metric: Metric, kind: type) -> bool:
    """Whether a metric with the `update_state` of a Keras class computes columns independently of one another."""
    if kind.__name__ in ("F1Score", "FBetaScore"):
        return metric.threshold is not None  # otherwise a row's largest prediction is the positive one
    is_plain_r2 = kind.__name__ == "R2Score" and not metric.num_regressors  # with regressors, it counts rows
    return is_plain_r2 or kind.__name__ == "MeanRelativeError" or bool(getattr(metric, "multi_label", False))


def in_rows(tensor: tf.Tensor, rank: int, *, are_elements: bool) -> tf.Tensor:
    """The tensor with its first `rank` axes merged into rows; elements become rows with one column."""
    inner, columns = tensor.shape[rank:], [1] if are_elements else []
    if inner.is_fully_defined():
        return tf.reshape(tensor, [-1, *inner, *columns])
    return tf.reshape(tensor, tf.concat([[-1], tf.shape(tensor)[rank:], columns], axis=0))
