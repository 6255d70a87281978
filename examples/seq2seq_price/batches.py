r"""Texts to token ids, ids to batches of rows of similar lengths, and ids back to texts.

Both sides use Keras's `TextVectorization` with a registered standardization. The default standardization would turn
`£20-25` into `£2025` and `isn't` into `isnt`; these keep every character.

Sources are lower-cased, and a run of punctuation is one token. Targets can be restored, up to the amount of white space:
their tokens are words and runs of punctuation, and a mark shows where a run is attached to its neighbor without a space
(`name[The Mill], area[riverside]` becomes `name ￭[￭ The Mill ￭], area ￭[￭ riverside ￭]`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from examples.seq2seq_price.model import END_ID, PADDING_ID

SPECIAL = ("<start>", "<end>")
JOINER = "￭"
Standardize = Callable[[tf.Tensor], tf.Tensor]
_WORD = r"[\pL\pM\pN_]"
_PUNCTUATION = r"[^\s\pL\pM\pN_]+"


class Examples(NamedTuple):
    """Rows as the model reads them: a target without a token is missing, and `labels` are those of the other heads."""

    texts: list[str]
    targets: list[str]
    labels: dict[str, Any]


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


def build_vocabulary(texts: Sequence[str], standardize: Standardize, *, least: int = 1) -> list[str]:
    """The special tokens, then those of the texts with at least `least` occurrences, the most frequent first.

    Rarer tokens become the unknown token, so that it is trained. Ids begin with 2.
    """
    tokens = tf.strings.split(standardize(tf.constant(texts))).flat_values
    counts = Counter(token.decode() for token in tokens.numpy())
    kept = [token for token, count in counts.items() if count >= least and token not in SPECIAL]
    return [*SPECIAL, *sorted(kept, key=lambda token: (-counts[token], token))]


def vocabularies(train: Examples) -> tuple[list[str], list[str]]:
    """Those of the sources and of the targets."""
    return build_vocabulary(train.texts, standardize_source, least=2), build_vocabulary(train.targets, standardize_target)


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
    """Converts target ids back to texts, with the result of `build_vocabulary`."""

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


class Vectorizers:
    """The layers that turn texts and targets into ids, from their vocabularies."""

    def __init__(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        self.source, self.target = vectorizer(sources, standardize_source), vectorizer(targets, standardize_target)

    def __call__(self, texts: Any, targets: Any) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Ragged int64 ids of sources and of targets, the latter with end ids."""
        return self.source(texts), append_end(self.target(targets))


def training_batches(
    examples: Examples, vectorizers: Vectorizers, batch_size: int, *, seed: int
) -> tuple[tf.data.Dataset, int]:
    """Batches of rows of similar lengths, reshuffled in every epoch, and their number per epoch.

    They are `(ids, {"reply": ids, **labels})`. The last batch of each of the up to eight buckets may be smaller.
    """
    sources, targets = vectorizers(examples.texts, examples.targets)
    lengths = sources.row_lengths().numpy()
    ends = 1 + np.unique(np.quantile(lengths, np.arange(1, 8) / 8).astype(int))
    rows = tf.data.Dataset.from_tensor_slices((sources, targets, examples.labels))
    batches = rows.shuffle(len(lengths), seed=seed).map(_as_vectors)
    batches = batches.bucket_by_sequence_length(
        lambda source, target, labels: tf.size(source), ends.tolist(), [batch_size] * (len(ends) + 1)
    )
    steps = int(np.ceil(np.bincount(np.searchsorted(ends, lengths, side="right")) / batch_size).sum())
    batches = batches.map(_as_batch).apply(tf.data.experimental.assert_cardinality(steps)).prefetch(4)
    return _without_tuner(batches), steps


def evaluation_batches(examples: Examples, vectorizers: Vectorizers, batch_size: int) -> tf.data.Dataset:
    """Batches as for training, but of all rows from short to long, in a fixed order."""
    sources, targets = vectorizers(examples.texts, examples.targets)
    order = tf.argsort(sources.row_lengths() + targets.row_lengths(), stable=True)
    rows = tf.nest.map_structure(lambda column: tf.gather(column, order), (sources, targets, examples.labels))
    data = tf.data.Dataset.from_tensor_slices(rows).map(_as_vectors)
    return _without_tuner(data.padded_batch(batch_size).map(_as_batch).cache())


def _without_tuner(batches: tf.data.Dataset) -> tf.data.Dataset:
    """The same batches without `tf.data`'s autotuner, which has nothing to tune here.

    At the end of an epoch it may miss the signal to stop, and keep waiting for as long as the epoch took, up to a minute.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.with_options(options)


def _as_vectors(source: tf.Tensor, target: tf.Tensor, labels: dict[str, tf.Tensor]) -> tuple[Any, ...]:
    """Rows of ragged ids as dense vectors."""
    return tf.ensure_shape(source, [None]), tf.ensure_shape(target, [None]), labels


def _as_batch(source: tf.Tensor, target: tf.Tensor, labels: dict[str, tf.Tensor]) -> tuple[Any, ...]:
    labels = {head: _with_a_step(label) for head, label in labels.items()}
    return tf.cast(source, tf.int32), {"reply": tf.cast(_with_a_step(target), tf.int32), **labels}


def _with_a_step(label: tf.Tensor) -> tf.Tensor:
    """A batch of labels; those of tokens have at least one step, as the encoder's outputs have, and so has a reply."""
    if label.shape.rank != 2 or label.shape[1]:
        return label
    return tf.pad(label, [[0, 0], [0, tf.maximum(0, 1 - tf.shape(label)[1])]])
