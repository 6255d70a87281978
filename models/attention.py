"""Attention over an encoder's outputs, for any number of queries per example at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ._recurrent import build_layer

KINDS = ("luong", "bahdanau", None)


class Memory(NamedTuple):
    """What attention reads, prepared once per batch.

    Attributes:
        values: Encoder outputs, zero at padding, `[batch, source time, width]`.
        keys: Their projections, `[batch, source time, units]`.
        mask: True at tokens, `[batch, source time]`.
    """

    values: tf.Tensor
    keys: tf.Tensor
    mask: tf.Tensor


class Attention(keras.layers.Layer):
    """Luong's multiplicative or Bahdanau's additive attention.

    With query `q` and key `k_s = W_m h_s` of source step `s`, the score is `q . k_s` (`"luong"`) or
    `v . tanh(W_q q + k_s)` (`"bahdanau"`); the weights are the softmax of the scores over the source's tokens, and the
    context is the sum of the `h_s` with these weights. `W_m` is `memory_layer`, `W_q` `query_layer`, `v` `score_layer`.

    Sources: Luong, Pham and Manning (2015), arXiv 1508.04025, "general" score; Bahdanau, Cho and Bengio (2015),
    arXiv 1409.0473. Unlike there, the additive form also asks with the current decoder state, not the one before, so
    that a whole target can be attended at once.

    Args:
        units: Size of the query.
        kind: `"luong"` or `"bahdanau"`.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own.
    """

    def __init__(self, units: int, kind: str, *, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.units = units
        self.kind = kind
        policy = self.dtype_policy
        self.memory_layer = keras.layers.Dense(units, use_bias=False, name="memory_layer", dtype=policy)
        if kind == "bahdanau":
            self.query_layer = keras.layers.Dense(units, use_bias=False, name="query_layer", dtype=policy)
            self.score_layer = keras.layers.Dense(1, use_bias=False, name="score_layer", dtype=policy)

    def build(self, memory_shape: Any) -> None:
        """Creates the weights for a memory of shape `[batch, source time, width]`."""
        build_layer(self.memory_layer, None, None, memory_shape[-1])
        if self.kind == "bahdanau":
            build_layer(self.query_layer, None, self.units)
            build_layer(self.score_layer, None, self.units)
        self.built = True

    def remember(self, outputs: tf.Tensor, mask: tf.Tensor) -> Memory:
        """Prepares encoder outputs `[batch, source time, width]` with their mask for any number of calls."""
        values = outputs * tf.cast(mask[:, :, tf.newaxis], outputs.dtype)
        return Memory(values, self.memory_layer(values), mask)

    def call(self, query: tf.Tensor, memory: Memory) -> tuple[tf.Tensor, tf.Tensor]:
        """Attends to the memory.

        Args:
            query: `[batch, queries, units]`.
            memory: What `remember` returned.

        Returns:
            The contexts, `[batch, queries, width]`, and the weights, `[batch, queries, source time]`.
        """
        if self.kind == "luong":
            scores = tf.matmul(query, memory.keys, transpose_b=True)
        else:
            asked = tf.reshape(self.query_layer(tf.reshape(query, [-1, self.units])), tf.shape(query))
            energy = tf.tanh(asked[:, :, tf.newaxis, :] + memory.keys[:, tf.newaxis, :, :])
            scores = tf.reshape(self.score_layer(tf.reshape(energy, [-1, self.units])), tf.shape(energy)[:3])
        scores = tf.where(memory.mask[:, tf.newaxis, :], scores, scores.dtype.min)
        weights = tf.nn.softmax(scores)
        return tf.matmul(weights, memory.values), weights
