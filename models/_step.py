"""One step of decoding, with all that stays the same from step to step prepared once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from .attention import Memory

if TYPE_CHECKING:
    from .decoder import Seq2SeqDecoder


class StepMemory(NamedTuple):
    """A `Memory` as a step reads it.

    Attributes:
        values: Encoder outputs, zero at padding, `[batch, source time, width]`.
        keys: Their projections: `[batch, units, source time]` for Luong's attention, so that a query meets them in one
            fast product, `[batch, source time, units]` for Bahdanau's.
        bias: What is added to the scores, `[batch, 1, source time]`: 0 at tokens, hugely negative at padding.
    """

    values: tf.Tensor
    keys: tf.Tensor
    bias: tf.Tensor


class Step:
    """A decoder's step as `Seq2SeqDecoder.advance` and `next_logits` define it, in fewer operations.

    Args:
        decoder: The decoder.
        width: Number of rows per example; the rows of an example stand together.
    """

    def __init__(self, decoder: Seq2SeqDecoder, width: int) -> None:
        self._decoder = decoder
        self._width = width
        self._table = _variable(decoder.embedding.embeddings)
        self._kernel, self._bias = decoder.next_affine()

    def prepare(self, memory: Memory | None) -> StepMemory | None:
        """The memory as the step reads it, one entry per example; None without attention."""
        if memory is None:
            return None
        keys = tf.transpose(memory.keys, [0, 2, 1]) if self._decoder.attention == "luong" else memory.keys
        # Half of the lowest number, so that no score added to it overflows.
        bias = tf.where(memory.mask[:, tf.newaxis, :], 0.0, 0.5 * float(memory.values.dtype.min))
        return StepMemory(memory.values, keys, tf.cast(bias, memory.values.dtype))

    def __call__(self, last: tf.Tensor, state: Any, memory: StepMemory | None) -> tuple[tf.Tensor, Any]:
        """Reads the last ids.

        Args:
            last: int32 `[batch * width]`.
            state: The decoder's state before, each tensor `[batch * width, units]`.
            memory: What `prepare` returned.

        Returns:
            The logits of the next ids, float32 `[batch * width, vocabulary_size]`, and the state after.
        """
        decoder = self._decoder
        inputs = tf.cast(tf.nn.embedding_lookup(self._table, last), decoder.compute_dtype)
        if decoder.input_feeding:
            inputs = tf.concat([inputs, state.vector], axis=1)
        hidden, layers = decoder.step_layers(inputs, state.layers)
        vectors, state = hidden, state._replace(layers=layers)
        if memory is not None:
            vectors = decoder.vector_layer(tf.concat([hidden, self._context(hidden, memory)], axis=1))
        if decoder.input_feeding:
            state = state._replace(vector=vectors)
        return tf.nn.bias_add(tf.matmul(tf.cast(vectors, tf.float32), self._kernel), self._bias), state

    def _context(self, hidden: tf.Tensor, memory: StepMemory) -> tf.Tensor:
        """What attention reads for each row, `[batch * width, width of the values]`."""
        attention, units = self._decoder.attention_layer, self._decoder.units
        if attention.kind == "luong":
            scores = tf.matmul(self._by_example(hidden), memory.keys)
        else:
            asked = self._by_example(attention.query_layer(hidden))
            energy = tf.tanh(asked[:, :, tf.newaxis, :] + memory.keys[:, tf.newaxis, :, :])
            scores = attention.score_layer(tf.reshape(energy, [-1, units]))
            scores = tf.reshape(scores, [-1, self._width, tf.shape(memory.keys)[1]])
        contexts = tf.matmul(tf.nn.softmax(scores + memory.bias), memory.values)
        return tf.reshape(contexts, [-1, memory.values.shape[2]])

    def _by_example(self, rows: tf.Tensor) -> tf.Tensor:
        """`[batch, width, size]` from `[batch * width, size]`."""
        return tf.reshape(rows, [-1, self._width, rows.shape[1]])


def _variable(weight: Any) -> tf.Variable:
    """A weight as TensorFlow's own variable, on Keras 2 and Keras 3, of which rows can be read without a copy of it all."""
    return weight if isinstance(weight, tf.Variable) else weight.value
