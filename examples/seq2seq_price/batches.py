r"""Texts to token ids, ids to batches of rows of similar lengths, and ids back to texts.

Both sides use Keras's `TextVectorization` with a registered standardization. The default standardization would turn
`£20-25` into `£2025` and `isn't` into `isnt`; these keep every character.

Sources are lower-cased, and a run of punctuation is one token. Targets can be restored, up to the amount of white space:
their tokens are words and runs of punctuation, and a mark shows where a run is attached to its neighbor without a space
(`name[The Mill], area[riverside]` becomes `name ￭[￭ The Mill ￭], area ￭[￭ riverside ￭]`).

The values of a column can be swapped at random in sources and targets, every time the rows are read. A model should copy
names, not know them: trained on swapped names, it cannot learn what happens to correlate with them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

PADDING_ID, UNKNOWN_ID, START_ID, END_ID = range(4)
SPECIAL = ("<start>", "<end>")
JOINER = "￭"
NUM_BUCKETS = (8, 1)
"""Rows are batched with rows of similar source length; see `buckets_by_length`. Finer buckets need less padding, but make
batches less diverse: with (8, 3), a fifth of the ids are padding instead of a quarter, and on real files the decoder made
a tenth more errors (slot F1 0.988 instead of 0.989)."""
BLOCK_ROWS = 512
"""Rows whose values are swapped at once."""
Standardize = Callable[[tf.Tensor], tf.Tensor]
_WORD = r"[\pL\pM\pN_]"
_PUNCTUATION = r"[^\s\pL\pM\pN_]+"


class Examples(NamedTuple):
    """Rows as the model reads them.

    Attributes:
        texts: Source texts.
        targets: Target texts; without a token, there is none.
        labels: Class numbers of the price ranges, int32 `[rows]`.
        additional: The targets of each additional head, by its name.
    """

    texts: list[str]
    targets: list[str]
    labels: np.ndarray
    additional: Mapping[str, Any] = MappingProxyType({})

    @property
    def by_head(self) -> dict[str, Any]:
        """The targets of all heads except the reply."""
        return {"price": self.labels, **self.additional}


@keras.saving.register_keras_serializable(package="seq2seq_price")
def standardize_source(texts: tf.Tensor) -> tf.Tensor:
    """Lower-cases UTF-8 strings of any shape and puts spaces around runs of punctuation."""
    return tf.strings.regex_replace(tf.strings.lower(texts, encoding="utf-8"), f"({_PUNCTUATION})", r" \1 ")


@keras.saving.register_keras_serializable(package="seq2seq_price")
def standardize_target(texts: tf.Tensor) -> tf.Tensor:
    """Separates words and runs of punctuation by spaces, with marks where there was none; strings of any shape."""
    for pattern, rewrite in (
        (JOINER, "■"),  # the mark itself, if it occurs in a text
        (f"({_PUNCTUATION})", rf"{JOINER}\1{JOINER}"),
        (rf"{JOINER}(\s|$)", r"\1"),
        (rf"(^|\s){JOINER}", r"\1"),
        (f"({_WORD}){JOINER}", rf"\1 {JOINER}"),
        (f"{JOINER}({_WORD})", rf"{JOINER} \1"),
    ):
        texts = tf.strings.regex_replace(texts, pattern, rewrite)
    return texts


def tokens_per_word(texts: Sequence[str]) -> list[list[int]]:
    """For each whitespace-separated word of source texts, the number of its tokens."""
    words = tf.strings.split(tf.constant(texts, tf.string))
    tokens = tf.strings.split(standardize_source(words.flat_values)).row_lengths()
    return words.with_flat_values(tokens).to_list()


def count_tokens(texts: Sequence[str], standardize: Standardize) -> Counter[str]:
    """Counts the tokens of texts."""
    counts: Counter[str] = Counter()
    for start in range(0, len(texts), 4096):
        tokens = tf.strings.split(standardize(tf.constant(texts[start : start + 4096]))).flat_values
        counts.update(token.decode() for token in tokens.numpy())
    return counts


def longest(texts: Sequence[str], standardize: Standardize) -> int:
    """The number of tokens in the longest of at least one text."""
    return int(tf.reduce_max(tf.strings.split(standardize(tf.constant(texts))).row_lengths()))


def build_vocabulary(texts: Sequence[str], standardize: Standardize, *, least: int = 1) -> list[str]:
    """Tokens of the training texts, the most frequent first.

    Args:
        texts: The training texts.
        standardize: `standardize_source` or `standardize_target`.
        least: The minimum number of occurrences of a token. Rarer tokens become the unknown token, so that it is trained.

    Returns:
        The tokens with ids from 2, for `vectorizer`: the special tokens, then those of the texts.
    """
    counts = count_tokens(texts, standardize)
    kept = [token for token, count in counts.items() if count >= least and token not in SPECIAL]
    return [*SPECIAL, *sorted(kept, key=lambda token: (-counts[token], token))]


def vectorizer(vocabulary: Sequence[str], standardize: Standardize) -> keras.layers.Layer:
    """A layer that converts texts `[batch]` to token ids, ragged int64 `[batch, time]`."""
    return keras.layers.TextVectorization(
        standardize=standardize, split="whitespace", vocabulary=list(vocabulary), ragged=True
    )


def append_end(ids: tf.RaggedTensor) -> tf.RaggedTensor:
    """Appends the end id to each row of target ids; a row without ids has no target, and remains as it is."""
    has_target = ids.row_lengths() > 0
    ends = tf.fill([tf.math.count_nonzero(has_target)], tf.constant(END_ID, ids.dtype))
    return tf.concat([ids, tf.RaggedTensor.from_row_lengths(ends, tf.cast(has_target, tf.int64))], axis=1)


class TargetReader:
    """Converts target ids back to texts.

    Args:
        vocabulary: The result of `build_vocabulary`.
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._tokens = tf.constant(["", "[UNK]", *vocabulary])

    def __call__(self, ids: tf.Tensor) -> list[str]:
        """Texts of ids `[batch, time]`, each read up to its end id."""
        return [text.decode() for text in self.read(ids).numpy()]

    def read(self, ids: tf.Tensor) -> tf.Tensor:
        """The same as a string tensor `[batch]`."""
        ended = tf.cumsum(tf.cast(tf.equal(ids, END_ID), tf.int32), axis=1) > 0
        tokens = tf.gather(self._tokens, tf.where(ended, PADDING_ID, ids))
        texts = tf.strings.regex_replace(tf.strings.reduce_join(tokens, axis=1, separator=" "), " +$", "")
        return tf.strings.regex_replace(texts, f" ?{JOINER} ?", "")

    def tokens(self, ids: tf.Tensor) -> list[str]:
        """The tokens of one text's ids `[time]`, up to and including its end, without marks."""
        tokens: list[str] = []
        for number, token in zip(ids.numpy(), tf.gather(self._tokens, ids).numpy()):
            if number == PADDING_ID:
                break
            tokens.append(token.decode().replace(JOINER, ""))
            if number == END_ID:
                break
        return tokens


@dataclass(frozen=True)
class Vectorizers:
    """The layers that turn texts and targets into ids."""

    source: keras.layers.Layer
    target: keras.layers.Layer

    def __call__(self, texts: Any, targets: Any) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Ragged int64 ids of sources and of targets, the latter with end ids."""
        return self.source(texts), append_end(self.target(targets))


def training_batches(
    examples: Examples,
    vectorizers: Vectorizers,
    batch_size: int,
    *,
    seed: int,
    swaps: Sequence[Sequence[str]] = (),
) -> tuple[tf.data.Dataset, int]:
    """Batches of rows of similar lengths, reshuffled in every epoch.

    Args:
        examples: The training rows.
        vectorizers: The layers that convert texts to ids.
        batch_size: Rows per batch; the last batch of each bucket may be smaller.
        seed: Random seed for the order and the swaps.
        swaps: For each column whose values are swapped, its value in every row.

    Returns:
        The dataset of batches `(ids, {"reply": ids, "price": labels, **additional})`, and the number of batches per epoch.
    """
    swapping = None
    if swaps:
        swapping = Swapping(examples.texts, examples.targets, swaps, vectorizers.source, vectorizers.target)
    sources, targets = vectorizers(examples.texts, examples.targets) if swapping is None else swapping.marked
    # Lengths with placeholders, so that every epoch has the same number of batches.
    buckets = buckets_by_length(sources.row_lengths().numpy(), targets.row_lengths().numpy(), NUM_BUCKETS)
    rows = tf.data.Dataset.from_tensor_slices((sources, targets, examples.by_head, buckets))
    rows = rows.shuffle(len(buckets), seed=seed)
    if swapping is not None:
        rows = swapping.fill(rows, seed=seed)
    batches = rows.map(_as_vectors).bucket_by_sequence_length(
        lambda source, target, label, bucket: bucket,
        bucket_boundaries=list(range(1, max(buckets) + 1)),
        bucket_batch_sizes=[batch_size] * (max(buckets) + 1),
    )
    steps = int(np.ceil(np.bincount(buckets) / batch_size).sum())
    batches = batches.map(_as_batch).apply(tf.data.experimental.assert_cardinality(steps)).prefetch(4)
    return _without_tuner(batches), steps


def buckets_by_length(sources: np.ndarray, targets: np.ndarray, numbers: tuple[int, int]) -> np.ndarray:
    """Assigns rows to buckets of about equal size by source length, and within each of them by target length.

    Args:
        sources: Source lengths, `[rows]`.
        targets: Target lengths, `[rows]`.
        numbers: The number of buckets by source length, and within each of them by target length. There are fewer if many
            lengths are equal.

    Returns:
        Bucket indices from 0, int32 `[rows]`.
    """

    def shares(lengths: np.ndarray, number: int) -> np.ndarray:
        return np.searchsorted(np.unique(np.quantile(lengths, np.arange(1, number) / number)), lengths)

    buckets = shares(sources, numbers[0]) * numbers[1]
    for first in np.unique(buckets):
        members = buckets == first
        buckets[members] += shares(targets[members], numbers[1])
    return buckets.astype(np.int32)


def evaluation_batches(examples: Examples, vectorizers: Vectorizers, batch_size: int) -> tf.data.Dataset:
    """Batches as for training, but of all rows from short to long, in a fixed order."""
    sources, targets = vectorizers(examples.texts, examples.targets)
    order = tf.argsort(sources.row_lengths() + targets.row_lengths(), stable=True)
    columns = (sources, targets, examples.by_head)
    rows = tf.nest.map_structure(lambda column: tf.gather(column, order), columns)
    data = tf.data.Dataset.from_tensor_slices((*rows, np.zeros(len(examples.texts), np.int32))).map(_as_vectors)
    return _without_tuner(data.padded_batch(batch_size).map(_as_batch).cache())


def padding_share(batches: tf.data.Dataset) -> float:
    """The fraction of padding among all source and target ids of an epoch."""
    used = total = 0
    for source, targets in batches.as_numpy_iterator():
        for ids in (source, targets["reply"]):
            used += np.count_nonzero(ids)
            total += ids.size
    return 1.0 - used / total


def _without_tuner(batches: tf.data.Dataset) -> tf.data.Dataset:
    """The same batches without `tf.data`'s autotuner, which has nothing to tune here.

    At the end of an epoch it may miss the signal to stop, and keep waiting for as long as the epoch took, up to a minute.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.with_options(options)


def _as_vectors(source: tf.Tensor, target: tf.Tensor, labels: dict[str, tf.Tensor], bucket: tf.Tensor) -> tuple[Any, ...]:
    """Rows of ragged ids as dense vectors."""
    return tf.ensure_shape(source, [None]), tf.ensure_shape(target, [None]), labels, bucket


def _as_batch(
    source: tf.Tensor, target: tf.Tensor, labels: dict[str, tf.Tensor], bucket: tf.Tensor
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    labels = {head: _with_a_step(label) for head, label in labels.items()}
    return tf.cast(source, tf.int32), {"reply": tf.cast(_with_a_step(target), tf.int32), **labels}


def _with_a_step(label: tf.Tensor) -> tf.Tensor:
    """A batch of labels; those of tokens have at least one step, as the encoder's outputs have, and so has a reply."""
    if label.shape.rank != 2 or label.shape[1]:
        return label
    return tf.pad(label, [[0, 0], [0, tf.maximum(0, 1 - tf.shape(label)[1])]])


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
        self._texts = _Pieces(read_text, standardize_source, marks, choices)
        self._targets = _Pieces(read_target, standardize_target, marks, choices)
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
        return (self._texts.fill(texts, drawn), append_end(self._targets.fill(targets, drawn)), *others)


class _Pieces:
    """The replacement of each id: an id of the vocabulary is kept, a placeholder becomes the ids of one of its values."""

    def __init__(
        self, reader: keras.layers.Layer, standardize: Standardize, marks: list[str], choices: list[list[str]]
    ) -> None:
        words = reader.get_vocabulary()[2:]
        self.read = vectorizer([*words, *marks], standardize)
        self._first_mark = len(words) + 2
        pieces = [tf.RaggedTensor.from_tensor(tf.range(self._first_mark, dtype=tf.int64)[:, tf.newaxis])]
        self._starts = []
        for values in choices:
            self._starts.append(sum(int(each.nrows()) for each in pieces))
            pieces += [reader(values)] if values else []
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
