"""Values of a column swapped at random in texts and targets, anew whenever they are read.

Names are what a model should copy rather than know: trained on swapped ones, it cannot learn what happens to go with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from examples.seq2seq_price import text

BLOCK_ROWS = 512
"""Rows that are filled at once."""
Standardize = Callable[[tf.Tensor], tf.Tensor]


class Swapping:
    """Ids of rows, in which each column's value is replaced by a random one of that column, in text and target.

    Texts are read once, with a mark in each place where a value stands as whole words, in any case; whenever rows are read,
    the ids of some value are put there. A value stays as it is where the text or the target lacks it, or if it begins or
    ends with punctuation, since the tokens beside it would change.

    Args:
        texts: The rows' texts.
        targets: The rows' targets.
        columns: For each column, its value in every row.
        read_text: The layer from texts to ids.
        read_target: The same for targets; the end id is added here.

    Attributes:
        marked: Ragged int64 ids of texts and targets with marks.
    """

    def __init__(
        self,
        texts: Sequence[str],
        targets: Sequence[str],
        columns: Sequence[Sequence[str]],
        read_text: keras.layers.Layer,
        read_target: keras.layers.Layer,
    ) -> None:
        texts, targets = list(texts), list(targets)
        letter = _letter_not_in("".join((*texts, *targets)))
        marks = [letter * (place + 1) for place in range(len(columns))]
        choices = []
        for mark, column in zip(marks, columns):
            patterns = {value: _whole_words(value) for value in sorted(set(column)) if _begins_and_ends_within_words(value)}
            for row, value in enumerate(column):
                if value in patterns:
                    both = patterns[value].sub(mark, texts[row]), patterns[value].sub(mark, targets[row])
                    if mark in both[0] and mark in both[1]:
                        texts[row], targets[row] = both
            choices.append(list(patterns))
        self._counts = tf.constant([max(1, len(values)) for values in choices])
        self._texts = _Pieces(read_text, text.standardize_source, marks, choices)
        self._targets = _Pieces(read_target, text.standardize_target, marks, choices)
        self.marked = self._texts.read(texts), self._targets.read(targets)

    def fill(self, rows: tf.data.Dataset, *, seed: int) -> tf.data.Dataset:
        """Puts values where marks are.

        Args:
            rows: Rows of `marked` in any order, with whatever else belongs to them.
            seed: Values repeat with it.
        """
        draws = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True)
        return tf.data.Dataset.zip((rows.batch(BLOCK_ROWS), draws)).map(self._fill).unbatch()

    def _fill(self, rows: tuple[Any, ...], draw: tf.Tensor) -> tuple[Any, ...]:
        texts, targets, *others = rows
        shape = [texts.nrows(), self._counts.shape[0]]
        drawn = tf.random.stateless_uniform(shape, [draw, 0], maxval=2**31 - 1, dtype=tf.int32) % self._counts
        return (self._texts.fill(texts, drawn), text.append_end(self._targets.fill(targets, drawn)), *others)


class _Pieces:
    """What stands for each id: an id of the vocabulary for itself, a mark's for the ids of one of its column's values."""

    def __init__(
        self, vectorizer: keras.layers.Layer, standardize: Standardize, marks: list[str], choices: list[list[str]]
    ) -> None:
        words = vectorizer.get_vocabulary()[2:]
        self.read = text.vectorizer([*words, *marks], standardize)
        self._first_mark = len(words) + 2
        pieces = [tf.RaggedTensor.from_tensor(tf.range(self._first_mark, dtype=tf.int64)[:, tf.newaxis])]
        self._starts = []
        for values in choices:
            self._starts.append(sum(int(each.nrows()) for each in pieces))
            pieces += [vectorizer(values)] if values else []
        self._pieces = tf.concat(pieces, axis=0)

    def fill(self, ids: tf.RaggedTensor, numbers: tf.Tensor) -> tf.RaggedTensor:
        """Ids `[rows, time]` with the numbered value of its column, int32 `[rows, columns]`, in the place of each mark."""
        rows, places = ids.value_rowids(), ids.flat_values
        for column, start in enumerate(self._starts):
            value = start + tf.cast(tf.gather(numbers[:, column], rows), tf.int64)
            places = tf.where(tf.equal(ids.flat_values, self._first_mark + column), value, places)
        return tf.gather(self._pieces, ids.with_flat_values(places)).merge_dims(1, 2)


def _letter_not_in(everything: str) -> str:
    """A letter without case that a text does not hold."""
    return next(letter for letter in map(chr, range(0x16A0, 0x10FFFF)) if letter.isalpha() and letter not in everything)


def _begins_and_ends_within_words(value: str) -> bool:
    return re.fullmatch(r"\w(.*\w)?", value, re.DOTALL) is not None


def _whole_words(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(value)}(?![\w\u0300-\u036f])", re.IGNORECASE)
