"""Padding of token ids, wherever it stands in a row."""

from __future__ import annotations

import tensorflow as tf


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
