"""Metrics of which nothing is known: which labels they read, and how they are updated with those that are there.

What a metric reads is found when its head is built, by running it on made data: a column that it does not read may be
changed without changing its result, and a metric that uses its weights gives for weights of 0 what it gives without these
elements.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.autograph import graph_function
from multihead._ground.graphs import in_xla
from multihead._ground.keras import function_values, tensor_variable
from multihead._ground.where import where
from multihead.losses._elements import ElementLoss
from multihead.losses._known import CLASSES, ROWS
from multihead.losses._shapes import aligned_shape

ELEMENTS, WEIGHTS, COLUMNS, WHOLE = "elements", "weights", "columns", "whole"
_MOST_RUNS = 600
_Data = tuple[np.ndarray, np.ndarray]


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
    """

    def __init__(self, metric: Any, head: str) -> None:
        self.metric = metric
        self._head = head
        self._function = is_function(metric)
        self._of_batch = False  # whether the function's values are not those of rows
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
            if self._of_batch:
                keras.metrics.Mean.update_state(self.metric, function_values(self.metric, *selected[:2]))
            else:
                _update(self.metric, *selected)

        if self._selects():
            selected = partial(self._selected, labelled, targets, predictions, weights)
            _either(tf.reduce_any(labelled), lambda: update(*selected()), lambda: None)  # it need not be able to take no row
        else:
            update(*_filled(labelled, targets, predictions), weights)
        return tf.reduce_sum(tf.cast(labelled, tf.float32))

    def _update_columns(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Updates the metric once for each column, with the column's labelled rows, and keeps the column's part of each."""
        variables = [] if self._of_batch else [tensor_variable(variable) for variable in self.metric.variables]
        before = [tf.identity(variable) for variable in variables]
        inner = [int(size or 0) for size in self.sizes]
        number = int(np.prod(inner))

        def found(selected: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            if self._of_batch:
                return [tf.cast(function_values(self.metric, *selected[:2]), tf.float32)]
            for variable, value in zip(variables, before):
                variable.assign(value)
            _update(self.metric, *selected)
            return [tf.identity(variable) for variable in variables]

        if self._of_batch:
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
        if self._of_batch:
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
            with suppress(Exception):  # whatever a metric raises for data that it does not expect
                _Probe(self, rank, predictions.shape[1:].as_list()).find(_made_data(targets, predictions, loss))
            self.metric.reset_state()
        return self


class _Probe:
    """Runs a metric on made data.

    Args:
        reading: What is to be found.
        rank: How many axes tell the elements of the loss apart.
        sizes: The sizes of the predictions' axes, except the first; None where they are open.
    """

    def __init__(self, reading: Reading, rank: int, sizes: Sequence[int | None]) -> None:
        self._reading, self._metric, self._rank, self._sizes = reading, reading.metric, rank, sizes
        self._rng = np.random.default_rng(0)
        self._num_runs = 0
        strategy, update = tf.distribute.get_strategy(), partial(_update, self._metric)
        self._update: Callable[..., Any] = update
        if strategy.num_replicas_in_sync > 1:  # outside of replicas, variables of theirs cannot be added to
            self._update = graph_function(lambda *tensors: strategy.run(update, tensors))

    def find(self, made: Iterable[list[_Data]]) -> None:
        """Sets what is found, with the first of several lists of data that the metric takes some of; nothing without any."""
        reading = self._reading
        data = next(filter(None, ([each for each in several if self._is_taken(each)] for several in made)), [])
        if not data:
            return
        if reading._function:
            y, p = data[0]
            reading._of_batch = np.shape(function_values(self._metric, tf.constant(y), tf.constant(p)))[:1] != (len(y),)
        reading.rank = self._found_rank(data)
        data = [_merged(each, reading.rank) for each in data]
        inner = data[0][1].shape[1 : 1 + self._rank - reading.rank]
        number = int(np.prod(inner))
        if number > 1 and all(y.shape[1 : 1 + len(inner)] == inner for y, _ in data):
            reading.sizes = list(self._sizes[reading.rank - 1 :][: len(inner)])
            self._find_way(data, inner, number)
        if reading.way == ELEMENTS:
            data = [_elements(each) for each in data]
        inner = inner if reading.way == WEIGHTS else ()
        reading.weighs = reading.weighs and not reading._of_batch and all(self._weighs_rows(*each, inner) for each in data)

    def _is_taken(self, data: _Data) -> bool:
        """Whether the metric can be computed, possibly of rows alone, and depends on the data."""
        for rank in range(max(min(self._rank, data[1].ndim - 1), 1), 0, -1):
            with suppress(Exception):
                merged = _merged(data, rank)
                whole = self._changed(*merged, np.ones(len(merged[0]), bool))
                found, other = self._run(merged), self._run(whole)
                if all(np.all(np.isfinite(each)) for each in found[1]):
                    return not all(map(_equal, found, other))
        return False

    def _found_rank(self, data: Sequence[_Data]) -> int:
        """The number of axes that can be merged into one of rows."""
        for rank in range(min(self._rank, data[0][1].ndim - 1), 1, -1):
            with suppress(Exception):
                merged = [self._result(*_merged(each, rank)) for each in data]
                try:
                    whole = [self._result(*each) for each in data]
                except Exception:  # noqa: BLE001 - it takes rows alone
                    return rank
                if all(map(_equal, merged, whole)):
                    return rank
        return 1

    def _find_way(self, data: Sequence[_Data], inner: tuple[int, ...], number: int) -> None:
        """How the metric treats the columns of a row, each of which may lack its label."""
        reading, are_known = self._reading, None not in self._reading.sizes
        are_apart = are_known and all(self._keeps_columns_apart(*each, inner, number) for each in data)
        if not are_apart and all(y.shape == p.shape and self._agree((y, p), _elements((y, p))) for y, p in data):
            reading.way = ELEMENTS
        elif all(self._weighs_elements(*each, inner) and self._weighs_rows(*each, inner) for each in data):
            reading.way = WEIGHTS
        elif are_apart:
            reading.way = COLUMNS
        elif are_known:
            found = {column for each in data for column in self._columns_read(*each, inner, number)}
            if 0 < len(found) < number:
                reading.reads = np.isin(np.arange(number), list(found))

    def _weighs_rows(self, y: np.ndarray, p: np.ndarray, inner: tuple[int, ...]) -> bool:
        """Whether rows of weight 0 count as little as rows that are not there."""
        some = self._rng.random(len(y)) < 0.6
        weights = np.broadcast_to(some.reshape(-1, *[1] * len(inner)), [len(y), *inner])
        return self._agree((y, p, weights.astype("float32")), (y[some], p[some]))

    def _weighs_elements(self, y: np.ndarray, p: np.ndarray, inner: tuple[int, ...]) -> bool:
        """Whether it takes a weight for each element, and those of weight 0 do not matter."""
        if not self._reading.weighs or self._reading._of_batch:
            return False
        some = self._rng.random((len(y), *inner)) < 0.6
        weights, ones = some.astype("float32"), np.ones(some.shape, "float32")
        changed = [self._changed(y, p, ~some) for _ in range(4)]
        return self._agree((y, p, ones), (y, p)) and all(self._agree((y, p, weights), (*each, weights)) for each in changed)

    def _keeps_columns_apart(self, y: np.ndarray, p: np.ndarray, inner: tuple[int, ...], number: int) -> bool:
        """Whether each part of its state that the result depends on belongs to one column."""
        state, result = self._run((y, p))
        places = [_place(each.shape, inner) for each in state]
        if any(place is None and self._matters(i, (y, p), result) for i, place in enumerate(places)):
            return False
        if self._reading._of_batch and state[0].shape != inner:
            return False
        changes = np.zeros(inner, bool)
        for _ in range(12):
            others = (self._rng.permutation(number) < max(number // 2, 1)).reshape(inner)
            after = self._run(self._changed(y, p, np.broadcast_to(others, (len(y), *inner))))[0]
            for place, one, other in zip(places, state, after):
                if place is not None:
                    axes = tuple(i for i in range(one.ndim) if not place <= i < place + len(inner))
                    has_changed = ~np.all(np.isclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True), axis=axes)
                    if np.any(has_changed & ~others):
                        return False
                    changes |= has_changed
        return bool(np.all(changes))

    def _matters(self, place: int, data: _Data, result: Sequence[np.ndarray]) -> bool:
        """Whether the result depends on a variable of the state."""
        if self._reading._of_batch:
            return True
        self._run(data)
        variable = tensor_variable(self._metric.variables[place])
        variable.assign(tf.convert_to_tensor(variable) * 2 + 3)
        return not _equal(result, [np.array(each) for each in tf.nest.flatten(self._metric.result())])

    def _columns_read(self, y: np.ndarray, p: np.ndarray, inner: tuple[int, ...], number: int) -> list[int]:
        """The columns whose values matter; all of them if that takes too many runs."""
        base = sum(self._run((y, p)), [])

        def matter(columns: np.ndarray) -> bool:
            mask = np.broadcast_to(np.isin(np.arange(number), columns).reshape(inner), (len(y), *inner))
            changed = (self._changed(y, p, mask) for _ in range(8))
            return any(not _equal(base, sum(self._run(each), [])) for each in changed)

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

    def _changed(self, y: np.ndarray, p: np.ndarray, mask: np.ndarray) -> _Data:
        """The same data with other values at some elements: those of other rows."""
        others = [each[self._rng.integers(0, len(each), len(each))] for each in (y, p)]
        masks = [mask.reshape(*mask.shape, *[1] * (each.ndim - mask.ndim)) for each in (y, p)]
        return np.where(masks[0], others[0], y), np.where(masks[1], others[1], p)

    def _agree(self, first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
        """Whether two updates give one result; False if one of them fails."""
        with suppress(Exception):
            return _equal(self._result(*first), self._result(*second))
        return False

    def _result(self, *data: np.ndarray) -> list[np.ndarray]:
        """The result after an update from the start."""
        return self._run(data)[1]

    def _run(self, data: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The state and the result after an update from the start; the state of a function of the batch are its values."""
        self._num_runs += 1
        tensors = [tf.constant(each) for each in data]
        if self._reading._of_batch:
            values = np.array(function_values(self._metric, *tensors), "float64")
            return [values], [values.mean()]
        self._metric.reset_state()
        self._update(*tensors)
        variables = [tensor_variable(variable) for variable in self._metric.variables]
        state = [np.array(replicas.local(tf.distribute.get_strategy(), variable)) for variable in variables]
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
    place = _place(shape, inner)
    if place is None:
        return tf.zeros(shape, tf.bool)
    sizes = [size if place <= i < place + len(inner) else 1 for i, size in enumerate(shape)]
    return tf.broadcast_to(tf.reshape(is_column, sizes), shape)


def _merged(data: _Data, rank: int) -> _Data:
    return data[0].reshape(-1, *data[0].shape[rank:]), data[1].reshape(-1, *data[1].shape[rank:])


def _elements(data: _Data) -> _Data:
    return data[0].reshape(-1, 1), data[1].reshape(-1, 1)


def _place(shape: Sequence[int], inner: Sequence[int]) -> int | None:
    """Where the sizes of columns occur in a shape; None if not once."""
    shape, inner = list(shape), list(inner)
    found = [i for i in range(len(shape) - len(inner) + 1) if shape[i : i + len(inner)] == inner]
    return found[0] if len(found) == 1 else None


def _equal(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    """Whether two lists of arrays are equal up to rounding."""
    return len(first) == len(second) and all(
        np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True) for a, b in zip(first, second)
    )


def _made_data(targets: tf.TensorSpec, predictions: tf.TensorSpec, loss: ElementLoss) -> Iterator[list[_Data]]:
    """Targets and predictions such as the loss takes: numbers of every size and labels of 0 and 1; rows with a single 1."""
    rng, known = np.random.default_rng(0), loss.known
    sizes = [[3 if size is None else size for size in spec.shape[1:]] for spec in (targets, predictions)]
    rows = max([37, *(2 * size + 1 for size in (*sizes[0], *sizes[1]) if size < 500)])
    inner = sizes[1] or [1]
    y_shape = aligned_shape(tf.TensorShape([rows, *sizes[0]]), tf.TensorShape([rows, *inner]), None).as_list()
    dtypes = [spec.dtype if spec.dtype not in (tf.float16, tf.bfloat16) else tf.float32 for spec in (targets, predictions)]

    def cast(y: np.ndarray, p: np.ndarray) -> _Data:
        return y.astype(dtypes[0].as_numpy_dtype), p.astype(dtypes[1].as_numpy_dtype)

    p = rng.random([rows, *inner])
    in_rows = p / p.sum(axis=-1, keepdims=True)
    single = np.eye(inner[-1])[rng.integers(0, inner[-1], [rows, *inner[:-1]])]
    are_classes = loss.over == CLASSES or (known is None and y_shape[1:] in (inner[:-1], [*inner[:-1], 1]) and inner != [1])
    if are_classes:
        yield [cast(rng.integers(0, inner[-1], y_shape), in_rows)]
        return
    if loss.over != ROWS:
        low = -1 if known is not None and known.low == -1 else 0
        binary = cast(np.where(rng.random(y_shape) < 0.5, low, 1), p)
        scale = 10.0 ** rng.integers(-1, 4, [rows])
        scales = [scale.reshape([rows] + [1] * (len(shape) - 1)) for shape in (y_shape, p.shape)]
        numbers = cast(rng.normal(size=y_shape) * scales[0], rng.normal(size=p.shape) * scales[1])
        takes_numbers = targets.dtype.is_floating and (known is None or known.low is None)
        yield [numbers, binary] if takes_numbers else [binary]
    if y_shape == [rows, *inner]:
        yield [cast(single, in_rows)]
