"""Spans of words with tags, counted as conlleval does: their types, and a Keras metric of them.

A span of the type x is `B-x I-x I-x`, or `B-x I-x E-x` and `S-x`. Tags that break the scheme are read as conlleval reads
them: a span starts at B or S, after O, E or S, and where the type changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

OPEN, CLOSE = "BSU", "ELSU"
"""The marks of the first and of the last word of a span; L and U are other names of E and S."""


def iob(tags: Sequence[str]) -> list[str]:
    """The tags of the same spans with B-x at the first word of each and I-x at the others."""
    found, before, kind_before = [], "O", ""
    for tag in tags:
        mark, _, kind = tag.partition("-")
        starts = mark in OPEN or before in CLOSE or kind != kind_before
        found.append("O" if mark == "O" else f"{'B' if starts else 'I'}-{kind}")
        before, kind_before = mark, kind
    return found


@keras.saving.register_keras_serializable(package="examples")
class SpanF1(keras.metrics.Metric):
    """F1 of spans, `2 * right / (predicted + labelled)`; a span is right if its type and both of its ends are.

    Args:
        tags: The names of the tags by their ids, the first of them empty, for no tag.
        name: Name of the metric.
    """

    def __init__(self, tags: Sequence[str], name: str = "span_f1", **options: Any) -> None:
        super().__init__(name=name, **options)
        self.tags = list(tags)
        kinds = [tag[2:] for tag in tags]
        self._kinds = np.unique(["", *kinds], return_inverse=True)[1][1:].astype("int32")  # 0 outside of spans
        self._opens, self._closes = (np.array([tag[:1] in set(marks) for tag in tags]) for marks in (OPEN, CLOSE))
        self._right, self._all = (self.add_weight(name=each, initializer="zeros") for each in ("right", "all"))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds sentences.

        Args:
            y_true: Tags `[batch, time]`; words with tag 0 are outside of all spans, and so are their predictions.
            y_pred: Scores `[batch, time, num_tags]`.
            sample_weight: `[batch, time]`; words of weight 0 are as those with tag 0. Other weights are not read.
        """
        counts = tf.cast(y_true, tf.int32) > 0
        if sample_weight is not None:
            counts = tf.logical_and(counts, tf.broadcast_to(tf.cast(sample_weight, tf.bool), tf.shape(counts)))
        (kinds, starts, inside), (found_kinds, found_starts, found_inside) = (
            self._spans(tf.where(counts, tf.cast(tags, tf.int32), 0)) for tags in (y_true, tf.argmax(y_pred, axis=-1))
        )
        differs = tf.logical_or(kinds != found_kinds, starts != found_starts)
        is_longer = tf.roll(tf.logical_and(found_inside, tf.logical_not(inside)), -1, axis=0)
        number = tf.cumsum(tf.cast(tf.logical_not(inside), tf.int32))  # of the labelled span, or of the word outside of all
        wrong = tf.cast(tf.logical_or(differs, is_longer), tf.int32)
        wrong = tf.math.unsorted_segment_max(wrong, number, tf.size(number) + 1)
        right = tf.logical_and(starts, tf.gather(wrong, number) == 0)
        self._right.assign_add(tf.reduce_sum(tf.cast(right, tf.float32)))
        self._all.assign_add(tf.reduce_sum(tf.cast([starts, found_starts], tf.float32)))

    def _spans(self, tags: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The type of each word, 0 outside of spans, whether a span starts there, and whether one goes on.

        The sentences are in one row, with a word outside of spans after each.
        """
        tags = tf.reshape(tf.pad(tags, [[0, 0], [0, 1]]), [-1])
        kinds = tf.gather(self._kinds, tags)
        opens = tf.logical_or(tf.gather(self._opens, tags), tf.roll(tf.gather(self._closes, tags), 1, axis=0))
        opens = tf.logical_or(opens, kinds != tf.roll(kinds, 1, axis=0))
        return kinds, tf.logical_and(kinds > 0, opens), tf.logical_and(kinds > 0, tf.logical_not(opens))

    def result(self) -> tf.Tensor:
        """The F1; 0 without any spans."""
        return tf.math.divide_no_nan(2.0 * tf.convert_to_tensor(self._right), tf.convert_to_tensor(self._all))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "tags": self.tags}
