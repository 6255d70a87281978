"""Words that a decoder learns to copy rather than to know.

A decoder that has seen a name in many rows can write it without looking at the source, together with what happens to go with
it, and fails at names that it has not seen. So names that stand in source and target are replaced at random, in each epoch
by others: by words of other names, or by unknown words.

Which words are names is found in the training rows. What stands in source and target is copied; the two tokens before it in
the target are its context. Where a context precedes many different copies, as `name[` precedes 30 names and `food[` seven
kinds of food, it is open, and what follows are names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from examples.seq2seq_price.model import UNKNOWN_ID

MANY = 10
"""So many different copies make a context an open one."""
MOSTLY = 0.9
"""Words of names stand in an open context in at least this fraction of their occurrences in targets, and in at least this
fraction of the targets whose sources have them."""


class Rows(NamedTuple):
    """Integers of rows, ragged or, with 0 as padding, dense.

    Attributes:
        source: Ids of the source's tokens, `[rows, source tokens]`.
        copy_ids: Ids of these tokens in the vocabulary of the targets, `[rows, source tokens]`.
        target: Ids of the target's tokens, and the end id, `[rows, target tokens]`.
        place: The place, from 1, at which a source token stands first in its source, `[rows, source tokens]`.
        target_place: The place at which a target token stands first in its source, or 0, `[rows, target tokens]`.
    """

    source: Any
    copy_ids: Any
    target: Any
    place: Any
    target_place: Any


class Replacing:
    """Replaces words of names in source and target.

    In a quarter of the rows no word is replaced. In the others each word of a name is, with probability 3/4: in one half of
    these rows by an unknown word, in the other by a word that is drawn from all names.

    Args:
        rows: The training rows, ragged.
        size: The number of ids of targets without those of places: that of place 1.

    Attributes:
        words: The ids of the words of names, in the vocabulary of the targets.
    """

    def __init__(self, rows: Rows, size: int) -> None:
        sources = dict(zip(rows.copy_ids.flat_values.numpy(), rows.source.flat_values.numpy()))
        self.words = [word for word in words_of_names(rows) if word < size and sources[word] != UNKNOWN_ID]
        self._is_name = np.isin(np.arange(size), self.words)
        self._pairs = np.array([[sources[word] for word in self.words], self.words], np.int64)

    def __call__(self, rows: Rows, seed: tf.Tensor) -> Rows:
        """Dense rows with words replaced; `seed` has two numbers."""
        if not self.words:
            return rows
        shape = tf.shape(rows.source)
        drawn = tf.random.stateless_uniform([2, *tf.unstack(shape)], seed)
        of_row = drawn[0, :, :1]
        replaces, hides = tf.logical_and(of_row < 0.75, drawn[1] < 0.75), tf.broadcast_to(of_row < 0.375, shape)
        others = tf.random.stateless_uniform(shape, seed, maxval=len(self.words), dtype=tf.int32)
        size = self._is_name.size
        is_name = tf.logical_and(rows.target < size, tf.gather(self._is_name, tf.minimum(rows.target, size - 1)))
        # Whether a word of a name in the target stands first at a place of the source; place 0 is none.
        places = tf.where(is_name, tf.cast(rows.target_place, tf.int32), 0)
        number = shape[1] + 1
        stands = tf.math.bincount(places, minlength=number, maxlength=number, axis=-1, binary_output=True)[:, 1:]
        replaces = tf.logical_and(replaces, stands > 0)

        def replaced(before: tf.Tensor, places: tf.Tensor, words: np.ndarray, unknown: tf.Tensor) -> tf.Tensor:
            is_replaced, is_hidden, other = (
                tf.gather(tf.pad(values, [[0, 0], [1, 0]]), places, batch_dims=1) for values in (replaces, hides, others)
            )
            return tf.where(is_replaced, tf.where(is_hidden, unknown, tf.gather(words, other)), before)

        return rows._replace(
            source=replaced(rows.source, rows.place, self._pairs[0], tf.constant(UNKNOWN_ID, tf.int64)),
            copy_ids=replaced(rows.copy_ids, rows.place, self._pairs[1], size - 1 + rows.place),
            target=replaced(rows.target, rows.target_place, self._pairs[1], size - 1 + rows.target_place),
        )


def words_of_names(rows: Rows) -> list[int]:
    """The ids of the words of names, in the vocabulary of the targets, in ascending order."""
    copies: defaultdict[tuple[int, ...], Counter[tuple[int, ...]]] = defaultdict(Counter)
    in_targets: Counter[int] = Counter()  # the numbers of rows
    in_both: Counter[int] = Counter()
    for target, places in zip(rows.target.to_list(), rows.target_place.to_list()):
        in_targets.update(target)
        in_both.update({word for word, place in zip(target, places) if place})
        for context, copied in _copies(target, places):
            copies[context][copied] += 1
    in_sources = Counter(word for source in rows.copy_ids.to_list() for word in set(source))
    in_names: Counter[int] = Counter()
    for spans in copies.values():
        if len(spans) >= MANY:
            for span, number in spans.items():
                in_names.update({word: number * span.count(word) for word in span})
    return sorted(
        word
        for word, number in in_names.items()
        if number >= MOSTLY * in_targets[word] and in_both[word] >= MOSTLY * in_sources[word]
    )


def _copies(target: list[int], places: list[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The longest runs of words of a target that stand in its source, each after the two tokens before it."""
    found, start = [], None
    for position, place in enumerate([*places, 0]):
        if place and start is None:
            start = position
        elif not place and start is not None:
            found.append((tuple(target[max(0, start - 2) : start]), tuple(target[start:position])))
            start = None
    return found
