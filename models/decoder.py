"""The sequence decoder: teacher-forced training, and decoding by either engine."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from . import _addons, _native
from ._bridge import StateBridge
from ._checks import check_choice, check_count, check_id, check_ids, check_rate, check_representation, check_share
from ._recurrent import CELLS, State, build_layer, dropout, hidden_of, recurrent_layer, state_list, state_of
from .attention import KINDS, Attention, Memory
from .decoding import Decoded, Search, penalty, score_rows

ENGINES = ("addons", "native", None)


class DecoderState(NamedTuple):
    """What one step hands to the next.

    Attributes:
        layers: Each recurrent layer's state.
        vector: The step's vector, `[rows, units]`, with input feeding; else an empty tuple.
    """

    layers: tuple[State, ...]
    vector: Any


@keras.saving.register_keras_serializable(package="models")
class Seq2SeqDecoder(keras.layers.Layer):
    """Writes a sequence of token ids from an encoder's outputs and final state.

    At step `t` the recurrent layers read the token before (and with input feeding the vector before) and give `h_t`;
    with attention the vector is `tanh(W [h_t; c_t])`, `c_t` being the context; logits are an affine map of the vector.
    Without input feeding, training runs the recurrence once over the whole target and attention as one product.

    Ids: 0 is padding, `start_id` comes before the first token, `end_id` ends a sequence. Decoding never emits padding
    or the start id before the end.

    Both engines use the same weights and give the same results. `"addons"` decodes with TensorFlow Addons, `"native"`
    with this library's own loops. Addons' decoders know float32 only, so in mixed precision decoding is native.

    Args:
        vocabulary_size: Number of token ids, padding included.
        embedding_size: Size of a token's vector.
        units: Size of a layer's state.
        cell: `"lstm"` or `"gru"`.
        num_layers: Number of recurrent layers.
        attention: `"luong"`, `"bahdanau"` or None.
        input_feeding: Whether each step also reads the vector of the step before; needs attention.
        dropout: Share of each layer's inputs, and of the vectors, that is dropped in training.
        sampling_probability: Scheduled sampling: how often in training a step reads an id drawn from the step before
            instead of the target's. Training then runs step by step. Source: arXiv 1506.03099.
        start_id: The id that comes before the first token.
        end_id: The id that ends a sequence.
        maximum_length: Number of ids that `generate` returns.
        engine: `"addons"`, `"native"`, or None for Addons where it is installed.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own. Logits are float32 in any case.

    Raises:
        ValueError: If an argument is out of its range or does not fit the others.
        ImportError: If `engine="addons"` and TensorFlow Addons is not installed.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_size: int,
        units: int,
        *,
        cell: str = "lstm",
        num_layers: int = 1,
        attention: str | None = "luong",
        input_feeding: bool = False,
        dropout: float = 0.0,
        sampling_probability: float = 0.0,
        start_id: int = 2,
        end_id: int = 3,
        maximum_length: int = 64,
        engine: str | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.vocabulary_size = check_count(vocabulary_size, "vocabulary_size")
        self.embedding_size = check_count(embedding_size, "embedding_size")
        self.units = check_count(units, "units")
        self.cell = check_choice(cell, "cell", CELLS)
        self.num_layers = check_count(num_layers, "num_layers")
        self.attention = check_choice(attention, "attention", KINDS)
        self.input_feeding = bool(input_feeding)
        self.dropout = check_rate(dropout, "dropout")
        self.sampling_probability = check_share(sampling_probability, "sampling_probability")
        self.start_id = check_id(start_id, "start_id", vocabulary_size)
        self.end_id = check_id(end_id, "end_id", vocabulary_size)
        self.maximum_length = check_count(maximum_length, "maximum_length")
        self.engine = check_choice(engine, "engine", ENGINES)
        if input_feeding and attention is None:
            raise ValueError(
                "`input_feeding` needs `attention`. Received: input_feeding=True, attention=None. "
                "Choose an attention, or leave input feeding off."
            )
        if engine == "addons":
            _addons.check_installed()
        policy = self.dtype_policy
        self.bridge = StateBridge(units, cell, num_layers, name="bridge", dtype=policy)
        self.embedding = keras.layers.Embedding(vocabulary_size, embedding_size, name="embedding", dtype=policy)
        self.recurrent_layers = [
            recurrent_layer(cell, units, name=f"layer_{index}", dtype=policy) for index in range(num_layers)
        ]
        if attention is not None:
            self.attention_layer = Attention(units, attention, name="attention", dtype=policy)
            self.vector_layer = keras.layers.Dense(units, activation="tanh", name="vector", dtype=policy)
        self.output_layer = keras.layers.Dense(vocabulary_size, name="output", dtype="float32")

    def build(self, representation_shape: Any) -> None:
        """Creates the weights from the shapes of the representation's entries."""
        check_representation(representation_shape, ("outputs", "state", "mask"), type(self).__name__)
        self.bridge.build(representation_shape["state"])
        build_layer(self.embedding, None, None)
        width = representation_shape["outputs"][-1]
        for index, layer in enumerate(self.recurrent_layers):
            first = self.embedding_size + (self.units if self.input_feeding else 0)
            build_layer(layer, None, None, first if index == 0 else self.units)
        if self.attention is not None:
            build_layer(self.attention_layer, None, None, width)
            build_layer(self.vector_layer, None, None, self.units + width)
        build_layer(self.output_layer, None, None, self.units)
        self.built = True

    def call(self, representation: dict[str, Any], targets: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Logits of each target token, given the tokens before it.

        Args:
            representation: What `Seq2SeqEncoder` returns.
            targets: Integer ids, `[batch, time]`, each row ending with the end id and then padding.
            training: Whether dropout is active.

        Returns:
            Logits, float32 `[batch, time, vocabulary_size]`.

        Raises:
            ValueError: If the representation lacks an entry, or the targets are not a matrix of integers.
        """
        targets = check_ids(targets, "targets")
        memory, state = self.begin(representation)
        vectors = self.run(self.shift_right(targets), memory, state, training=training)
        return self.output_layer(dropout(vectors, self.dropout, training))

    def generate(
        self,
        representation: dict[str, Any],
        *,
        beam_width: int = 1,
        length_penalty: float = 0.0,
        maximum_length: int | None = None,
        engine: str | None = None,
    ) -> tf.Tensor:
        """The best sequence: greedy, or by beam search.

        Args:
            representation: What `Seq2SeqEncoder` returns.
            beam_width: Number of hypotheses that are followed; 1 is greedy.
            length_penalty: See `decode`.
            maximum_length: Number of ids; the constructor's by default.
            engine: `"native"` or `"addons"`; the constructor's by default. A model that is to run without TensorFlow
                Addons needs the native one.

        Returns:
            ids, int32 `[batch, maximum_length]`: the end id is kept, then comes padding, 0.

        Raises:
            ValueError: If an argument is out of its range.
            ImportError: If `engine="addons"` and TensorFlow Addons is not installed.
        """
        search = Search(self._length(maximum_length), beam_width, length_penalty=length_penalty)
        decoding = self._engine(engine)
        memory, state = self._begin_decoding(representation)
        if beam_width == 1:
            return decoding.decode_rows(self, memory, state, search)[0]
        return decoding.decode_beams(self, memory, state, search).ids[:, 0]

    def decode(
        self,
        representation: dict[str, Any],
        *,
        beam_width: int = 1,
        num_best: int = 1,
        length_penalty: float = 0.0,
        maximum_length: int | None = None,
        sample: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int | tf.Tensor | None = None,
        return_attention: bool = False,
    ) -> Decoded:
        """Sequences with lengths, scores and, if asked for, attention weights.

        The score of a sequence is its log probability divided by `((5 + length) / 6) ** length_penalty`, the length
        counting the end id.

        Args:
            representation: What `Seq2SeqEncoder` returns.
            beam_width: Number of hypotheses that are followed; 1 is greedy.
            num_best: Number of sequences per example, at most `beam_width`.
            length_penalty: 0 compares log probabilities; the larger, the longer the results.
            maximum_length: Number of ids; the constructor's by default.
            sample: Whether to draw each id rather than take the likeliest.
            temperature: Divides the logits before drawing: below 1 bolder, above 1 more varied.
            top_k: Draws among this many likeliest ids only; None for all.
            seed: The same seed draws the same sequences, with either engine; None draws anew.
            return_attention: Whether to compute the attention weights too.

        Returns:
            See `Decoded`.

        Raises:
            ValueError: If an argument is out of its range, or attention is asked for where there is none.
        """
        if return_attention and self.attention is None:
            raise ValueError(
                "`return_attention` needs a decoder with attention. Received: return_attention=True, attention=None. "
                "Build the decoder with an attention."
            )
        if sample and seed is None:
            seed = tf.random.uniform([], maxval=tf.int32.max, dtype=tf.int32)
        search = Search(self._length(maximum_length), beam_width, num_best, length_penalty, sample, temperature, top_k, seed)
        memory, state = self._begin_decoding(representation)
        if beam_width > 1:
            result = self._engine().decode_beams(self, memory, state, search)
        else:
            ids, lengths = self._engine().decode_rows(self, memory, state, search)
            logits = self.next_logits(self.run(self.shift_right(ids), memory, state))
            scores = score_rows(logits, ids, lengths) / penalty(lengths, length_penalty)
            result = Decoded(ids[:, tf.newaxis], lengths[:, tf.newaxis], scores[:, tf.newaxis], None)
        if memory is not None and return_attention:
            result = result._replace(attention=self._weights(result, memory, state))
        return result

    def begin(self, representation: dict[str, Any]) -> tuple[Memory | None, DecoderState]:
        """What attention reads (None without attention) and the state before the first step."""
        check_representation(representation, ("outputs", "state", "mask"), type(self).__name__)
        layers = self.bridge(representation["state"])
        if self.attention is None:
            return None, DecoderState(layers, ())
        memory = self.attention_layer.remember(representation["outputs"], representation["mask"])
        if not self.input_feeding:
            return memory, DecoderState(layers, ())
        return memory, DecoderState(layers, tf.zeros_like(hidden_of(layers[-1])))

    def run(self, ids: tf.Tensor, memory: Memory | None, state: DecoderState, *, training: bool | None = None) -> tf.Tensor:
        """The vectors of a whole input sequence, teacher-forced.

        Args:
            ids: Input ids, the start id first, `[batch, time]`.
            memory: What `begin` returned.
            state: What `begin` returned.
            training: Whether dropout is active.

        Returns:
            `[batch, time, units]`.
        """
        if self.input_feeding or (training and self.sampling_probability):
            inputs = dropout(self.embedding(ids), self.dropout, training)
            sampling = self.sampling_probability if training else 0.0
            return self._engine().run_stepwise(self, inputs, memory, state, training=training, sampling=sampling)
        hidden = self._run_layers(ids, state, training)
        if memory is None:
            return hidden
        context, _ = self.attention_layer(hidden, memory)
        return self.vector_layer(tf.concat([hidden, context], axis=-1))

    def shift_right(self, targets: tf.Tensor) -> tf.Tensor:
        """The inputs that belong to targets: the start id, then all but the last."""
        starts = tf.fill([tf.shape(targets)[0], 1], tf.cast(self.start_id, targets.dtype))
        return tf.concat([starts, targets], axis=1)[:, :-1]

    def advance(
        self,
        inputs: tf.Tensor,
        state: DecoderState,
        memory: Memory | None,
        *,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, DecoderState]:
        """One step.

        Args:
            inputs: Embedded ids, `[batch, embedding_size]`.
            state: The state before.
            memory: What `begin` returned.
            training: Whether dropout is active.

        Returns:
            The vectors, `[batch, units]`, and the state after.
        """
        if self.input_feeding:
            inputs = tf.concat([inputs, state.vector], axis=-1)
        hidden, layers = self.step_layers(inputs, state.layers, training=training)
        if memory is None:
            return hidden, DecoderState(layers, ())
        context, _ = self.attention_layer(hidden[:, tf.newaxis], memory)
        vectors = self.vector_layer(tf.concat([hidden, context[:, 0]], axis=-1))
        return vectors, DecoderState(layers, vectors if self.input_feeding else ())

    def step_layers(
        self, inputs: tf.Tensor, states: tuple[State, ...], *, training: bool | None = None
    ) -> tuple[tf.Tensor, tuple[State, ...]]:
        """One step of the recurrent layers: the upper one's hidden state, `[rows, units]`, and the new states."""
        outputs, new_states = inputs, []
        for index, layer in enumerate(self.recurrent_layers):
            outputs = outputs if index == 0 else dropout(outputs, self.dropout, training)
            outputs, new_state = layer.cell(outputs, state_list(states[index]))
            new_states.append(state_of(list(new_state)))
        return outputs, tuple(new_states)

    def embed(self, ids: tf.Tensor) -> tf.Tensor:
        """Embedded ids, `[rows, embedding_size]` for `[rows]`."""
        return self.embedding(ids)

    def next_logits(self, vectors: tf.Tensor) -> tf.Tensor:
        """Logits for decoding, float32 `[..., vocabulary_size]`: padding and the start id are ruled out."""
        kernel, bias = self.next_affine()
        return tf.nn.bias_add(tf.matmul(tf.cast(vectors, tf.float32), kernel), bias)

    def next_affine(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The kernel and the bias of `next_logits`, float32."""
        ruled_out = tf.reduce_sum(tf.one_hot([0, self.start_id], self.vocabulary_size, tf.float32.min), axis=0)
        return tf.convert_to_tensor(self.output_layer.kernel), tf.convert_to_tensor(self.output_layer.bias) + ruled_out

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "vocabulary_size": self.vocabulary_size,
            "embedding_size": self.embedding_size,
            "units": self.units,
            "cell": self.cell,
            "num_layers": self.num_layers,
            "attention": self.attention,
            "input_feeding": self.input_feeding,
            "dropout": self.dropout,
            "sampling_probability": self.sampling_probability,
            "start_id": self.start_id,
            "end_id": self.end_id,
            "maximum_length": self.maximum_length,
            "engine": self.engine,
            "name": self.name,
            "dtype": self.dtype_policy.name,
        }

    def _engine(self, engine: str | None = None) -> Any:
        """The module that decodes: the one asked for, else the constructor's."""
        engine = check_choice(engine, "engine", ENGINES) or self.engine
        if engine == "addons":
            _addons.check_installed()
        if self.compute_dtype != "float32" or engine == "native":
            return _native
        return _addons if engine == "addons" or _addons.is_installed() else _native

    def _length(self, maximum_length: int | None) -> int:
        return self.maximum_length if maximum_length is None else maximum_length

    def _begin_decoding(self, representation: dict[str, Any]) -> tuple[Memory | None, DecoderState]:
        check_representation(representation, ("outputs", "state", "mask"), type(self).__name__)
        if not self.built:
            with tf.init_scope():
                self.build(tf.nest.map_structure(lambda tensor: tensor.shape, representation))
        dtype = self.compute_dtype
        return self.begin(
            tf.nest.map_structure(lambda leaf: tf.cast(leaf, dtype) if leaf.dtype.is_floating else leaf, representation)
        )

    def _run_layers(self, ids: tf.Tensor, state: DecoderState, training: bool | None) -> tf.Tensor:
        """Hidden states of the upper layer over a whole input sequence, `[batch, time, units]`."""
        outputs = self.embedding(ids)
        for layer, layer_state in zip(self.recurrent_layers, state.layers):
            outputs = dropout(outputs, self.dropout, training)
            outputs = layer(outputs, initial_state=state_list(layer_state))[0]
        return outputs

    def _weights(self, result: Decoded, memory: Memory, state: DecoderState) -> tf.Tensor:
        """Attention weights of decoded sequences, found by reading them once more."""
        num_best, length = result.ids.shape[1:]
        ids = tf.reshape(result.ids, [-1, length])
        memory, state = tf.nest.map_structure(lambda tensor: tf.repeat(tensor, num_best, axis=0), (memory, state))
        if self.input_feeding:
            hidden = _native.run_stepwise(self, self.embedding(self.shift_right(ids)), memory, state, hidden=True)
        else:
            hidden = self._run_layers(self.shift_right(ids), state, training=False)
        weights = self.attention_layer(hidden, memory)[1]
        weights = tf.where(tf.equal(ids, 0)[:, :, tf.newaxis], tf.zeros([], weights.dtype), weights)
        return tf.reshape(weights, [-1, num_best, length, tf.shape(weights)[-1]])
