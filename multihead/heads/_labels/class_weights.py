"""Weights by class: `class_weights` makes them from labels, `ClassWeight` looks them up."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from multihead._ground.validation import is_number


def class_weights(labels: Any, *, ignore_label: float | None = None) -> dict[int, float]:
    """Weights that give every class the same influence, however often it occurs.

    `weight_c = n / (k * n_c)`, with `n_c` the number of labels of class `c`, `n` of all and `k` the number of classes that
    occur, so that the mean weight of the labels is 1.

    Args:
        labels: Class numbers in an array of any shape, or a data set or an iterator of such arrays. NaN counts for nothing.
        ignore_label: The label of an element that has none.

    Returns:
        Weights by class, for `add_head(..., class_weight=...)`.

    Raises:
        ValueError: There is no label, or a label is not a whole number of at least 0.

    Example:
        >>> class_weights([0, 0, 0, 1, -1], ignore_label=-1)
        {0: 0.6666666666666666, 1: 2.0}
    """
    counts: dict[int, int] = {}
    for batch in _arrays(labels):
        values, numbers_of_values = np.unique(_class_numbers(batch, ignore_label), return_counts=True)
        for value, number in zip(values.tolist(), numbers_of_values.tolist()):
            counts[value] = counts.get(value, 0) + number
    if not counts:
        raise ValueError("`labels` must hold at least one label. Received: none. Pass the labels of the training data.")
    total = sum(counts.values())
    return {label: total / (len(counts) * counts[label]) for label in sorted(counts)}


def _arrays(labels: Any) -> Iterator[np.ndarray]:
    is_stream = hasattr(labels, "element_spec") or isinstance(labels, Iterator)
    batches: Iterable[Any] = labels if is_stream else [labels]
    for batch in batches:
        yield np.asarray(batch)


def _class_numbers(batch: np.ndarray, ignore_label: float | None) -> np.ndarray:
    if batch.dtype.kind not in "biuf":
        raise ValueError(
            f"`labels` must be class numbers. Received: an array of dtype {batch.dtype}. Number the classes from 0, for "
            "example with `keras.layers.StringLookup`."
        )
    kept = batch[~np.isnan(batch)] if batch.dtype.kind == "f" else batch.ravel()
    kept = kept if ignore_label is None else kept[kept != ignore_label]
    wrong = kept[(kept < 0) | (kept != np.floor(kept))]
    if wrong.size:
        raise ValueError(
            f"`labels` must be whole numbers of at least 0. Received: {wrong[:3].tolist()} among them. Number the classes "
            "from 0, and pass the label of missing elements as `ignore_label`."
        )
    return kept.astype(np.int64)


class ClassWeight:
    """Looks up the weight of each element by its class.

    Args:
        weights: Weights of at least 0 by class number; a class that is not named weighs 1. Digits in a string are a
            number, since JSON knows no other keys.

    Raises:
        ValueError: It is not such a dict.
    """

    def __init__(self, weights: Any) -> None:
        if not isinstance(weights, Mapping) or not weights or not all(_is_class(key) for key in weights):
            hint = " 'balanced' is `class_weight=multihead.class_weights(labels)`." if isinstance(weights, str) else ""
            raise ValueError(
                "`class_weight` must be a dict of weights by class number. "
                f"Received: class_weight={weights!r}. Pass, say, {{0: 1.0, 1: 5.0}}.{hint}"
            )
        self.weights = {int(key): weight for key, weight in sorted(weights.items(), key=lambda item: int(item[0]))}
        wrong = {key: weight for key, weight in self.weights.items() if not is_number(weight) or weight < 0}
        if wrong or not any(self.weights.values()):
            raise ValueError(
                "`class_weight` must hold finite numbers of at least 0, and one above it. "
                f"Received: class_weight={wrong or self.weights!r}. A class of weight 0 counts as if it had no label."
            )

    @property
    def largest(self) -> int:
        """The largest class that has a weight."""
        return max(self.weights)

    def of(self, classes: tf.Tensor) -> tf.Tensor:
        """The weight of each class number, float32."""
        # One entry more, for all classes beyond.
        table = tf.constant([float(self.weights.get(label, 1.0)) for label in range(self.largest + 2)])
        return tf.gather(table, tf.clip_by_value(tf.cast(classes, tf.int32), 0, self.largest + 1))


def _is_class(key: Any) -> bool:
    if isinstance(key, str):
        return key.isdecimal()
    return isinstance(key, numbers.Integral) and not isinstance(key, bool) and int(key) >= 0
