"""Names that a decoder learns to copy rather than to know.

A decoder that has seen a name in many rows can write it without looking at the source, together with what happens to go with
it, and fails at names that it has not seen. So names are replaced in source and target, in each epoch by others: by names of
other rows, or by unknown ones.

What a name is, is found in the training rows. A copy is what stands, word by word, in source and target; the two tokens
before it in the target are its context. Where a context precedes many different copies, as `name[` precedes 30 names but
`food[` seven kinds of food, the copies are names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from examples.seq2seq_price.model import UNKNOWN_ID

MANY = 7
"""So many different copies after a context are names: `1 / sum_c p_c^2`, where `p_c` is the fraction of copy `c`."""
MOST = 4
"""Names that are replaced in a row at most."""
KEPT, KNOWN = 0.8, 0.9
"""The fraction of rows whose names are kept, and of those whose names are kept or replaced by known ones."""

Span = tuple[int, ...]


class Rows(NamedTuple):
    """Integers of rows, ragged or, with 0 as padding, dense.

    Attributes:
        source: Ids of the source's tokens, `[rows, source tokens]`.
        words: The same tokens as `target` has them, `[rows, source tokens]`.
        target: Ids of the target's tokens, and the end id; a word without an id is a larger number, its own, in all rows,
            `[rows, target tokens]`.
    """

    source: Any
    words: Any
    target: Any


class Names:
    """The names in rows, and the same rows with others.

    Args:
        rows: The training rows, ragged.
        size: The number of ids of targets; words without an id are larger numbers.
        unknown: The ids that the words of targets have in sources if they are unknown there, `[size]`.

    Attributes:
        names: The names, as ids of targets.
        marked: The rows with a negative number in place of each name, -1 for the first of a row, and the names' positions in
            `names`, `[rows, MOST]`.
    """

    def __init__(self, rows: Rows, size: int, unknown: np.ndarray) -> None:
        lists = [list(row) for row in zip(*(part.to_list() for part in rows))]
        copies: defaultdict[Span, Counter[Span]] = defaultdict(Counter)
        for _, words, target in lists:
            for start, end in _copies(words, target):
                copies[_context(target, start)][tuple(target[start:end])] += 1
        open_contexts = {
            context
            for context, spans in copies.items()
            if spans.total() ** 2 >= MANY * sum(number**2 for number in spans.values())
        }
        numbers: dict[Span, int] = {}
        sources: dict[Span, Span] = {}
        marked, of_rows = [], np.zeros([len(lists), MOST], np.int32)
        for row, (source, words, target) in enumerate(lists):
            found: dict[Span, int] = {}
            for start, end in _copies(words, target):
                if _context(target, start) in open_contexts and len(found) < MOST:
                    found.setdefault(tuple(target[start:end]), -1 - len(found))
            for name, mark in found.items():
                at = _find(words, name)
                sources.setdefault(name, tuple(source[at : at + len(name)]))
                of_rows[row, -1 - mark] = numbers.setdefault(name, len(numbers))
                source = _marked(source, words, name, mark)
                words, target = (_marked(part, part, name, mark) for part in (words, target))
            marked.append((source, words, target))
        self.names = [*numbers]
        self.marked = Rows(*map(_ragged, zip(*marked))), of_rows
        in_names = Counter(word for name in self.names for word in set(name))
        # The name as it is and, in the second half, as an unknown one: without the words that only it has.
        hidden = [[word if in_names[word] > 1 else size + 2**41 + word for word in name] for name in self.names]
        as_unknown = [
            [read if in_names[word] > 1 else unknown[word] for read, word in zip(sources[name], name)] for name in self.names
        ]
        as_target = _ragged([*self.names, *hidden])
        as_source = _ragged([*(sources[name] for name in self.names), *as_unknown])
        self._as = Rows(as_source, as_target, as_target)

    def filled(self, rows: Rows, names: tf.Tensor, seed: tf.Tensor) -> Rows:
        """Dense rows of `marked` with names in place of the marks; `seed` has two numbers."""
        if not self.names:
            return rows
        number, shape = len(self.names), tf.shape(names)
        drawn = tf.random.stateless_uniform([shape[0], 1], seed)
        others = tf.random.stateless_uniform(shape, seed, maxval=number, dtype=tf.int32)
        names = tf.where(drawn < KEPT, names, tf.where(drawn < KNOWN, others, number + others))
        return Rows(*(_filled(part, names, pieces) for part, pieces in zip(rows, self._as)))


def _ragged(rows: Sequence[Sequence[int]]) -> tf.RaggedTensor:
    """Rows of integers; `tf.ragged.constant` takes minutes for tens of thousands of them."""
    values = np.fromiter(chain.from_iterable(rows), np.int64)
    return tf.RaggedTensor.from_row_lengths(values, np.array([len(row) for row in rows], np.int64))


def _filled(ids: tf.Tensor, names: tf.Tensor, pieces: tf.RaggedTensor) -> tf.Tensor:
    """Dense ids with the pieces of names in place of marks: each id becomes as many as its piece has."""
    ragged = tf.RaggedTensor.from_tensor(ids, padding=0)
    flat, rows = ragged.flat_values, ragged.value_rowids()
    is_mark = flat < 0
    piece = tf.gather_nd(names, tf.stack([rows, tf.where(is_mark, -1 - flat, 0)], axis=1))
    lengths = tf.where(is_mark, tf.gather(pieces.row_lengths(), piece), 1)
    starts = tf.repeat(tf.cumsum(lengths, exclusive=True), lengths)
    within = tf.range(tf.size(starts, tf.int64)) - starts
    first = tf.repeat(tf.where(is_mark, tf.gather(pieces.row_starts(), piece), 0), lengths)
    inside = tf.gather(pieces.flat_values, tf.where(tf.repeat(is_mark, lengths), first + within, 0))
    values = tf.where(tf.repeat(is_mark, lengths), inside, tf.repeat(flat, lengths))
    return tf.RaggedTensor.from_value_rowids(values, tf.repeat(rows, lengths), ragged.nrows()).to_tensor()


def placed(rows: Rows, size: int, places: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Copy ids and targets of dense rows: a word without an id has that of the place at which it stands first in the source.

    The ids from `size` on belong to so many places; a word at no such place is the unknown one.
    """
    first = [_first_place(part, rows.words) for part in (rows.words, rows.target)]
    unknown = tf.constant(UNKNOWN_ID, tf.int64)
    parts = zip((rows.words, rows.target), first)
    copy_ids, target = (tf.where(part < size, part, tf.where(at < places, size + at, unknown)) for part, at in parts)
    return copy_ids, target


def _first_place(tokens: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """The position at which each of some tokens `[batch, tokens]` stands first among words; a large number for none."""
    equal = tf.equal(tokens[:, :, tf.newaxis], words[:, tf.newaxis])
    first = tf.argmax(tf.pad(tf.cast(equal, tf.int8), [[0, 0], [0, 0], [0, 1]]), axis=2)
    return tf.where(tf.reduce_any(equal, axis=2), first, tf.int64.max // 2)


def _copies(words: Sequence[int], target: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where the longest copies begin and end in a target: runs that stand in the source's words, from left to right."""
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, word in enumerate(words):
        places[word].append(place)
    start = 0
    while start < len(target):
        ends = [_run(words, place, target, start) for place in places.get(target[start], ())]
        if ends:
            yield start, max(ends)
        start = max(ends, default=start + 1)


def _run(words: Sequence[int], place: int, target: Sequence[int], start: int) -> int:
    """The end in a target of the run from a start that equals words from a place on."""
    end = start
    while place < len(words) and end < len(target) and words[place] == target[end]:
        place, end = place + 1, end + 1
    return end


def _context(target: Sequence[int], start: int) -> Span:
    return tuple(target[max(0, start - 2) : start])


def _find(words: Sequence[int], name: Span, start: int = 0) -> int:
    """The position of a name in a row from a start on; -1 if it is not there."""
    return next((at for at in range(start, len(words) - len(name) + 1) if tuple(words[at : at + len(name)]) == name), -1)


def _marked(ids: Sequence[int], words: Sequence[int], name: Span, mark: int) -> list[int]:
    """Ids with a mark in place of those of each occurrence of a name in the words beside them."""
    marked, start = [], 0
    while (at := _find(words, name, start)) >= 0:
        marked += [*ids[start:at], mark]
        start = at + len(name)
    return [*marked, *ids[start:]]
