"""Trials with made-up data when a head is built: what its metrics read, and whether its loss compares rows.

Known metrics and losses are not tried, and a trial that fails finds nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.calls import function_values, graph_function
from multihead._ground.types import Function, Metric
from multihead.heads._reading import BY_COLUMN, BY_ELEMENT, WEIGHTED, WHOLE, Reading, place_of
from multihead.losses._elements import ElementLoss
from multihead.losses._known import CLASSES, ROWS, aligned_shape

_MOST_RUNS = 600
_Data = tuple[np.ndarray, np.ndarray]


def find_reading(
    metric: Metric, head: str, targets: tf.TensorSpec, predictions: tf.TensorSpec, rank: int, loss: ElementLoss
) -> Reading:
    """Finds out how a metric is updated; if nothing is found, it reads the rows in which every element has a label.

    A way of updating is right if rows without any label do not change the metric, and if the values of missing labels do not
    change it anywhere. The first `rank` axes index the elements of the loss.
    """
    reading = Reading(metric, head)
    with tf.init_scope(), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        probe = _Probe(reading, rank)
        for several in _made_data(targets, predictions, loss):
            data = [each for each in several if probe.rank_for(each)]
            if data:
                probe.find(data, predictions.shape[1:].as_list())
                break
        metric.reset_state()
    return reading


class _Probe:
    """Runs a metric on made-up data to find its reading; the first `rank` axes index the elements of the loss."""

    def __init__(self, reading: Reading, rank: int) -> None:
        self._reading, self._rank = reading, rank
        self._rng = np.random.default_rng(0)
        self._num_runs = 0

    def rank_for(self, data: _Data) -> int:
        """How many axes can be merged into one of rows; 0 if it cannot be computed or does not depend on the data."""
        apply = self._reading.apply
        for rank in range(max(min(self._rank, data[1].ndim - 1), 1), 0, -1):
            merged = _merged(data, rank)
            found = self._result(apply, *merged)
            whole = self._result(apply, *data) if rank > 1 else None  # None also if it takes rows alone
            if found is None or (whole is not None and not _equal(found, whole)):
                continue
            if all(np.all(np.isfinite(each)) for each in found):
                other = self._result(apply, *self._changed(*merged, np.ones(len(merged[0]), bool)))
                return 0 if _equal(found, other) else rank
        return 0

    def find(self, data: Sequence[_Data], sizes: Sequence[int | None]) -> None:
        """Finds how the metric is updated, from data of which it can be computed; `sizes` are those of a prediction."""
        reading, (y, p) = self._reading, data[0]
        kind = getattr(getattr(type(reading.metric), "update_state", None), "__qualname__", "")
        wraps = getattr(reading.metric, "_fn", None) is not None and isinstance(reading.metric, keras.metrics.Mean)
        if wraps and str(kind).startswith("MeanMetricWrapper."):  # the mean of a function's values
            values = function_values(reading.metric, tf.constant(y), tf.constant(p))
            reading.of_batch = np.shape(values)[:1] != (len(y),)
            reading.weighs &= not reading.of_batch
        rank = min(map(self.rank_for, data))
        data = [_merged(each, rank) for each in data]
        inner = data[0][1].shape[1 : 1 + self._rank - rank]
        reading.sizes = list(sizes[rank - 1 :][: len(inner)])
        if np.prod(inner, dtype=int) > 1 and all(each[0].shape[1 : 1 + len(inner)] == inner for each in data):
            self._find_way(data, inner)
        if reading.way == BY_ELEMENT:
            data = [(y.reshape(-1, 1), p.reshape(-1, 1)) for y, p in data]
        if reading.way != WEIGHTED:
            reading.weighs = reading.weighs and all(self._weighs(*each) for each in data)
        reading.rank = rank

    def _find_way(self, data: Sequence[_Data], inner: tuple[int, ...]) -> None:
        """Finds how the metric treats the columns of a row, each of which may lack its label."""
        reading, is_known = self._reading, None not in self._reading.sizes

        def holds(way: str) -> bool:
            reading.way = way
            return all(self._holds(*each, inner) for each in data)

        has_columns = reading.of_batch or any(place_of(each.shape, inner) is not None for each in reading.metric.variables)
        are_apart = is_known and has_columns and holds(BY_COLUMN)
        if not are_apart and all(y.shape == p.shape for y, p in data) and holds(BY_ELEMENT):
            return
        if reading.weighs and holds(WEIGHTED):
            return
        reading.way = BY_COLUMN if are_apart else WHOLE
        if is_known and not are_apart:
            columns = sorted({column for each in data for column in self._columns_read(*each, inner)})
            reading.columns = columns if 0 < len(columns) < np.prod(inner) else None

    def _holds(self, y: np.ndarray, p: np.ndarray, inner: tuple[int, ...]) -> bool:
        """Whether rows without labels count as little as rows that are not there, and no missing label matters."""
        reading = self._reading
        update = reading.apply if reading.way == WEIGHTED else reading.update
        update = graph_function(update) if reading.way == BY_COLUMN else update
        rows = self._rng.random(len(y)) < 0.6
        nearly_ones = 1 + 1e-6 * self._rng.random((len(y), *inner))  # different in each column: no shortcut is taken
        of_rows = (rows.reshape(-1, *[1] * len(inner)) * nearly_ones).astype("float32")
        if not _equal(self._result(reading.apply, y[rows], p[rows]), self._result(update, y, p, of_rows)):
            return False
        some = self._rng.random((len(y), *inner)) < 0.6
        weights = some.astype("float32")
        found = self._result(update, y, p, weights)
        return all(_equal(found, self._result(update, *self._changed(y, p, ~some), weights)) for _ in range(4))

    def _weighs(self, y: np.ndarray, p: np.ndarray) -> bool:
        """Whether rows of weight 0 count as little as rows that are not there."""
        some, apply = self._rng.random(len(y)) < 0.6, self._reading.apply
        return _equal(self._result(apply, y[some], p[some]), self._result(apply, y, p, some.astype("float32")))

    def _columns_read(self, y: np.ndarray, p: np.ndarray, inner: tuple[int, ...]) -> Iterator[int]:
        """The columns whose values matter; all of them if that takes too many runs."""
        apply, number = self._reading.apply, int(np.prod(inner))
        base = self._result(apply, y, p)

        def matter(columns: np.ndarray) -> bool:
            mask = np.broadcast_to(np.isin(np.arange(number), columns).reshape(inner), (len(y), *inner))
            changed = (self._changed(y, p, mask) for _ in range(8))
            return any(not _equal(base, self._result(apply, *each)) for each in changed)

        def search(columns: np.ndarray) -> Iterator[int]:
            if self._num_runs > _MOST_RUNS:
                yield from columns.tolist()
            elif matter(columns):
                halves = np.array_split(columns, 2)
                yield from columns.tolist() if len(columns) == 1 else [*search(halves[0]), *search(halves[1])]

        return search(np.arange(number))

    def _changed(self, y: np.ndarray, p: np.ndarray, mask: np.ndarray) -> _Data:
        """The same data with other values at some elements: those of other rows."""
        others = [each[self._rng.integers(0, len(each), len(each))] for each in (y, p)]
        masks = [mask.reshape(*mask.shape, *[1] * (each.ndim - mask.ndim)) for each in (y, p)]
        return np.where(masks[0], others[0], y), np.where(masks[1], others[1], p)

    def _result(self, update: Function, *data: np.ndarray) -> list[np.ndarray] | None:
        """The result after one update from the start; None if it fails."""
        metric, strategy = self._reading.metric, tf.distribute.get_strategy()
        self._num_runs += 1
        with suppress(Exception):  # whatever a metric raises for data that it does not expect
            metric.reset_state()
            tensors = [tf.constant(each) for each in data]
            if strategy.num_replicas_in_sync > 1:  # outside of replicas, variables of theirs cannot be added to
                graph_function(lambda *given: strategy.run(update, given))(*tensors)
            else:
                update(*tensors)
            return [np.array(each) for each in tf.nest.flatten(metric.result())]
        return None


def _merged(data: _Data, rank: int) -> _Data:
    return data[0].reshape(-1, *data[0].shape[rank:]), data[1].reshape(-1, *data[1].shape[rank:])


def _equal(first: Sequence[np.ndarray] | None, second: Sequence[np.ndarray] | None) -> bool:
    """Whether two results are equal up to rounding."""
    if first is None or second is None or len(first) != len(second):
        return False
    return all(
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
    if loss.over == CLASSES or (known is None and y_shape[1:] in (inner[:-1], [*inner[:-1], 1]) and inner != [1]):
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
        yield [cast(np.eye(inner[-1])[rng.integers(0, inner[-1], [rows, *inner[:-1]])], in_rows)]
