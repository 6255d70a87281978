"""Attention over an encoder's outputs: by definition, and with fewer operations for the steps of decoding."""

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
        pointer: What the pointer reads, a `PointerMemory`; `()` without one.
    """

    values: tf.Tensor
    keys: tf.Tensor
    mask: tf.Tensor
    pointer: Any = ()


class StepMemory(NamedTuple):
    """A `Memory` in the form that `Attention.step` reads.

    Attributes:
        values: Encoder outputs, zero at padding, `[batch, source time, width]`.
        keys: Their projections: for Luong's attention `[batch, units, source time]`, so that the scores are one fast
            product; for Bahdanau's `[batch, source time, units]`.
        bias: Added to the scores, `[batch, 1, source time]`: 0 at tokens, a very large negative number at padding.
        pointer: What the pointer reads, a `PointerMemory`; `()` without one.
    """

    values: tf.Tensor
    keys: tf.Tensor
    bias: tf.Tensor
    pointer: Any = ()


MemoryOrNone = Any
"""A `Memory` or a `StepMemory`; `()` in a decoder without attention, since loops carry an empty structure but not None."""


class Attention(keras.layers.Layer):
    """Luong's multiplicative or Bahdanau's additive attention.

    With query `q` and key `k_s = W_m h_s` of source step `s`, the score is `q . k_s` (`"luong"`) or
    `v . tanh(W_q q + k_s)` (`"bahdanau"`); the weights are the softmax of the scores over the source's tokens, and the
    context is the sum of the `h_s` with these weights. `W_m` is `memory_layer`, `W_q` `query_layer`, `v` `score_layer`.

    `call` is the definition, for any number of queries per example at once; `step` returns the same contexts faster
    where the same memory is read many times.

    Sources: Luong, Pham and Manning (2015), arXiv 1508.04025, "general" score; Bahdanau, Cho and Bengio (2015),
    arXiv 1409.0473. Unlike in the latter, the query is the current decoder state, not the previous one, so that a whole
    target sequence can attend at once.

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

    def prepare(self, outputs: tf.Tensor, mask: tf.Tensor) -> Memory:
        """The memory for encoder outputs `[batch, source time, width]` and their mask."""
        values = outputs * tf.cast(mask[:, :, tf.newaxis], outputs.dtype)
        return Memory(values, self.memory_layer(values), mask)

    def call(self, query: tf.Tensor, memory: Memory) -> tuple[tf.Tensor, tf.Tensor]:
        """Attends to the memory.

        Args:
            query: `[batch, queries, units]`.
            memory: What `prepare` returned.

        Returns:
            The contexts, `[batch, queries, width]`, and the weights, `[batch, queries, source time]`.
        """
        if self.kind == "luong":
            scores = tf.matmul(query, memory.keys, transpose_b=True)
        else:
            projected = tf.reshape(self.query_layer(tf.reshape(query, [-1, self.units])), tf.shape(query))
            scores = self._additive_scores(projected, memory.keys)
        scores = tf.where(memory.mask[:, tf.newaxis, :], scores, scores.dtype.min)
        weights = tf.nn.softmax(scores)
        return tf.matmul(weights, memory.values), weights

    def prepare_steps(self, memory: Memory) -> StepMemory:
        """The memory in the form that `step` reads."""
        keys = tf.transpose(memory.keys, [0, 2, 1]) if self.kind == "luong" else memory.keys
        # Half of the lowest number, so that adding a score does not overflow.
        dtype = memory.values.dtype
        lowest = tf.constant(0.5 * float(dtype.min), dtype)
        bias = tf.where(memory.mask[:, tf.newaxis, :], tf.zeros([], dtype), lowest)
        return StepMemory(memory.values, keys, bias, memory.pointer)

    def step(self, query: tf.Tensor, memory: StepMemory, width: int) -> tf.Tensor:
        """The contexts that `call` returns, in fewer operations.

        Args:
            query: `[batch * width, units]`.
            memory: What `prepare_steps` returned, one entry per example.
            width: Number of queries per example; the queries of an example are consecutive.

        Returns:
            `[batch * width, width of the values]`.
        """
        if self.kind == "luong":
            scores = tf.matmul(tf.reshape(query, [-1, width, self.units]), memory.keys)
        else:
            scores = self._additive_scores(tf.reshape(self.query_layer(query), [-1, width, self.units]), memory.keys)
        contexts = tf.matmul(tf.nn.softmax(scores + memory.bias), memory.values)
        return tf.reshape(contexts, [-1, memory.values.shape[2]])

    def _additive_scores(self, projected: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Bahdanau's scores, `[batch, queries, source time]`, from projected queries and keys."""
        energy = tf.tanh(projected[:, :, tf.newaxis, :] + keys[:, tf.newaxis, :, :])
        return tf.reshape(self.score_layer(tf.reshape(energy, [-1, self.units])), tf.shape(energy)[:3])
