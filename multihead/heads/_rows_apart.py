"""Whether a loss of the user's own, with the module, treats the rows of a batch independently of each other.

Otherwise missing labels would be compared with the others, and a batch could not be split. This is found out once, when a
head is built, on a few made-up rows: half of them are replaced, and what belongs to the others must not change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.calls import graph_function, written_resources
from multihead._ground.layers import all_layers
from multihead._ground.tensors import unchecked, where
from multihead.heads._named import NamedHead
from multihead.losses._known import is_keras

_REPLACED = np.array([False, True, True, False, True, False, False, True])
"""Which rows are replaced: one of any two neighbours, of any row and its counterpart in the other half, and so on."""

_LARGE, _LARGEST = 2**12, 2**20
"""The number of elements of a row from which on one pair of batches is tried out, and none."""

Terms = tuple[Any, Any]
_KINDS = ("uniform", "normal", "classes", "no classes")


def check_rows_apart(head: NamedHead, representation: Any, targets: tf.TensorSpec, predictions: tf.TensorSpec) -> None:
    """Checks that a head whose rows depend on each other says so, and that its sums and counts add up.

    Nothing is found out about a loss that fails for the made-up rows, draws random numbers or changes variables, nor about a
    module with which it does.

    Args:
        head: The built head.
        representation: The specs of the representation, with open batch size.
        targets: The spec of the head's targets.
        predictions: The spec of its predictions.

    Raises:
        ValueError: The head does not have `couples_rows`, but its rows depend on each other; the sum or the count of a batch
            is not that of its parts; or the count depends on the predictions.
    """
    loss = head.loss
    if not head.is_trained or loss.known is not None or (loss.couples_rows and not loss.has_count):
        return

    def of_loss(rows: Any) -> Terms:
        return loss.terms(head.like_scaled(rows["targets"]), rows["predictions"])

    def of_head(rows: Any) -> Terms:
        labels = head.like_scaled(rows["targets"])
        return loss.terms(labels, head.predict(rows["representation"], labels, training=False))

    rows_of_loss: dict[str, Any] = {"targets": targets, "predictions": predictions}
    tried: Any = None if loss.has_effects else _arrays(of_loss)
    for one, other in _pairs(tried, rows_of_loss, predictions):
        if loss.has_count and _differ(tried(one)[1], tried({**one, "predictions": other["predictions"]})[1]):
            raise ValueError(
                f"`loss` of head {head.name!r} must return a count that is a function of the targets. Received: "
                f"{loss.name!r}, whose count changes with the predictions. Count labels, or return one value per element, "
                "or the mean with `couples_rows=True`."
            )
        _check_pair(head, tried, one, other, "value")
    is_dense = all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(representation))
    if loss.couples_rows or _is_plain(head) or not is_dense:
        return
    rows_of_head = {"targets": targets, "representation": representation}
    tried = _arrays(of_head) if loss.runs_eagerly else _traced(of_head, rows_of_head)
    for one, other in _pairs(tried, rows_of_head, predictions):
        _check_pair(head, tried, one, other, "value, with the module,")


def _is_plain(head: NamedHead) -> bool:
    """Whether a module consists of Keras's own layers one after the other, none of which compares rows in inference."""
    layers = [each for each in all_layers(head.module) if type(each) is not keras.Sequential]
    others = (keras.layers.Lambda, keras.Model)
    return bool(layers) and not head.teacher_forcing and all(is_keras(type(x)) and not isinstance(x, others) for x in layers)


def _check_pair(head: NamedHead, tried: Any, one: Any, other: Any, whose: str) -> None:
    """Checks a head without `couples_rows` on two sets of rows."""
    loss = head.loss
    if loss.couples_rows:
        return
    if loss.is_total and _is_no_sum(tried, one):
        raise ValueError(
            f"`loss` of head {head.name!r} must return a sum and a count which add up over the rows of a batch. Received: "
            f"{loss.name!r}, which does not give the same for a batch as for its two halves together. If it compares rows, "
            "pass `couples_rows=True` to `add_head`. If it limits the count, as in `tf.maximum(count, 1)`, leave that out: "
            "an update whose count is 0 does not train the head."
        )
    if not loss.is_total and _is_coupled(tried, one, other):
        raise ValueError(
            f"`loss` of head {head.name!r} must treat each row independently of the others in its batch, or the head must "
            f"say that it does not. Received: {loss.name!r}, whose {whose} for a row changes with the other rows or their "
            "number: missing labels would count, too, and a split batch would have another loss. Pass `couples_rows=True` "
            "to `add_head`, so that it gets the labelled rows of each batch, whole; do not divide a row's value by the "
            "batch size, or sum over the batch."
        )


def _arrays(compute: Callable[[Any], Terms]) -> Callable[[Any], Terms]:
    """A function of rows that gives arrays."""

    def tried(rows: Any) -> Terms:
        with unchecked():  # the loss of made-up rows may be infinite
            sums, counts = compute(rows)
        return sums.numpy(), None if counts is None else counts.numpy()

    return tried


def _traced(compute: Callable[[Any], Terms], specs: Any) -> Callable[[Any], Terms] | None:
    """A function of rows that gives arrays and changes no variables; None if it cannot be traced, or would change some."""
    try:
        traced = graph_function(compute).get_concrete_function(specs)
    except Exception:  # noqa: BLE001 - what is wrong with the head is said elsewhere
        return None
    return None if written_resources(traced.graph.get_operations()) else _arrays(traced)


def _pairs(tried: Any, specs: Any, predictions: tf.TensorSpec) -> Iterator[tuple[Any, Any]]:
    """Pairs of eight rows each, for the first of which a function has values that are the same each time."""
    shapes = [tf.TensorShape([size or 3 for size in spec.shape[1:]]) for spec in tf.nest.flatten(specs)]
    size = sum(shape.num_elements() for shape in shapes)
    width = predictions.shape[-1] if predictions.shape.rank > 1 else None
    kinds = () if tried is None or size > _LARGEST else _KINDS if size < _LARGE else _KINDS[:1]
    for seed, kind in enumerate(kinds):
        make = functools.partial(_made, np.random.default_rng(seed), kind, width)
        one, other = tf.nest.map_structure(make, specs), tf.nest.map_structure(make, specs)
        if kind == "no classes":
            one, other = ({**rows, "targets": tf.zeros_like(rows["targets"])} for rows in (one, other))
        try:
            if _differ(tried(one)[0], tried(one)[0]):
                return
        except Exception:  # noqa: BLE001 - a loss need not take any numbers
            continue
        yield one, other


def _made(numbers: np.random.Generator, kind: str, width: int | None, spec: tf.TensorSpec) -> tf.Tensor:
    """Eight rows that fit a spec, for predictions of some width."""
    shape = [len(_REPLACED), *(size or 3 for size in spec.shape[1:])]
    if not spec.dtype.is_floating:
        values = numbers.integers(0, min(max(width or 2, 2), 3), shape)
    elif kind == "normal":
        values = numbers.standard_normal(shape, np.float32)
    elif kind == "classes" and len(shape) > 1 and shape[-1] > 1:
        values = np.eye(shape[-1])[numbers.integers(0, min(shape[-1], 3), shape[:-1])] * 0.98 + 0.01 / shape[-1]
    elif kind == "classes":
        values = numbers.integers(0, 2, shape)
    else:
        values = 0.1 + 0.8 * numbers.random(shape, np.float32)
    return tf.cast(values, spec.dtype)


def _rows(rows: Any, place: slice) -> Any:
    return tf.nest.map_structure(lambda tensor: tensor[place], rows)


def _is_coupled(tried: Callable[[Any], Terms], one: Any, other: Any) -> bool:
    """Whether sums or counts of rows change if others are replaced, or left out."""
    mixed = tf.nest.map_structure(_mixed, one, other)
    try:
        whole, replaced, half = tried(one), tried(mixed), tried(_rows(one, slice(0, 4)))
    except Exception:  # noqa: BLE001 - a loss need not take any rows
        return False
    kept = ~_REPLACED
    return any(
        a is not None and (_differ(a[kept], b[kept]) or _differ(a[:4], c, 1e-2)) for a, b, c in zip(whole, replaced, half)
    )


def _mixed(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    replaced = tf.reshape(tf.constant(_REPLACED), [-1] + [1] * (one.shape.rank - 1))
    return where(replaced, other, one)


def _is_no_sum(tried: Callable[[Any], Terms], rows: Any) -> bool:
    """Whether the sum or the count of rows is not that of two parts of them."""
    try:
        whole, *parts = (tried(_rows(rows, place)) for place in (slice(0, 8), slice(0, 3), slice(3, 8)))
    except Exception:  # noqa: BLE001 - a loss need not take any rows
        return False
    return any(_differ(total, one + other, 1e-3) for total, one, other in zip(whole, *parts))


def _differ(one: Any, other: Any, tolerance: float = 1e-4) -> bool:
    """Whether numbers differ by more than rounding, where both are finite."""
    finite = np.isfinite(one) & np.isfinite(other)
    one, other = np.where(finite, one, 0.0), np.where(finite, other, 0.0)
    return bool((np.abs(one - other) > tolerance * max(np.abs(one).max(), np.abs(other).max())).any())
