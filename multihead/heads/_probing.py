"""Trials with made-up data when a head is built: which rows a metric reads. `_rows_apart.py` tries losses with such data."""

from __future__ import annotations

import warnings
from contextlib import suppress

import numpy as np
import tensorflow as tf

from multihead._ground.calls import graph_function
from multihead._ground.types import Function, Metric, Nested
from multihead.losses._known import aligned, with_inner

_MOST_VALUES = 2**22


def made(rng: np.random.Generator, kind: str, spec: tf.TensorSpec, *, rows: int, width: int | None) -> tf.Tensor:
    """Rows that fit a spec: `"uniform"`, `"normal"`, `"classes"` or `"zeros"`; integers are at most three classes."""
    shape = [rows, *(size or 3 for size in spec.shape[1:])]
    if kind == "zeros":
        values = np.zeros(shape)
    elif not spec.dtype.is_floating:
        values = rng.integers(0, min(max(width or 2, 2), 3), shape)
    elif kind == "normal":
        values = rng.standard_normal(shape, np.float32)
    elif kind == "classes" and len(shape) > 1 and shape[-1] > 1:
        values = np.eye(shape[-1])[rng.integers(0, min(shape[-1], 3), shape[:-1])]
    elif kind == "classes":
        values = rng.integers(0, 2, shape)
    else:
        values = 0.1 + 0.8 * rng.random(shape, np.float32)
    return tf.cast(values, spec.dtype)


def differ(one: Nested, other: Nested, tolerance: float = 1e-4) -> bool:
    """Whether numbers differ by more than rounding, where both are finite."""
    finite = np.isfinite(one) & np.isfinite(other)
    one, other = np.where(finite, one, 0.0), np.where(finite, other, 0.0)
    return bool((np.abs(one - other) > tolerance * max(np.abs(one).max(), np.abs(other).max())).any())


def in_rows(tensor: tf.Tensor, rank: int, *, are_elements: bool) -> tf.Tensor:
    """A tensor whose first `rank` axes are merged; elements become rows with one column."""
    inner, columns = tensor.shape[rank:], [1] if are_elements else []
    if inner.is_fully_defined():
        return tf.reshape(tensor, [-1, *inner, *columns])
    return tf.reshape(tensor, tf.concat([[-1], tf.shape(tensor)[rank:], columns], axis=0))


def find_rows(
    metric: Metric, apply: Function, targets: tf.TensorSpec, predictions: tf.TensorSpec, rank: int
) -> tuple[int, bool]:
    """How many leading axes a metric lets merge into one of rows, at most `rank`; whether weights of 0 leave rows out.

    From these rows, it computes what it computes from a complete batch. `apply(targets, predictions, weights)` updates it.
    """

    def result(*data: tf.Tensor) -> np.ndarray | None:
        """The result after one update from the start, if it can be computed."""
        strategy = tf.distribute.get_strategy()
        with suppress(Exception):  # whatever a metric raises for data that it does not expect
            metric.reset_state()
            if strategy.num_replicas_in_sync > 1:  # outside of replicas, variables of theirs cannot be added to
                graph_function(lambda *given: strategy.run(apply, given))(*data)
            else:
                apply(*data)
            found = np.concatenate([np.ravel(each) for each in tf.nest.flatten(metric.result())])
            return found if np.isfinite(found).all() else None
        return None

    def same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
        return one is not None and other is not None and one.shape == other.shape and not differ(one, other)

    def data(kind: str) -> tuple[tf.Tensor, tf.Tensor]:
        of_predictions = "uniform" if kind == "classes" else kind
        p = made(rng, of_predictions, predictions, rows=number, width=width)
        y = aligned(made(rng, kind, targets, rows=number, width=width), predictions.shape, None)
        if kind == "normal" and y.dtype.is_floating:  # numbers of every size
            scales = tf.constant(10.0 ** rng.integers(-1, 4, number))
            y, p = (each * tf.cast(with_inner(scales, each), each.dtype) for each in (y, p))
        elif kind != "normal":  # the largest of a row is often that of its class
            p *= tf.cast(np.where(np.arange(p.shape[-1]) < 3, 1.0, 0.1), p.dtype)
        return y, p

    def merged(k: int, y: tf.Tensor, p: tf.Tensor) -> list[tf.Tensor]:
        return [in_rows(each, k, are_elements=k == p.shape.rank) for each in (y, p)]

    rng, width, size = np.random.default_rng(0), predictions.shape[-1], int(np.prod([n or 3 for n in predictions.shape[1:]]))
    number, tried = max(2, min(37, _MOST_VALUES // size)), []
    with tf.init_scope(), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for kind in ("classes", "normal", "uniform"):
            first = data(kind)
            shapes = [each.shape for each in first]
            ranks = range(1, min(rank, shapes[0].rank, shapes[1].rank - (shapes[0] != shapes[1])) + 1)
            found = {k: result(*merged(k, *first)) for k in ranks}
            whole = next((k for k in ranks if found[k] is not None), None)
            if whole is not None and not same(found[whole], result(*merged(whole, *data(kind)))):  # it depends on the data
                tried.append((first, max(k for k in ranks if same(found[k], found[whole]))))
        rank, weighs = min((k for _, k in tried), default=1), True
        for first, _ in tried:
            y, p = merged(rank, *first)
            some = rng.random(len(y)) < 0.6
            without = result(tf.boolean_mask(y, some), tf.boolean_mask(p, some))
            weighs &= same(without, result(y, p, tf.cast(some, tf.float32)))
        metric.reset_state()
    return rank, weighs
