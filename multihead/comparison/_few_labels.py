"""Heads of two classes of which the validation data have too few labels to choose anything by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from multihead._data.data import Data
from multihead._update.batch import unpack
from multihead.losses._known import CLASSES, ROWS

FEW = 10
"""With fewer labels of a class than this, the standard error of a metric exceeds the differences between arms.

For an area under the ROC curve of 0.8 with six positives it is 0.1 (Hanley and McNeil, 1982).
"""


def few_labels(data: Data, heads: Mapping[str, Any]) -> dict[str, int]:
    """By the names of heads of two classes, the number of labels of the rarer one, if below `FEW`.

    A head is of two classes if all of its labels are 0 or 1 and its loss is for such labels, or both occur.

    Args:
        data: The validation data.
        heads: The heads by name.
    """
    counts = {name: [0, 0] for name in heads}
    for name, values in _labels(data, heads):
        if all(min(each) >= FEW for each in counts.values()):
            break  # data may have no end
        number = counts.get(name)
        if number is None:
            continue
        found = [int((values == each).sum()) for each in (0, 1)]
        if sum(found) != values.size:
            del counts[name]  # other labels
            continue
        counts[name] = [before + now for before, now in zip(number, found)]
    least = {name: 0 if _is_binary(heads[name]) else 1 for name in counts}
    return {name: min(number) for name, number in counts.items() if sum(number) and least[name] <= min(number) < FEW}


def _is_binary(head: Any) -> bool:
    """Whether the loss of a head is for labels between two values."""
    known = head.loss.known
    return known is not None and known.high is not None


def _labels(data: Data, heads: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Pairs of a head's name and its labels that count, flat: 0 and 1 for two classes."""
    for targets, weights in _parts(data, list(heads)):
        for name, given in targets.items():
            values = _array(given) if name in heads else None
            if values is None:
                continue
            head, weight = heads[name], _array(weights.get(name))
            counts = values == values  # not NaN
            counts &= True if head.ignore_label is None else values != head.ignore_label
            if weight is not None:
                while weight.ndim > values.ndim and weight.shape[-1] == 1:
                    weight = weight[..., 0]
                counts &= np.reshape(weight != 0, weight.shape + (1,) * (values.ndim - weight.ndim))
            yield name, _classes(head, values, counts)


def _classes(head: Any, values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The labels that count: of rows of two columns the second one, and 0 for -1 where the loss takes -1 and 1."""
    known, over = head.loss.known, head.loss.over
    if over == ROWS:
        if values.shape[-1] != 2:
            return np.full([1], 2)
        return values[..., 1][counts.all(axis=-1)]
    if over != CLASSES and known is not None and known.low == -1:
        values = np.where(values == -1, 0, values)
    return values[counts]


def _parts(data: Data, names: Sequence[str]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Targets and weights by head: of all examples, or of one batch after another; of data without an end, none."""
    if data.is_arrays:
        yield data.y, data.sample_weight or {}
        return
    if int(data.x.cardinality()) == tf.data.INFINITE_CARDINALITY:
        return
    for batch in data.x:
        found = unpack(batch, list(names))
        yield found.targets, found.sample_weights


def _array(values: Any) -> np.ndarray | None:
    """Numbers as an array; None for anything else."""
    if values is None or isinstance(values, (tf.RaggedTensor, tf.SparseTensor)):
        return None
    if getattr(values, "dtype", None) == tf.bfloat16:
        values = tf.cast(values, tf.float32)
    found = np.asarray(values)
    return found if found.dtype.kind in "biuf" else None
