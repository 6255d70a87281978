"""Whether a custom loss, with the module, treats the rows of a batch independently of each other.

Otherwise missing labels would be compared with the others, and a batch could not be split. It is tried once, when a head is
built, on eight made-up rows: some of them are replaced or left out, and what belongs to the others must not change.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf

from multihead._ground.calls import graph_function, written_resources
from multihead._ground.tensors import unchecked, where
from multihead._ground.types import Function, Nested
from multihead.heads._named import NamedHead
from multihead.heads._probing import differ, made
from multihead.losses._known import with_inner

_REPLACED = np.array([False, True, True, False, True, False, False, True])
"""Which rows are replaced: one of any two neighbours, of any row and its counterpart in the other half, and so on."""

_LARGE, _LARGEST = 2**12, 2**20
"""The number of elements of a row from which on one pair of batches is tried, and none."""

_KINDS = ("uniform", "normal", "classes", "zeros")


def check_rows_apart(head: NamedHead, representation: Nested, targets: tf.TensorSpec, predictions: tf.TensorSpec) -> None:
    """Raises if a built head's rows depend on each other and it does not say so, or its sums and counts do not add up.

    A loss or module that fails for the made-up rows, draws random numbers or changes variables is not checked.
    """
    loss = head.loss
    if not head.is_trained or loss.known is not None or (loss.couples_rows and not loss.has_count):
        return

    def of_loss(rows: Nested) -> Nested:
        return loss.terms(head.like_scaled(rows["targets"]), rows["predictions"])

    def of_head(rows: Nested) -> Nested:
        labels = head.like_scaled(rows["targets"])
        return loss.terms(labels, head.predict(rows["representation"], labels, training=False))

    trials: list[tuple[Function, Nested]] = [(of_loss, {"targets": targets, "predictions": predictions})]
    if all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(representation)):
        trials.append((of_head, {"targets": targets, "representation": representation}))
    width = predictions.shape[-1] if predictions.shape.rank > 1 else None
    for compute, specs in trials[:1] if loss.couples_rows else trials:
        terms = _terms(compute, specs, loss.runs_eagerly)
        for one, other in () if terms is None else _pairs(terms, specs, width):
            if loss.has_count and compute is of_loss:
                changed = {**one, "predictions": other["predictions"]}
                if differ(terms(one)[1], terms(changed)[1]):
                    raise ValueError(
                        f"`loss` of head {head.name!r} must return a count that is a function of the targets. Received: "
                        f"{loss.name!r}, whose count changes with the predictions. Count labels, or return one value per "
                        "element, or the mean with `couples_rows=True`."
                    )
            if not loss.couples_rows:
                _check_pair(head, terms, one, other)


def _check_pair(head: NamedHead, terms: Function, one: Nested, other: Nested) -> None:
    """Checks a head without `couples_rows` on two sets of rows."""
    loss, parts = head.loss, list[Nested]()
    mixed = tf.nest.map_structure(lambda a, b: where(with_inner(tf.constant(_REPLACED), a), b, a), one, other)
    with suppress(Exception):  # a loss need not take any rows
        halves = ((0, 3), (3, 8)) if loss.is_total else ((0, 4),)
        whole = [terms(one), *([] if loss.is_total else [terms(mixed)])]
        parts = [*whole, *(terms(tf.nest.map_structure(lambda rows, a=a, b=b: rows[a:b], one)) for a, b in halves)]
    triples = [triple for triple in zip(*parts) if triple[0] is not None]
    if loss.is_total and any(differ(whole, first + second, 1e-3) for whole, first, second in triples):
        raise ValueError(
            f"`loss` of head {head.name!r} must return a sum and a count which add up over the rows of a batch. Received: "
            f"{loss.name!r}, which does not give the same for a batch as for its two halves together. If it compares rows, "
            "pass `couples_rows=True` to `add_head`. If it limits the count, as in `tf.maximum(count, 1)`, leave that out: "
            "an update whose count is 0 does not train the head."
        )
    kept = ~_REPLACED
    if not loss.is_total and any(differ(a[kept], b[kept]) or differ(a[:4], c, 1e-2) for a, b, c in triples):
        raise ValueError(
            f"`loss` of head {head.name!r} must treat each row independently of the others in its batch, or the head must "
            f"say that it does not. Received: {loss.name!r}, whose value for a row, alone or with the module, changes with "
            "other rows or their number: missing labels would count, too, and a split batch would have another loss. Pass "
            "`couples_rows=True` to `add_head`, so that it gets the labelled rows of each batch, whole; do not divide a "
            "row's value by the batch size, or sum over the batch."
        )


def _terms(compute: Function, specs: Nested, eagerly: bool) -> Any:
    """A function of rows that gives sums and counts as arrays; None if it cannot be traced, or would change variables."""
    if not eagerly:
        try:
            compute = traced = graph_function(compute).get_concrete_function(specs)
        except Exception:  # noqa: BLE001 - what is wrong with the head is said elsewhere
            return None
        if written_resources(traced.graph.get_operations()):
            return None

    def terms(rows: Nested) -> tuple[np.ndarray, np.ndarray | None]:
        with unchecked():  # the loss of made-up rows may be infinite
            sums, counts = compute(rows)
        return sums.numpy(), None if counts is None else counts.numpy()

    return terms


def _pairs(terms: Function, specs: Nested, width: int | None) -> Iterator[tuple[Nested, Nested]]:
    """Pairs of eight rows each, for the first of which a function has values that are the same each time."""
    size = sum(int(np.prod([axis or 3 for axis in spec.shape[1:]])) for spec in tf.nest.flatten(specs))
    for kind in () if size > _LARGEST else _KINDS if size < _LARGE else _KINDS[:1]:
        rng, pair = np.random.default_rng(0), [dict[str, Nested](), dict[str, Nested]()]
        for rows in pair:
            for name, each in specs.items():
                own = kind if name == "targets" or kind == "normal" else "uniform"
                rows[name] = tf.nest.map_structure(functools.partial(made, rng, own, rows=8, width=width), each)
        one, other = pair
        with suppress(Exception):  # a loss need not take any numbers
            if differ(terms(one)[0], terms(one)[0]):
                return
            yield one, other
