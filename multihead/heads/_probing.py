"""What metrics of which nothing is known read: found when their head is built, by running them on made data.

A column that a metric does not read may be changed without changing its result, and a metric that uses its weights gives for
weights of 0 what it gives without these elements.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.calls import function_values, graph_function
from multihead._ground.keras import tensor_variable
from multihead.heads._reading import COLUMNS, ELEMENTS, WEIGHTS, Reading, is_function, place_of, update_metric
from multihead.losses._elements import ElementLoss
from multihead.losses._known import CLASSES, ROWS
from multihead.losses._shapes import aligned_shape

_MOST_RUNS = 600
_Data = tuple[np.ndarray, np.ndarray]


def find_reading(
    metric: Any, head: str, targets: tf.TensorSpec, predictions: tf.TensorSpec, rank: int, loss: ElementLoss
) -> Reading:
    """Finds out how a metric is updated.

    Args:
        metric: The Keras metric.
        head: The name of its head, for messages.
        targets: The spec of the targets.
        predictions: The spec of the predictions.
        rank: How many axes tell the elements of the loss apart.
        loss: The head's loss, which says what the labels can be.
    """
    reading = Reading(metric, head)
    with tf.init_scope(), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        with suppress(Exception):  # whatever a metric raises for data that it does not expect
            _Probe(reading, rank, predictions.shape[1:].as_list()).find(_made_data(targets, predictions, loss))
        metric.reset_state()
    return reading


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
        strategy, update = tf.distribute.get_strategy(), partial(update_metric, self._metric)
        self._update: Callable[..., Any] = update
        if strategy.num_replicas_in_sync > 1:  # outside of replicas, variables of theirs cannot be added to
            self._update = graph_function(lambda *tensors: strategy.run(update, tensors))

    def find(self, made: Iterable[list[_Data]]) -> None:
        """Sets what is found, with the first of several lists of data that the metric takes some of; nothing without any."""
        reading = self._reading
        data = next(filter(None, ([each for each in several if self._is_taken(each)] for several in made)), [])
        if not data:
            return
        if is_function(self._metric):
            y, p = data[0]
            reading.of_batch = np.shape(function_values(self._metric, tf.constant(y), tf.constant(p)))[:1] != (len(y),)
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
        reading.weighs = reading.weighs and not reading.of_batch and all(self._weighs_rows(*each, inner) for each in data)

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
        if not self._reading.weighs or self._reading.of_batch:
            return False
        some = self._rng.random((len(y), *inner)) < 0.6
        weights, ones = some.astype("float32"), np.ones(some.shape, "float32")
        changed = [self._changed(y, p, ~some) for _ in range(4)]
        return self._agree((y, p, ones), (y, p)) and all(self._agree((y, p, weights), (*each, weights)) for each in changed)

    def _keeps_columns_apart(self, y: np.ndarray, p: np.ndarray, inner: tuple[int, ...], number: int) -> bool:
        """Whether each part of its state that the result depends on belongs to one column."""
        state, result = self._run((y, p))
        places = [place_of(each.shape, inner) for each in state]
        if any(place is None and self._matters(i, (y, p), result) for i, place in enumerate(places)):
            return False
        if self._reading.of_batch and state[0].shape != inner:
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
        if self._reading.of_batch:
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
        if self._reading.of_batch:
            values = np.array(function_values(self._metric, *tensors), "float64")
            return [values], [values.mean()]
        self._metric.reset_state()
        self._update(*tensors)
        variables = [tensor_variable(variable) for variable in self._metric.variables]
        state = [np.array(replicas.local(tf.distribute.get_strategy(), variable)) for variable in variables]
        return state, [np.array(each) for each in tf.nest.flatten(self._metric.result())]


def _merged(data: _Data, rank: int) -> _Data:
    return data[0].reshape(-1, *data[0].shape[rank:]), data[1].reshape(-1, *data[1].shape[rank:])


def _elements(data: _Data) -> _Data:
    return data[0].reshape(-1, 1), data[1].reshape(-1, 1)


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
