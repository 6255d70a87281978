r"""Converts texts to token ids and back.

Both sides use Keras's `TextVectorization` with a registered standardization. The default standardization would turn
`£20-25` into `£2025` and `isn't` into `isnt`; these keep every character.

Sources are lower-cased, and a run of punctuation is one token. Targets can be restored, up to the amount of white space:
their tokens are words and runs of punctuation, and a mark shows where a run is attached to its neighbor without a space
(`name[The Mill], area[riverside]` becomes `name ￭[￭ The Mill ￭], area ￭[￭ riverside ￭]`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

PADDING_ID, UNKNOWN_ID, START_ID, END_ID = range(4)
SPECIAL = ("<start>", "<end>")
JOINER = "￭"
_WORD = r"[\pL\pM\pN_]"
_PUNCTUATION = r"[^\s\pL\pM\pN_]+"


class Examples(NamedTuple):
    """Rows as the model reads them.

    Attributes:
        texts: Source texts.
        targets: Target texts.
        labels: Class numbers of the price ranges, int32 `[rows]`.
        additional: The targets of each additional head, by its name.
    """

    texts: list[str]
    targets: list[str]
    labels: np.ndarray
    additional: Mapping[str, Any] = MappingProxyType({})


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


def count_tokens(texts: Sequence[str], standardize: Callable[[tf.Tensor], tf.Tensor]) -> Counter[str]:
    """Counts the tokens of texts."""
    counts: Counter[str] = Counter()
    for start in range(0, len(texts), 4096):
        tokens = tf.strings.split(standardize(tf.constant(texts[start : start + 4096]))).flat_values
        counts.update(token.decode() for token in tokens.numpy())
    return counts


def longest(texts: Sequence[str], standardize: Callable[[tf.Tensor], tf.Tensor]) -> int:
    """The number of tokens in the longest of at least one text."""
    return int(tf.reduce_max(tf.strings.split(standardize(tf.constant(texts))).row_lengths()))


def build_vocabulary(texts: Sequence[str], standardize: Callable[[tf.Tensor], tf.Tensor], *, least: int = 1) -> list[str]:
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


def vectorizer(vocabulary: Sequence[str], standardize: Callable[[tf.Tensor], tf.Tensor]) -> keras.layers.Layer:
    """A layer that converts texts `[batch]` to token ids, ragged int64 `[batch, time]`."""
    return keras.layers.TextVectorization(
        standardize=standardize, split="whitespace", vocabulary=list(vocabulary), ragged=True
    )


def append_end(ids: tf.RaggedTensor) -> tf.RaggedTensor:
    """Appends the end id to each row of target ids."""
    ends = tf.fill([ids.nrows(), 1], tf.constant(END_ID, ids.dtype))
    return tf.concat([ids, ends], axis=1)


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
