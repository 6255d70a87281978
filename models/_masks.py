"""Padding of token ids, id 0 at the end of a row."""

from __future__ import annotations

import tensorflow as tf


def with_a_step(tokens: tf.Tensor) -> tf.Tensor:
    """The tokens, with one step of padding if there are none."""
    if tokens.shape[1]:
        return tokens
    return tf.pad(tokens, [[0, 0], [0, tf.maximum(0, 1 - tf.shape(tokens)[1])]])


def mask_of_tokens(tokens: tf.Tensor) -> tf.Tensor:
    """True up to each row's last token that is not padding, and always at its first step."""
    steps = tf.range(1, tf.shape(tokens)[1] + 1)
    lengths = tf.reduce_max(tf.where(tf.not_equal(tokens, 0), steps, 1), axis=1)
    return tf.sequence_mask(lengths, tf.shape(tokens)[1])
