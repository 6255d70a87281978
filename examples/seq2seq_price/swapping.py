"""Swaps the values of a column at random in sources and targets, every time the rows are read.

A model should copy names, not know them: trained on swapped names, it cannot learn what happens to correlate with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from examples.seq2seq_price import text

BLOCK_ROWS = 512
"""Rows that are processed at once."""
Standardize = Callable[[tf.Tensor], tf.Tensor]


class Swapping:
    """Ids of rows in which the value of each column is replaced by a random value of that column, in text and target.

    Texts are converted once, with a placeholder wherever a value occurs as whole words (ignoring case); every time a row is
    read, a random value's ids replace the placeholder. A value is not replaced if the text or the target does not contain
    it, or if it begins or ends with punctuation, since the tokens next to it would change.

    Args:
        texts: The rows' texts.
        targets: The rows' targets.
        columns: For each column, its value in every row.
        read_text: The layer that converts texts to ids.
        read_target: The layer that converts targets to ids; the end id is added here.

    Attributes:
        marked: Ragged int64 ids of texts and targets with placeholders.
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
        """Replaces the placeholders by values.

        Args:
            rows: Rows of `marked` in any order, followed by any other columns.
            seed: Random seed of the values.
        """
        draws = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True)
        return tf.data.Dataset.zip((rows.batch(BLOCK_ROWS), draws)).map(self._fill).unbatch()

    def _fill(self, rows: tuple[Any, ...], draw: tf.Tensor) -> tuple[Any, ...]:
        texts, targets, *others = rows
        shape = [texts.nrows(), self._counts.shape[0]]
        drawn = tf.random.stateless_uniform(shape, [draw, 0], maxval=2**31 - 1, dtype=tf.int32) % self._counts
        return (self._texts.fill(texts, drawn), text.append_end(self._targets.fill(targets, drawn)), *others)


class _Pieces:
    """The replacement of each id: an id of the vocabulary is kept, a placeholder becomes the ids of one of its values."""

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
        """Ids `[rows, time]`, each placeholder replaced by the value of its column with that number, `[rows, columns]`."""
        rows, places = ids.value_rowids(), ids.flat_values
        for column, start in enumerate(self._starts):
            value = start + tf.cast(tf.gather(numbers[:, column], rows), tf.int64)
            places = tf.where(tf.equal(ids.flat_values, self._first_mark + column), value, places)
        return tf.gather(self._pieces, ids.with_flat_values(places)).merge_dims(1, 2)


def _letter_not_in(everything: str) -> str:
    """A caseless letter that does not occur in a text."""
    return next(letter for letter in map(chr, range(0x16A0, 0x10FFFF)) if letter.isalpha() and letter not in everything)


def _begins_and_ends_within_words(value: str) -> bool:
    return re.fullmatch(r"\w(.*\w)?", value, re.DOTALL) is not None


def _whole_words(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(value)}(?![\w\u0300-\u036f])", re.IGNORECASE)
