r"""Texts to token ids, ids to batches of rows of similar lengths, and ids back to texts.

Both sides use Keras's `TextVectorization` with a registered standardization. The default standardization would turn
`£20-25` into `£2025` and `isn't` into `isnt`; these keep every character.

Sources are lower-cased, and a run of punctuation is one token. Targets can be restored, up to the amount of white space:
their tokens are words and runs of punctuation, and a mark shows where a run is attached to its neighbor without a space
(`name[The Mill], area[riverside]` becomes `name ￭[￭ The Mill ￭], area ￭[￭ riverside ￭]`).

Words without an id can be copied: an unknown word of a target has the id of its place in the source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from examples.seq2seq_price.copying import Names, Rows, placed
from examples.seq2seq_price.model import CAPITALIZED_ID, END_ID, NUMBER_ID, PADDING_ID, UNKNOWN_ID

SPECIAL = ("<start>", "<end>")
"""Tokens of targets that no text has. In sources, which have no use for them, their ids are those of unknown words with
capitals, which are often names, and of unknown numbers."""
JOINER = "￭"
Standardize = Callable[[tf.Tensor], tf.Tensor]
Inputs = Any
"""The encoder's: ids, or a dict of `tokens` and `copy_ids`."""
_WORD = r"[\pL\pM\pN_]"
_PUNCTUATION = r"[^\s\pL\pM\pN_]+"


class Examples(NamedTuple):
    """Rows as the model reads them: a target without a token is missing, and `labels` are those of the other heads."""

    texts: list[str]
    targets: list[str]
    labels: dict[str, Any]

    def at_most(self, number: int) -> Examples:
        """At most so many rows, evenly spaced."""
        step = -(-len(self.texts) // number)
        return Examples(self.texts[::step], self.targets[::step], {head: rows[::step] for head, rows in self.labels.items()})


def separate(texts: tf.Tensor) -> tf.Tensor:
    """Puts spaces around runs of punctuation."""
    return tf.strings.regex_replace(texts, f"({_PUNCTUATION})", r" \1 ")


@keras.saving.register_keras_serializable(package="seq2seq_price")
def standardize_source(texts: tf.Tensor) -> tf.Tensor:
    """Lower-cases UTF-8 strings of any shape and puts spaces around runs of punctuation."""
    return tf.strings.lower(separate(texts), encoding="utf-8")


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


def build_vocabulary(texts: Sequence[str], standardize: Standardize, *, least: int = 1) -> list[str]:
    """The special tokens, then those of the texts with at least `least` occurrences, the most frequent first.

    Rarer tokens become the unknown token, so that it is trained. Ids begin with 2.
    """
    tokens = tf.strings.split(standardize(tf.constant(texts))).flat_values
    counts = Counter(token.decode() for token in tokens.numpy())
    kept = [token for token, count in counts.items() if count >= least and token not in SPECIAL]
    return [*SPECIAL, *sorted(kept, key=lambda token: (-counts[token], token))]


RARE = 3000
"""A word that stands fewer than once in so many sources is an unknown one."""


def vocabularies(train: Examples) -> tuple[list[str], list[str]]:
    """Those of the sources and of the targets.

    A word of sources stands in them twice or more, and at least once in `RARE` of them. A rarer one would have a vector that
    hardly any row has trained, and be copied worse than a word that no row has.
    """
    least = max(2, len(train.texts) // RARE)
    return build_vocabulary(train.texts, standardize_source, least=least), build_vocabulary(
        train.targets, standardize_target
    )


class TextStatistics(NamedTuple):
    """What the texts of rows are like.

    Attributes:
        long_source: The number of tokens that nine tenths of the sources do not exceed.
        longest_source: The largest number of tokens of a source.
        longest_target: The largest number of tokens of a target.
        copied: The fraction of the targets' words that stand in their sources.
    """

    long_source: int
    longest_source: int
    longest_target: int
    copied: float


def statistics_of(examples: Examples) -> TextStatistics:
    """The statistics of rows."""
    sources, targets = (
        [[token.decode() for token in tokens] for tokens in tf.strings.split(standardize(tf.constant(texts))).to_list()]
        for standardize, texts in ((separate, examples.texts), (standardize_target, examples.targets))
    )
    stands = [token in set(source) for source, target in zip(sources, targets) for token in target if token[0].isalnum()]
    lengths = np.array([len(source) for source in sources])
    longest = max(len(target) for target in targets)
    copied = float(np.mean(stands)) if stands else 0.0
    return TextStatistics(int(np.quantile(lengths, 0.9)), int(lengths.max()), longest, copied)


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


def unknown_ids(words: tf.Tensor) -> tf.Tensor:
    """The ids of unknown words in sources, int64 in the shape of the words, by the letters and digits in them."""
    ids = tf.where(tf.strings.regex_full_match(words, r".*\pN.*"), tf.constant(NUMBER_ID, tf.int64), UNKNOWN_ID)
    return tf.where(tf.strings.regex_full_match(words, r"\p{Lu}.*"), tf.constant(CAPITALIZED_ID, tf.int64), ids)


class Vectorizers:
    """Turn texts and targets into ids by their vocabularies, and ids of targets into texts.

    With `copy_ids`, a word that the vocabulary of the targets lacks has the id of its place in the source; there are so many
    of these ids, after those of the vocabulary. Otherwise all unknown words have one id; those of sources have three.
    """

    def __init__(self, sources: Sequence[str], targets: Sequence[str], copy_ids: int | None = None) -> None:
        self.source, self.target = vectorizer(sources, standardize_source), vectorizer(targets, standardize_target)
        self.copy_ids = copy_ids
        self.size = len(targets) + 2
        self._tokens = tf.constant(["", "[UNK]", *targets])

    def __call__(self, texts: Any, targets: Any) -> Rows:
        """Ragged ids of rows."""
        words, written = tf.strings.split(separate(texts)), tf.strings.split(standardize_target(targets))
        source = _with_unknown(self.source(texts), unknown_ids(words.flat_values))
        target = append_end(self._own(written, self.target(targets)))
        return Rows(source, self._own(words, words.with_flat_values(self.target(words.flat_values).flat_values)), target)

    @property
    def unknown(self) -> np.ndarray:
        """The ids that the words of targets, by their own ids, have in sources if they are unknown there."""
        return unknown_ids(self._tokens).numpy()

    def inputs(self, texts: tf.Tensor) -> Inputs:
        """The encoder's inputs for texts `[batch]`."""
        rows = self(texts, tf.fill(tf.shape(texts), ""))
        return self.batch(Rows(*(part.to_tensor() for part in rows)))[0]

    def batch(self, rows: Rows) -> tuple[Inputs, tf.Tensor]:
        """The encoder's inputs and the targets, int32 `[batch, time]` with a step at least, of dense rows."""
        copy_ids, target = placed(rows, self.size, self.copy_ids or 0)
        source, copy_ids, target = (tf.cast(_with_a_step(ids), tf.int32) for ids in (rows.source, copy_ids, target))
        return (source if self.copy_ids is None else {"tokens": source, "copy_ids": copy_ids}), target

    def texts(self, ids: tf.Tensor, sources: tf.Tensor) -> tf.Tensor:
        """The texts of targets, strings `[batch]`, from their ids `[batch, time]`, up to end ids, and the sources' texts."""
        joined = tf.strings.reduce_join(self.tokens(ids, sources), axis=1, separator=" ")
        return tf.strings.regex_replace(tf.strings.regex_replace(joined, " +$", ""), f" ?{JOINER} ?", "")

    def tokens(self, ids: tf.Tensor, sources: tf.Tensor) -> tf.Tensor:
        """The tokens of targets, strings `[batch, time]`, "" from the end id on; arguments as of `texts`."""
        ended = tf.cumsum(tf.cast(tf.equal(ids, END_ID), tf.int32), axis=1) > 0
        ids, size = tf.where(ended, PADDING_ID, ids), self.size
        tokens = tf.gather(self._tokens, tf.minimum(ids, size - 1))
        if self.copy_ids:
            words = tf.strings.split(separate(sources)).to_tensor(shape=[None, self.copy_ids])
            tokens = tf.where(ids < size, tokens, tf.gather(words, tf.maximum(ids - size, 0), batch_dims=1))
        return tokens

    def _own(self, tokens: tf.RaggedTensor, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Ids of tokens; unknown ones have numbers of their own."""
        return _with_unknown(ids, self.size + tf.strings.to_hash_bucket_fast(tokens.flat_values, 2**40))


def _with_unknown(ids: tf.RaggedTensor, others: tf.Tensor) -> tf.RaggedTensor:
    """Ids with others, one for each value, in place of the unknown one."""
    return ids.with_flat_values(tf.where(tf.equal(ids.flat_values, UNKNOWN_ID), others, ids.flat_values))


def training_batches(
    examples: Examples, vectorizers: Vectorizers, batch_size: int, *, seed: int
) -> tuple[tf.data.Dataset, int]:
    """Batches of rows of similar lengths, of source or target, reshuffled in every epoch, and their number per epoch.

    They are `(inputs, {"reply": ids, **labels})`. The last batch of each of the up to eight buckets may be smaller. If words
    are copied, the rows have other names in every epoch.
    """
    ids = vectorizers(examples.texts, examples.targets)
    names = Names(ids, vectorizers.size, vectorizers.unknown) if vectorizers.copy_ids else None
    ids, of_rows = (ids, np.zeros([len(examples.texts), 0], np.int32)) if names is None else names.marked
    lengths = np.maximum(ids.source.row_lengths(), ids.target.row_lengths())
    ends = 1 + np.unique(np.quantile(lengths, np.arange(1, 8) / 8).astype(int))
    rows = tf.data.Dataset.from_tensor_slices((ids, of_rows, examples.labels))
    batches = rows.shuffle(len(lengths), seed=seed).map(_as_vectors)
    batches = batches.bucket_by_sequence_length(
        lambda ids, of_row, labels: tf.maximum(tf.size(ids.source), tf.size(ids.target)),
        ends.tolist(),
        [batch_size] * (len(ends) + 1),
    )
    steps = int(np.ceil(np.bincount(np.searchsorted(ends, lengths, side="right")) / batch_size).sum())
    draws = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).batch(2)

    def finished(batch: tuple[Any, ...], draw: tf.Tensor) -> tuple[Any, ...]:
        ids, of_batch, labels = batch
        return _as_batch(vectorizers, ids if names is None else names.filled(ids, of_batch, draw), labels)

    batches = tf.data.Dataset.zip((batches, draws)).map(finished)
    return _without_tuner(batches.apply(tf.data.experimental.assert_cardinality(steps)).prefetch(4)), steps


def evaluation_batches(examples: Examples, vectorizers: Vectorizers, batch_size: int) -> tf.data.Dataset:
    """Batches as for training, but of all rows from short to long, in a fixed order, with their own names."""
    ids = vectorizers(examples.texts, examples.targets)
    order = tf.argsort(ids.source.row_lengths() + ids.target.row_lengths(), stable=True)
    rows = tf.nest.map_structure(lambda column: tf.gather(column, order), (ids, examples.labels))
    data = tf.data.Dataset.from_tensor_slices((rows[0], np.zeros([len(examples.texts), 0], np.int32), rows[1]))
    data = data.map(_as_vectors).padded_batch(batch_size)
    return _without_tuner(data.map(lambda ids, of_batch, labels: _as_batch(vectorizers, ids, labels)).cache())


def _without_tuner(batches: tf.data.Dataset) -> tf.data.Dataset:
    """The same batches without `tf.data`'s autotuner, which has nothing to tune here.

    At the end of an epoch it may miss the signal to stop, and keep waiting for as long as the epoch took, up to a minute.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.with_options(options)


def _as_vectors(ids: Rows, names: tf.Tensor, labels: dict[str, tf.Tensor]) -> tuple[Any, ...]:
    """Rows of ragged ids as dense vectors."""
    return Rows(*(tf.ensure_shape(row, [None]) for row in ids)), names, labels


def _as_batch(vectorizers: Vectorizers, ids: Rows, labels: dict[str, tf.Tensor]) -> tuple[Any, ...]:
    inputs, target = vectorizers.batch(ids)
    return inputs, {"reply": target, **{head: _with_a_step(label) for head, label in labels.items()}}


def _with_a_step(label: tf.Tensor) -> tf.Tensor:
    """A batch of labels; those of tokens have at least one step, as the encoder's outputs have, and so has a reply."""
    if label.shape.rank != 2 or label.shape[1]:
        return label
    return tf.pad(label, [[0, 0], [0, tf.maximum(0, 1 - tf.shape(label)[1])]])
