"""The ids of sequences: padding, where they start and end, and targets that a decoder can learn to write."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ._checks import check_count, check_id, check_rate


class AbstractDecoder(keras.layers.Layer):
    """What decoders have in common: their sizes, their ids, and the rules for their targets.

    Args:
        vocabulary_size: Number of token ids, padding included.
        embedding_size: Size of a token's vector.
        units: Size of a layer's state or result.
        num_layers: Number of layers.
        dropout: A dropout rate.
        start_id: The id that precedes the first token.
        end_id: The id that ends a sequence.
        padding_id: The id of padding.
        maximum_length: Number of ids that `generate` returns, and the most that a row of targets may have.
        name: Name of the layer.
        dtype: Dtype or dtype policy.

    Raises:
        ValueError: If an argument is out of its range, or `padding_id` equals `end_id`.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_size: int,
        units: int,
        *,
        num_layers: int,
        dropout: float,
        start_id: int,
        end_id: int,
        padding_id: int,
        maximum_length: int,
        name: str | None,
        dtype: Any,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.vocabulary_size = check_count("vocabulary_size", vocabulary_size)
        self.embedding_size = check_count("embedding_size", embedding_size)
        self.units = check_count("units", units)
        self.num_layers = check_count("num_layers", num_layers)
        self.dropout = check_rate("dropout", dropout)
        self.start_id = check_id("start_id", start_id, vocabulary_size)
        self.end_id = check_id("end_id", end_id, vocabulary_size)
        self.padding_id = check_id("padding_id", padding_id, vocabulary_size)
        self.maximum_length = check_count("maximum_length", maximum_length)
        if end_id == padding_id:
            raise ValueError(
                "`padding_id` must not be `end_id`, or no reply would learn to end. Received: "
                f"padding_id={padding_id}, end_id={end_id}. Pad the rows after their end id with another id."
            )

    def target_problems(self, targets: tf.Tensor, present: tf.Tensor) -> list[tuple[tf.Tensor, str, str]]:
        """Rules for targets that the decoder can learn to write; a trainer checks them where it reads the data.

        Args:
            targets: Integer ids, `[batch, time]`.
            present: Which of the targets are tokens, not padding, bool `[batch, time]`.

        Returns:
            A tuple for each rule: which rows break the rule, bool `[batch]`; what the targets must do; the remedy.
        """
        start, end, longest = self.start_id, self.end_id, self.maximum_length
        starts, ends = (tf.logical_and(present, tf.equal(targets, tf.cast(each, targets.dtype))) for each in (start, end))
        has_ended = tf.cumsum(tf.cast(ends, tf.int32), axis=1, exclusive=True) > 0
        lengths = tf.reduce_sum(tf.cast(present, tf.int32), axis=1)
        is_open = tf.logical_and(~tf.reduce_any(ends, axis=1), tf.logical_and(lengths > 0, lengths < longest))
        found = [
            (
                tf.reduce_any(tf.logical_and(present[:, 1:], ~present[:, :-1]), axis=1),
                "have padding at the end of each row only",
                'Pad with `keras.utils.pad_sequences(rows, padding="post")`. A token of sample weight 0 is padding, too.',
            ),
            (
                tf.reduce_any(tf.logical_and(present, has_ended), axis=1),
                f"have only padding after the end id, {end}",
                "Cut each row after its first end id, leave out an end id in front, or correct `end_id`.",
            ),
            (
                is_open,
                f"have the end id, {end}, at the end of each row with fewer than `maximum_length` ({longest}) ids",
                "Append it to the rows, or correct `end_id` or `maximum_length`.",
            ),
            (
                lengths > longest,
                f"have at most `maximum_length` ({longest}) ids in each row, the end id included: `generate` writes no more",
                "Cut the rows, or build the decoder with a larger `maximum_length`.",
            ),
        ]
        if start != end:  # else it may stand at the end
            rule = f"not contain the start id, {start}, which the decoder itself puts in front of each row and never writes"
            found.insert(0, (tf.reduce_any(starts, axis=1), rule, "Pass `targets[:, 1:]`, or correct `start_id`."))
        return found

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments that all decoders have."""
        return {
            "vocabulary_size": self.vocabulary_size,
            "embedding_size": self.embedding_size,
            "units": self.units,
            "num_layers": self.num_layers,
            "dropout": self.dropout,
            "start_id": self.start_id,
            "end_id": self.end_id,
            "padding_id": self.padding_id,
            "maximum_length": self.maximum_length,
            "name": self.name,
            "dtype": self.dtype_policy.name,
        }

    def _length(self, maximum_length: int | None) -> int:
        return self.maximum_length if maximum_length is None else maximum_length


def with_a_step(tokens: tf.Tensor, padding_id: int) -> tf.Tensor:
    """The tokens, with one step of padding if there are none."""
    if tokens.shape[1]:
        return tokens
    missing = tf.maximum(0, 1 - tf.shape(tokens)[1])
    return tf.pad(tokens, [[0, 0], [0, missing]], constant_values=tf.cast(padding_id, tokens.dtype))


def mask_of_tokens(tokens: tf.Tensor, padding_id: int) -> tf.Tensor:
    """True at tokens that are not padding, and at the first step of a row without any."""
    mask = tf.not_equal(tokens, tf.cast(padding_id, tokens.dtype))
    is_first = tf.equal(tf.range(tf.shape(tokens)[1]), 0)
    return tf.logical_or(mask, tf.logical_and(is_first, ~tf.reduce_any(mask, axis=1, keepdims=True)))


def places_of(mask: tf.Tensor) -> tf.Tensor:
    """The number of tokens before each step, int32, shaped as the mask; -1 at padding before the first token."""
    return tf.cumsum(tf.cast(mask, tf.int32), axis=1) - 1
