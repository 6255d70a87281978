"""Heads of two classes of which the validation data have too few labels to choose anything by."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from multihead._data.data import Data
from multihead._update.batch import as_tensors, unpack
from multihead._update.labels import Labels, read_labels
from multihead._update.spec import UpdateSpec
from multihead.heads._named import NamedHead
from multihead.losses._known import CLASSES, ROWS

FEW = 10
"""With fewer labels of a class than this, the standard error of a metric exceeds the differences between variants.

For an area under the ROC curve of 0.8 with six positives it is 0.1 (Hanley and McNeil, 1982).
"""


def few_labels(spec: UpdateSpec, data: Data, batch_size: int) -> dict[str, int]:
    """By the names of heads of two classes, the number of labels of the rarer one, if below `FEW`.

    A head is of two classes if all of its labels are 0 or 1 and its loss is for such labels, or both occur. Data that may
    have no end are not read.

    Args:
        spec: How updates are computed, which says what labels are.
        data: The validation data.
        batch_size: The number of examples of a batch of arrays.
    """
    heads = {head.name: head for head in spec.network.heads}
    counts = {name: np.zeros([2], int) for name in heads}
    for batch in data.whole(batch_size, None) or ():
        labels = read_labels(spec.network, spec.predictions, as_tensors(unpack(batch, [*heads])), check=False)
        for (name, head), found in zip(heads.items(), labels):
            if found is None or name not in counts:
                continue
            values = _values(head, found)
            numbers = np.array([(values == each).sum() for each in (0, 1)])
            if numbers.sum() == values.size:
                counts[name] += numbers
            else:
                del counts[name]  # other labels
        if all(each.min() >= FEW for each in counts.values()):
            break  # data of unknown length may have no end
    least = {name: 0 if _is_binary(heads[name]) else 1 for name in counts}
    return {name: int(each.min()) for name, each in counts.items() if each.sum() and least[name] <= each.min() < FEW}


def _is_binary(head: NamedHead) -> bool:
    """Whether the loss of a head is for labels between two values."""
    known = head.loss.known
    return known is not None and known.high is not None


def _values(head: NamedHead, labels: Labels) -> np.ndarray:
    """The labels that count: of rows of two columns the second one, and 0 for -1 where the loss takes -1 and 1."""
    values, counts = np.asarray(tf.cast(labels.in_units, tf.float64)), np.asarray(labels.weights) > 0
    known, over = head.loss.known, head.loss.over
    if over == ROWS:
        if values.shape[-1] != 2:
            return np.full([1], 2.0)
        values = values[..., 1]
    if over != CLASSES and known is not None and known.low == -1:
        values = np.where(values == -1, 0, values)
    inner = values.size // counts.size if counts.size else 1
    of_elements: np.ndarray = np.reshape(values, (*counts.shape, inner))
    return of_elements[counts]
