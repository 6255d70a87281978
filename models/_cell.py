"""One step of decoding: its layers, the step by definition, and the same step with fewer operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ._attention import Attention, MemoryOrNone
from ._pointer import Pointer
from ._recurrent import State, build_layer, draw_seed, dropout_layer, recurrent_layer, state_list, state_of
from ._search import excluded_ids

CellStep = Callable[[Sequence[tf.Tensor], State], tuple[tf.Tensor, State]]
"""From the parts of the input, each `[rows, size]`, and the state to the hidden state and the state after the step."""


def weight_tensor(weight: Any, dtype: Any) -> tf.Tensor:
    """A weight of Keras 2 or Keras 3 as a tensor of a dtype."""
    return tf.cast(tf.convert_to_tensor(weight), dtype)


def cell_step(layer: keras.layers.Layer) -> CellStep:
    """The step of an LSTM or GRU layer in its default form, without dropout."""
    if isinstance(layer, keras.layers.LSTM):
        return LSTMStep(layer)
    return GRUStep(layer)


class LSTMStep:
    """The step of an LSTM.

    Args:
        layer: A layer that is built.
    """

    def __init__(self, layer: keras.layers.LSTM) -> None:
        self._kernels = _kernels(layer)
        self._bias = weight_tensor(layer.cell.bias, layer.compute_dtype)

    def __call__(self, parts: Sequence[tf.Tensor], state: State) -> tuple[tf.Tensor, State]:
        """One step; see `CellStep`."""
        hidden, carry = state
        of_inputs, of_hidden = _products(parts, hidden, self._kernels)
        gates = tf.nn.bias_add(of_inputs + of_hidden, self._bias)
        of_input, of_carry, candidate, of_output = tf.split(gates, 4, axis=1)
        carry = tf.sigmoid(of_carry) * carry + tf.sigmoid(of_input) * tf.tanh(candidate)
        hidden = tf.sigmoid(of_output) * tf.tanh(carry)
        return hidden, (hidden, carry)


class GRUStep:
    """The step of a GRU that applies its reset gate after the product, as Keras's does by default.

    Args:
        layer: A layer that is built.
    """

    def __init__(self, layer: keras.layers.GRU) -> None:
        self._kernels = _kernels(layer)
        self._biases = tf.unstack(weight_tensor(layer.cell.bias, layer.compute_dtype))
        self._sizes = [2 * layer.cell.units, layer.cell.units]

    def __call__(self, parts: Sequence[tf.Tensor], state: State) -> tuple[tf.Tensor, State]:
        """One step; see `CellStep`."""
        products = _products(parts, state, self._kernels)
        products = [tf.nn.bias_add(product, bias) for product, bias in zip(products, self._biases)]
        (gates, candidate), (own_gates, own_candidate) = (tf.split(each, self._sizes, axis=1) for each in products)
        update, reset = tf.split(tf.sigmoid(gates + own_gates), 2, axis=1)
        candidate = tf.tanh(candidate + reset * own_candidate)
        hidden = candidate + update * (state - candidate)
        return hidden, hidden


def _kernels(layer: Any) -> list[tf.Tensor]:
    """The kernels for the inputs and for the hidden state."""
    return [weight_tensor(each, layer.compute_dtype) for each in (layer.cell.kernel, layer.cell.recurrent_kernel)]


def _products(parts: Sequence[tf.Tensor], hidden: tf.Tensor, kernels: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The inputs and the hidden state, each times its kernel."""
    inputs = parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)
    return [tf.matmul(inputs, kernels[0]), tf.matmul(hidden, kernels[1])]


class DecoderState(NamedTuple):
    """What one step passes to the next.

    Attributes:
        layers: Each recurrent layer's state.
        vector: With input feeding the step's vector, `[rows, units]`; otherwise `()`.
    """

    layers: tuple[State, ...]
    vector: Any


class DecoderCell:
    """The layers of one decoding step, and the step.

    The cell is not a Keras layer itself: its decoder owns the layers and saves their weights.

    Args:
        vocabulary_size: Number of token ids, padding included.
        embedding_size: Size of a token's vector.
        units: Size of a layer's state.
        kind: `"lstm"` or `"gru"`.
        num_layers: Number of recurrent layers.
        attention: `"luong"`, `"bahdanau"` or None.
        input_feeding: Whether each step also reads the previous step's vector.
        copy_ids: Number of ids at the end of the vocabulary that can only be copied; None for no pointer.
        dropout: Fraction of the inputs of each layer but the first that is dropped in training.
        start_id: The id that precedes the first token.
        end_id: The id that ends a sequence.
        padding_id: The id of padding.
        policy: Dtype policy.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_size: int,
        units: int,
        *,
        kind: str,
        num_layers: int,
        attention: str | None,
        input_feeding: bool,
        copy_ids: int | None,
        dropout: float,
        start_id: int,
        end_id: int,
        padding_id: int,
        policy: Any,
    ) -> None:
        self.vocabulary_size = vocabulary_size
        self.embedding_size = embedding_size
        self.units = units
        self.input_feeding = input_feeding
        self.dropout_layer = dropout_layer(dropout, dtype=policy)
        self.sampling_layer: Any = None
        self.start_id = start_id
        self.end_id = end_id
        self.padding_id = padding_id
        self.embedding = keras.layers.Embedding(vocabulary_size, embedding_size, name="embedding", dtype=policy)
        self.recurrent_layers = [
            recurrent_layer(kind, units, name=f"layer_{index}", dtype=policy) for index in range(num_layers)
        ]
        self.attention_layer: Any = None
        self.vector_layer: Any = None
        if attention is not None:
            self.attention_layer = Attention(units, attention, name="attention", dtype=policy)
            self.vector_layer = keras.layers.Dense(units, activation="tanh", name="vector", dtype=policy)
        self.pointer_layer: Any = None if copy_ids is None else Pointer(vocabulary_size, units, name="pointer")
        self.output_layer = keras.layers.Dense(vocabulary_size - (copy_ids or 0), name="output", dtype="float32")

    def build(self, width: int) -> None:
        """Creates the weights for encoder outputs of a width."""
        build_layer(self.embedding, None, None)
        for index, layer in enumerate(self.recurrent_layers):
            first = self.embedding_size + (self.units if self.input_feeding else 0)
            build_layer(layer, None, None, first if index == 0 else self.units)
        if self.attention_layer is not None:
            build_layer(self.attention_layer, None, None, width)
            build_layer(self.vector_layer, None, None, self.units + width)
        if self.pointer_layer is not None:
            with tf.name_scope(self.pointer_layer.name):
                self.pointer_layer.build(width + self.embedding_size)
        build_layer(self.output_layer, None, None, self.units)

    def embed(self, ids: tf.Tensor) -> tf.Tensor:
        """Vectors of ids; one out of range, which the check of labels names, has that of the last id."""
        return self.embedding(tf.minimum(ids, self.vocabulary_size - 1))

    def step(
        self,
        inputs: tf.Tensor,
        state: DecoderState,
        memory: MemoryOrNone,
        *,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, DecoderState]:
        """One step, as it is defined.

        Args:
            inputs: Embedded ids, `[batch, embedding_size]`.
            state: The state before the step.
            memory: What attention reads; `()` without attention.
            training: Whether dropout is active.

        Returns:
            The vectors, `[batch, units]`, and the state after the step.
        """
        if self.input_feeding:
            inputs = tf.concat([inputs, state.vector], axis=-1)
        hidden, layers = self.recurrent_step(inputs, state.layers, training=training)
        if self.attention_layer is None:
            return hidden, DecoderState(layers, ())
        context, _ = self.attention_layer(hidden[:, tf.newaxis], memory)
        vectors = self.vector_layer(tf.concat([hidden, context[:, 0]], axis=-1))
        return vectors, DecoderState(layers, vectors if self.input_feeding else ())

    def recurrent_step(
        self, inputs: tf.Tensor, states: tuple[State, ...], *, training: bool | None = None
    ) -> tuple[tf.Tensor, tuple[State, ...]]:
        """One step of the recurrent layers: the last layer's hidden state, `[rows, units]`, and the new states."""
        outputs, new_states = inputs, []
        for index, layer in enumerate(self.recurrent_layers):
            outputs = outputs if index == 0 else self.dropout_layer(outputs, training=training)
            outputs, new_state = layer.cell(outputs, state_list(states[index]))
            new_states.append(state_of(list(new_state)))
        return outputs, tuple(new_states)

    def sampling_seed(self) -> tf.Tensor:
        """A seed for `sample_inputs`, for all steps of a sequence."""
        return draw_seed(self.sampling_layer)

    def sample_inputs(
        self, vectors: tf.Tensor, memory: MemoryOrNone, probability: tf.Tensor, seed: tf.Tensor, time: tf.Tensor
    ) -> tf.Tensor:
        """Scheduled sampling: ids sampled from a step's vectors, int32 `[rows]`; -1 where none replaces the next input."""
        of_ids, of_rows = (seed + tf.stack([place, tf.cast(time, tf.int32)]) for place in (0, 1))
        ids = tf.random.stateless_categorical(self.next_logits(vectors, memory), 1, of_ids, dtype=tf.int32)[:, 0]
        return tf.where(tf.random.stateless_uniform(tf.shape(ids), of_rows) < probability, ids, -1)

    def next_logits(self, vectors: tf.Tensor, memory: MemoryOrNone) -> tf.Tensor:
        """Logits of the next ids, float32 `[..., vocabulary_size]`: those of training, without padding and the start id.

        The vectors are `[rows, units]`, with as many consecutive rows for each example, or `[batch, queries, units]`.
        """
        return self.logits(vectors, memory) + excluded_ids(self)

    def logits(self, vectors: tf.Tensor, memory: MemoryOrNone) -> tf.Tensor:
        """Logits of all ids, with a pointer log probabilities, float32; shapes as in `next_logits`."""
        logits = self.output_layer(vectors)
        if self.pointer_layer is None:
            return logits
        if logits.shape.rank == 3:
            return self.pointer_layer(logits, vectors, memory.pointer)
        examples = tf.shape(memory.pointer.mask)[0]
        by_example = (tf.reshape(rows, [examples, -1, rows.shape[1]]) for rows in (logits, vectors))
        return tf.reshape(self.pointer_layer(*by_example, memory.pointer), [-1, self.vocabulary_size])


class FastStep:
    """`DecoderCell.step` between an embedding and `next_logits`, with everything constant over the steps prepared once.

    Args:
        cell: The cell.
        width: Number of rows per example; the rows of an example are consecutive.
    """

    def __init__(self, cell: DecoderCell, width: int) -> None:
        self._width = width
        self._dtype = cell.embedding.compute_dtype
        self._input_feeding = cell.input_feeding
        self._attention = cell.attention_layer
        self._table = _variable(cell.embedding.embeddings)
        self._layers = [cell_step(layer) for layer in cell.recurrent_layers]
        if self._attention is not None:
            weights = cell.vector_layer.kernel, cell.vector_layer.bias
            self._vector_weights = [weight_tensor(each, self._dtype) for each in weights]
        self._next_logits = cell.next_logits

    def prepare(self, memory: MemoryOrNone) -> MemoryOrNone:
        """The memory as the step reads it, one entry per example; `()` without attention."""
        return () if self._attention is None else self._attention.prepare_steps(memory)

    def __call__(self, last: tf.Tensor, state: DecoderState, memory: MemoryOrNone) -> tuple[tf.Tensor, DecoderState]:
        """Reads the last ids.

        Args:
            last: int32 `[batch * width]`.
            state: The state before the step, each tensor `[batch * width, units]`.
            memory: What `prepare` returned.

        Returns:
            The logits of the next ids, float32 `[batch * width, vocabulary_size]`, and the state after the step.
        """
        parts = [tf.cast(tf.nn.embedding_lookup(self._table, last), self._dtype)]
        if self._input_feeding:
            parts.append(state.vector)
        layers = []
        for step, before in zip(self._layers, state.layers):
            vectors, after = step(parts, before)
            parts = [vectors]
            layers.append(after)
        if self._attention is not None:
            contexts = self._attention.step(vectors, memory, self._width)
            kernel, bias = self._vector_weights
            vectors = tf.tanh(tf.nn.bias_add(tf.matmul(tf.concat([vectors, contexts], axis=1), kernel), bias))
        logits = self._next_logits(vectors, memory)
        return logits, DecoderState(tuple(layers), vectors if self._input_feeding else ())


def count_rows(state: DecoderState) -> tf.Tensor:
    """The number of rows of a state."""
    return tf.shape(tf.nest.flatten(state)[0])[0]


def _variable(weight: Any) -> tf.Variable:
    """A weight as a TensorFlow variable on Keras 2 and Keras 3: its rows can be read without copying all of it."""
    return weight if isinstance(weight, tf.Variable) else weight.value
