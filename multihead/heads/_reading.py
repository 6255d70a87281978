"""Metrics of which nothing is known: which labels they read, and how they are updated with those that are there.

What a metric reads is found when its head is built, by running it on made data: a column that it does not read may be
changed without changing its result, and a metric that uses its weights gives for weights of 0 what it gives without these
elements.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.graphs import in_xla
from multihead._ground.keras import function_values, tensor_variable
from multihead._ground.where import where
from multihead.losses._elements import ElementLoss
from multihead.losses._known import CLASSES, ROWS
from multihead.losses._shapes import aligned_shape

ELEMENTS, WEIGHTS, COLUMNS, WHOLE = "elements", "weights", "columns", "whole"
_MOST_RUNS = 600
_Run = Callable[..., list[np.ndarray]]


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
        reads: Which columns it reads, booleans; None for all.
        weighs: Whether it uses `sample_weight`.
    """

    def __init__(self, metric: Any, head: str) -> None:
        self.metric = metric
        self._head = head
        self._function = is_function(metric)
        self._of_batch = False  # whether the function's values are not those of rows
        self.rank, self.way = 1, WHOLE
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
        if self.way == COLUMNS:
            return self._update_columns(targets, predictions, weights)
        if self.way == WEIGHTS:
            axes = list(range(1, weights.shape.rank))
            return self._add(targets, predictions, weights, tf.reduce_any(weights > 0, axis=axes))
        if self.reads is not None:
            weights = tf.gather(weights, np.flatnonzero(self.reads), axis=1)
        labelled = tf.reduce_all(weights > 0, axis=1)
        return self._add(targets, predictions, where(labelled, tf.reduce_mean(weights, axis=1), 0.0), labelled)

    def _add(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor, labelled: tf.Tensor) -> tf.Tensor:
        """Updates the metric with the labelled rows."""

        def update(*selected: tf.Tensor) -> None:
            if self._of_batch:
                keras.metrics.Mean.update_state(self.metric, function_values(self.metric, *selected[:2]))
            else:
                _update(self.metric, *selected)

        if self._selects():
            _if_any(labelled, lambda: update(*self._selected(labelled, targets, predictions, weights)), lambda: None)
        else:
            update(targets, predictions, weights)
        return tf.reduce_sum(tf.cast(labelled, tf.float32))

    def _update_columns(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Updates the metric once for each column, with the column's labelled rows, and keeps the column's part of each."""
        variables = [] if self._of_batch else [tensor_variable(variable) for variable in self.metric.variables]
        before = [tf.identity(variable) for variable in variables]
        number = int(predictions.shape[-1])

        def found(selected: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            if self._of_batch:
                return [tf.cast(function_values(self.metric, *selected[:2]), tf.float32)]
            for variable, value in zip(variables, before):
                variable.assign(value)
            _update(self.metric, *selected)
            return [tf.identity(variable) for variable in variables]

        if self._of_batch:
            before = [tf.zeros([number])]

        def of_column(k: tf.Tensor, kept: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            of_rows = tf.gather(weights, k, axis=1)
            labelled = of_rows > 0
            if self._selects():
                results = _if_any(
                    labelled, lambda: found(self._selected(labelled, targets, predictions, of_rows)), lambda: before
                )
            else:
                results = found([targets, predictions, of_rows])
            is_column = tf.equal(tf.range(number), k)
            return k + 1, [where(_along(is_column, each, number), each, own) for each, own in zip(results, kept)]

        _, kept = tf.while_loop(lambda k, _: k < number, of_column, (tf.constant(0), before), parallel_iterations=1)
        if self._of_batch:
            exist = tf.reduce_any(weights > 0, axis=0)
            keras.metrics.Mean.update_state(self.metric, kept[0], sample_weight=tf.cast(exist, tf.float32))
        for variable, value in zip(variables, kept):
            variable.assign(value)
        return tf.reduce_sum(tf.cast(tf.reduce_any(weights > 0, axis=1), tf.float32))

    def _selects(self) -> bool:
        """Whether unlabelled rows are left out, not weighed with 0: XLA has no tensors of open size."""
        if not in_xla():
            return True
        if self._of_batch or not self.weighs:
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

    def find(self, targets: tf.TensorSpec, predictions: tf.TensorSpec, rank: int, loss: ElementLoss) -> Reading:
        """Finds out how the metric is updated.

        Args:
            targets: The spec of the targets.
            predictions: The spec of the predictions.
            rank: How many axes tell the elements of the loss apart.
            loss: The head's loss, which says what the labels can be.
        """
        with tf.init_scope(), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for y, p in _made_data(targets, predictions, loss):
                try:
                    _Probe(self, rank).find(y, p)
                    break
                except Exception:  # noqa: BLE001, S112 - whatever a metric raises for data that it does not expect
                    continue
            self.metric.reset_state()
        return self


class _Probe:
    """Runs a metric on made data.

    Args:
        reading: What is to be found.
        rank: How many axes tell the elements of the loss apart.
    """

    def __init__(self, reading: Reading, rank: int) -> None:
        self._reading, self._metric, self._rank = reading, reading.metric, rank
        self._rng = np.random.default_rng(0)
        self._num_runs = 0

    def find(self, y: np.ndarray, p: np.ndarray) -> None:
        """Sets what is found; raises whatever the metric raises."""
        reading = self._reading
        if reading._function:
            values = np.shape(function_values(self._metric, tf.constant(y), tf.constant(p)))
            reading._of_batch = values[:1] != (len(y),)
        reading.rank = self._found_rank(y, p)
        y, p = (_merged(each, reading.rank) for each in (y, p))
        if self._rank > reading.rank:
            self._find_columns(y, p)
        if reading.way == ELEMENTS:
            y, p = y.reshape(-1, 1), p.reshape(-1, 1)
        some = self._rng.random(len(y)) < 0.6
        reading.weighs = reading.way == WEIGHTS or (
            reading.weighs
            and not reading._of_batch
            and self._agree((y, p, some.astype("float32")), (y[some], p[some]))
        )

    def _found_rank(self, y: np.ndarray, p: np.ndarray) -> int:
        """The number of axes that can be merged into one of rows."""
        ranks = list(range(min(self._rank, p.ndim - 1), 0, -1))
        for rank in ranks[:-1]:
            try:
                merged = self._result(_merged(y, rank), _merged(p, rank))
            except Exception:  # noqa: BLE001, S112
                continue
            try:
                whole = self._result(y, p)
            except Exception:  # noqa: BLE001 - it takes rows alone
                return rank
            if _equal(merged, whole):
                return rank
        return 1

    def _find_columns(self, y: np.ndarray, p: np.ndarray) -> None:
        """How the metric treats the columns of a row, each of which may lack its label."""
        reading, base = self._reading, self._result(y, p)
        num_axes = self._rank - reading.rank
        sizes = p.shape[1 : 1 + num_axes]
        number = int(np.prod(sizes))
        if not all(np.all(np.isfinite(each)) for each in base) or y.shape[1 : 1 + num_axes] != sizes:
            raise ValueError("This data show nothing.")
        if number > 1 and self._weighs_elements(y, p, sizes):
            reading.way = WEIGHTS
        elif num_axes == 1 and number > 1 and y.ndim == p.ndim == 2 and self._keeps_columns_apart(y, p, number):
            reading.way = COLUMNS
        else:
            found = self._columns_read(y, p, num_axes, number)
            if found and len(found) < number:
                reading.reads = np.isin(np.arange(number), found)
            elif number > 1 and y.shape == p.shape and self._agree((y, p), (y.reshape(-1, 1), p.reshape(-1, 1))):
                reading.way = ELEMENTS

    def _weighs_elements(self, y: np.ndarray, p: np.ndarray, sizes: tuple[int, ...]) -> bool:
        """Whether it takes a weight for each element, and those of weight 0 do not matter."""
        if not self._reading.weighs or self._reading._of_batch:
            return False
        some = self._rng.random((len(y), *sizes)) < 0.6
        rows = np.broadcast_to(some[(slice(None), *[slice(1)] * len(sizes))], some.shape)
        chosen = rows.reshape(len(y), -1)[:, 0]
        return all(
            self._agree((y, p, some.astype("float32")), (*self._changed(y, p, ~some), some.astype("float32")))
            for _ in range(4)
        ) and self._agree((y, p, rows.astype("float32")), (y[chosen], p[chosen]))

    def _keeps_columns_apart(self, y: np.ndarray, p: np.ndarray, number: int) -> bool:
        """Whether each part of its state that the result depends on belongs to one column."""
        state = self._state(y, p)
        matter = [each for each in state if self._matters(each, state, y, p)]
        if not matter or any(each.shape.count(number) != 1 for each in matter):
            return False
        if self._reading._of_batch and state[0].shape != (number,):
            return False
        changes = np.zeros([number, number], bool)
        for _ in range(12):
            others = self._rng.permutation(number) < max(number // 2, 1)
            mask = np.broadcast_to(others, y.shape)
            for before, after in zip(state, self._state(*self._changed(y, p, mask))):
                if number in before.shape:
                    axes = tuple(i for i in range(before.ndim) if i != before.shape.index(number))
                    has_changed = ~np.all(np.isclose(before, after, rtol=1e-5, atol=1e-6, equal_nan=True), axis=axes)
                    changes[:, others] |= has_changed[:, None]
                    if np.any(has_changed & ~others):
                        return False
        return bool(np.all(np.diag(changes)))

    def _matters(self, part: np.ndarray, state: Sequence[np.ndarray], y: np.ndarray, p: np.ndarray) -> bool:
        """Whether the result depends on a part of the state."""
        if self._reading._of_batch:
            return True
        before = self._result(y, p)
        variables = [tensor_variable(variable) for variable in self._metric.variables]
        place = next(i for i, each in enumerate(state) if each is part)
        variables[place].assign(tf.cast(part * 2 + 3, variables[place].dtype))
        return not _equal(before, [np.array(each) for each in tf.nest.flatten(self._metric.result())])

    def _columns_read(self, y: np.ndarray, p: np.ndarray, num_axes: int, number: int) -> list[int]:
        """The columns whose values matter; all of them if that takes too many runs."""
        base = self._state(y, p) + self._result(y, p)

        def matter(columns: np.ndarray) -> bool:
            mask = np.broadcast_to(np.isin(np.arange(number), columns), (len(y), number))
            mask = mask.reshape(len(y), *p.shape[1 : 1 + num_axes])
            for _ in range(8):
                changed = self._changed(y, p, mask)
                if not _equal(base, self._state(*changed) + self._result(*changed)):
                    return True
            return False

        def search(columns: np.ndarray) -> Iterator[int]:
            if self._num_runs > _MOST_RUNS:
                yield from columns
            elif matter(columns):
                if len(columns) == 1:
                    yield int(columns[0])
                else:
                    for half in np.array_split(columns, 2):
                        yield from search(half)

        return list(search(np.arange(number)))

    def _changed(self, y: np.ndarray, p: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same data with other values at some elements: those of other rows."""
        others = [each[self._rng.integers(0, len(each), len(each))] for each in (y, p)]
        masks = [mask.reshape(*mask.shape, *[1] * (each.ndim - mask.ndim)) for each in (y, p)]
        return np.where(masks[0], others[0], y), np.where(masks[1], others[1], p)

    def _agree(self, first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
        """Whether two updates give one result; False if one of them fails."""
        try:
            return _equal(self._result(*first), self._result(*second))
        except Exception:  # noqa: BLE001
            return False

    def _state(self, *data: np.ndarray) -> list[np.ndarray]:
        """The state after an update from the start; for a function of the batch, its values."""
        return self._run(data)[0]

    def _result(self, *data: np.ndarray) -> list[np.ndarray]:
        """The result after an update from the start."""
        return self._run(data)[1]

    def _run(self, data: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        self._num_runs += 1
        tensors = [tf.constant(each) for each in data]
        if self._reading._of_batch:
            values = [np.array(function_values(self._metric, *tensors[:2]), "float64")]
            return values, [each.mean() for each in values]
        strategy = tf.distribute.get_strategy()

        def run() -> None:
            _update(self._metric, *tensors)

        self._metric.reset_state()
        if strategy.num_replicas_in_sync == 1:
            run()
        else:
            tf.function(lambda: strategy.run(run), autograph=False)()
        state = [np.array(replicas.local(strategy, tensor_variable(each))) for each in self._metric.variables]
        return state, [np.array(each) for each in tf.nest.flatten(self._metric.result())]


def is_function(metric: Any) -> bool:
    """Whether a metric is the mean of a function's values."""
    update = getattr(type(metric), "update_state", None)
    wraps = getattr(metric, "_fn", None) is not None and isinstance(metric, keras.metrics.Mean)
    return wraps and str(getattr(update, "__qualname__", "")).startswith("MeanMetricWrapper.")


def takes_weights(kind: Any) -> bool:
    """Whether `update_state` of a class of metrics has an argument `sample_weight`."""
    parameters = inspect.signature(kind.update_state).parameters.values()
    return any(each.name == "sample_weight" or each.kind is each.VAR_KEYWORD for each in parameters)


def _update(metric: Any, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor | None = None) -> None:
    if weights is None:
        metric.update_state(targets, predictions)
    else:
        metric.update_state(targets, predictions, sample_weight=weights)


def _if_any(labelled: tf.Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """`then()` if anything is labelled: a metric need not be able to compute without any row."""
    if tf.executing_eagerly():
        return then() if bool(tf.reduce_any(labelled)) else otherwise()

    def branch(function: Callable[[], Any]) -> Any:
        result = function()
        return tf.no_op() if result is None else result

    return tf.cond(tf.reduce_any(labelled), lambda: branch(then), lambda: branch(otherwise))


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


def _along(is_column: tf.Tensor, tensor: tf.Tensor, number: int) -> tf.Tensor:
    """A condition on columns, for a tensor one of whose axes are the columns; a tensor without them stays as it was."""
    shape = tensor.shape.as_list()
    if number not in shape:
        return tf.zeros(shape, tf.bool)
    sizes = [number if i == shape.index(number) else 1 for i in range(len(shape))]
    return tf.broadcast_to(tf.reshape(is_column, sizes), shape)


def _merged(array: np.ndarray, rank: int) -> np.ndarray:
    return array.reshape(-1, *array.shape[rank:])


def _equal(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    """Whether two lists of arrays are equal up to rounding."""
    return len(first) == len(second) and all(
        np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)
        for a, b in zip(first, second)
    )


def _made_data(
    targets: tf.TensorSpec, predictions: tf.TensorSpec, loss: ElementLoss
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Targets and predictions such as the loss takes: numbers of every size, or labels of 0 and 1 and probabilities."""
    rng, known = np.random.default_rng(0), loss.known
    sizes = [[3 if size is None else size for size in spec.shape[1:]] for spec in (targets, predictions)]
    rows = max([37, *(2 * size + 1 for size in (*sizes[0], *sizes[1]) if size < 500)])
    inner = sizes[1] or [1]
    y_shape = aligned_shape(tf.TensorShape([rows, *sizes[0]]), tf.TensorShape([rows, *inner]), None).as_list()
    p_dtype = predictions.dtype.as_numpy_dtype if predictions.dtype in (tf.float32, tf.float64) else np.float32
    are_classes = loss.over == CLASSES or (known is None and y_shape[1:] in (inner[:-1], [*inner[:-1], 1]) and inner != [1])
    are_numbers = known is None or (loss.over not in (CLASSES, ROWS) and known.low is None)
    if are_numbers and targets.dtype.is_floating and not are_classes:
        scale = 10.0 ** rng.integers(-1, 4, [rows] + [1] * len(inner))
        p = rng.normal(size=[rows, *inner]) * scale
        y = rng.normal(size=y_shape) * scale.reshape([rows] + [1] * (len(y_shape) - 1))
        yield y.astype(targets.dtype.as_numpy_dtype), p.astype(p_dtype)
    p = rng.random([rows, *inner])
    if are_classes or loss.over == ROWS:
        p /= p.sum(axis=-1, keepdims=True)
    if loss.over == ROWS and y_shape[1:] == inner:
        y = np.eye(inner[-1])[rng.integers(0, inner[-1], y_shape[:-1])]
    else:
        y = rng.integers(0, max(inner[-1], 2) if are_classes else 2, y_shape)
        y = 2 * y - 1 if known is not None and known.low == -1 else y
    yield y.astype(targets.dtype.as_numpy_dtype), p.astype(p_dtype)
