"""Heads of two classes of which the validation data have too few labels to choose anything by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from multihead._data.data import Data
from multihead._update.batch import unpack

FEW = 10
"""With fewer labels of a class than this, a figure's own error is larger than what arms differ by.

The standard error of an area under the ROC curve of 0.8 with six positives is 0.1 (Hanley and McNeil, 1982).
"""


def few_labels(data: Data, heads: Mapping[str, Any]) -> dict[str, int]:
    """By the names of heads whose labels are 0 and 1 alone, the number of labels of the rarer class, if below `FEW`.

    Args:
        data: The validation data.
        heads: The heads by name.
    """
    counts = {name: [0, 0] for name in heads}
    for name, values in _labels(data, heads):
        number = counts.get(name)
        if number is None:
            continue
        found = [int((values == each).sum()) for each in (0, 1)]
        if sum(found) == values.size:
            counts[name] = [before + now for before, now in zip(number, found)]
        else:
            del counts[name]  # other labels
    return {name: min(number) for name, number in counts.items() if sum(number) and min(number) < FEW}


def _labels(data: Data, heads: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Pairs of a head's name and its labels that count, flat."""
    for targets, weights in _parts(data, list(heads)):
        for name, given in targets.items():
            if name not in heads or not _is_dense(given):
                continue
            values, weight = np.asarray(given), weights.get(name)
            counts = values == values  # not NaN
            ignored = heads[name].ignore_label
            counts &= True if ignored is None else values != ignored
            if weight is not None and _is_dense(weight):
                shape = np.asarray(weight).shape
                counts &= np.reshape(np.asarray(weight) != 0, shape + (1,) * (values.ndim - len(shape)))
            yield name, values[counts]


def _parts(data: Data, names: Sequence[str]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Targets and weights by head: of all examples, or of one batch after another."""
    if data.is_arrays:
        yield data.y, data.sample_weight or {}
        return
    for batch in data.x:
        found = unpack(batch, list(names))
        yield found.targets, found.sample_weights


def _is_dense(values: Any) -> bool:
    """Whether these are numbers in an array or a dense tensor."""
    if isinstance(values, (tf.RaggedTensor, tf.SparseTensor)):
        return False
    return np.asarray(values).dtype.kind in "biuf"
