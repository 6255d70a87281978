"""The sequence decoder: teacher-forced training, and decoding by either engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from . import _addons_loops, _native_loops
from ._attention import KINDS, MemoryOrNone
from ._cell import DecoderCell, DecoderState, FastStep
from ._checks import check_choice, check_count, check_ids, check_probability, check_representation, check_tokens
from ._ids import AbstractDecoder, with_a_step
from ._recurrent import CELLS, StateBridge, dropout_layer, hidden_of, state_list
from ._search import Decoded, Search, SearchParts, padded, penalty, score_rows, shift_right

ENGINES = ("addons", "native", None)


@keras.saving.register_keras_serializable(package="models")
class Seq2SeqDecoder(AbstractDecoder):
    """Writes a sequence of token ids from an encoder's outputs and final state.

    At step `t` the recurrent layers read the previous token (with input feeding also the previous step's vector) and return
    `h_t`. The vector of the step is `tanh(W [h_t; c_t])` with attention, where `c_t` is the context, and `h_t` without. The
    logits are an affine map of this vector. Without input feeding, training runs the recurrent layers once over the whole
    target sequence and attention as one product.

    The representation, of `Seq2SeqEncoder` or your own encoder, is a dict: `outputs`, `[batch, source_time, width]`; `mask`,
    whether a place is a token, bool `[batch, source_time]`; and `state`, one `[batch, units]` or a tuple with the state of
    each layer, for an LSTM the pair of its hidden state and its carry.

    With `copy_ids`, words can be copied from the source: the logits are log probabilities of a mixture of generating an id
    and pointing at a source token with this id (a pointer-generator network; See, Liu and Manning, 2017, arXiv 1704.04368).
    The representation then holds the ids of the source tokens in the vocabulary of the targets, `copy_ids`. The last
    `copy_ids` ids of the vocabulary are never generated: give them to the words of a row that have no id of their own, for
    example by their place in the source.

    Ids: `start_id` precedes the first token, `end_id` ends a sequence, `padding_id` fills it up. Rows of targets hold the
    tokens, the end id and padding, without the start id; a trainer checks this when it reads the data (`check_labels`).
    Decoding returns neither padding nor the start id before the end; the start id may be the end id, too.

    Both engines use the same weights and return the same results. `"addons"` decodes with TensorFlow Addons, `"native"`
    with this library's own loops. Addons' decoders support float32 only, so decoding in mixed precision is native.

    Args:
        vocabulary_size: Number of token ids, padding included.
        embedding_size: Size of a token's vector.
        units: Size of a layer's state.
        cell: `"lstm"` or `"gru"`.
        num_layers: Number of recurrent layers.
        attention: `"luong"`, `"bahdanau"` or None.
        input_feeding: Whether each step also reads the previous step's vector; needs attention.
        copy_ids: Number of ids at the end of the vocabulary that can only be copied, with which the decoder copies words of
            the source; needs attention. None: it does not copy. 0: it copies words that have an id of their own.
        dropout: Fraction of each layer's inputs, and of the vectors, that is dropped in training.
        sampling_probability: Scheduled sampling: the probability that in training a step reads an id sampled from the
            previous step's logits instead of the target's; training then runs step by step. A number, which can be set
            later, for example by a callback, unless it is 0; or a function of the step (the number of updates so far, an
            int64 scalar), such as a Keras schedule. Below 0 counts as 0, above 1 as 1. Source: arXiv 1506.03099.
        start_id: The id that precedes the first token.
        end_id: The id that ends a sequence.
        padding_id: The id of padding, as in the loss.
        maximum_length: Number of ids that `generate` returns, and the most that a row of targets may have.
        engine: `"addons"`, `"native"`, or None for Addons where it is installed.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own. Logits are always float32.

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
        copy_ids: int | None = None,
        dropout: float = 0.0,
        sampling_probability: float | Callable[[tf.Tensor], Any] = 0.0,
        start_id: int = 2,
        end_id: int = 3,
        padding_id: int = 0,
        maximum_length: int = 64,
        engine: str | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            vocabulary_size,
            embedding_size,
            units,
            num_layers=num_layers,
            dropout=dropout,
            start_id=start_id,
            end_id=end_id,
            padding_id=padding_id,
            maximum_length=maximum_length,
            name=name,
            dtype=dtype,
        )
        self.cell = check_choice("cell", cell, CELLS)
        self.attention = check_choice("attention", attention, KINDS)
        self.input_feeding = bool(input_feeding)
        self._probability: Any = 0.0
        self._probability_variable: Any = None
        self.sampling_probability = sampling_probability
        self.engine = check_choice("engine", engine, ENGINES)
        if input_feeding and attention is None:
            raise ValueError(
                "`input_feeding` needs `attention`. Received: input_feeding=True, attention=None. "
                "Choose an attention, or leave input feeding off."
            )
        self.copy_ids = None if copy_ids is None else check_count("copy_ids", copy_ids, minimum=0)
        if copy_ids is not None and (attention is None or copy_ids > vocabulary_size - 4):
            raise ValueError(
                "`copy_ids` needs `attention`, and a vocabulary with other ids. Received: "
                f"copy_ids={copy_ids}, attention={attention!r}, vocabulary_size={vocabulary_size}. Choose an attention, and "
                "count these ids in `vocabulary_size`."
            )
        if engine == "addons":
            _addons_loops.check_installed()
        self._create_layers()

    @property
    def has_impossible_labels(self) -> bool:
        """Whether some ids can be written only where the source has them."""
        return bool(self.copy_ids)

    def _create_layers(self) -> None:
        policy = self.dtype_policy
        self.bridge = StateBridge(self.units, self.cell, self.num_layers, name="bridge", dtype=policy)
        self.decoder_cell = DecoderCell(
            self.vocabulary_size,
            self.embedding_size,
            self.units,
            kind=self.cell,
            num_layers=self.num_layers,
            attention=self.attention,
            input_feeding=self.input_feeding,
            copy_ids=self.copy_ids,
            dropout=self.dropout,
            start_id=self.start_id,
            end_id=self.end_id,
            padding_id=self.padding_id,
            policy=policy,
        )
        # Attributes of this layer, under which Keras finds and saves the weights.
        self.embedding = self.decoder_cell.embedding
        self.dropout_layer = self.decoder_cell.dropout_layer
        self.recurrent_layers = self.decoder_cell.recurrent_layers
        if self.attention is not None:
            self.attention_layer = self.decoder_cell.attention_layer
            self.vector_layer = self.decoder_cell.vector_layer
        if self.copy_ids is not None:
            self.pointer_layer = self.decoder_cell.pointer_layer
        self.output_layer = self.decoder_cell.output_layer

    def build(self, representation_shape: Any) -> None:
        """Creates the weights from the shapes of the representation's entries."""
        self._check(representation_shape)
        self.bridge.build(representation_shape["state"])
        self.decoder_cell.build(representation_shape["outputs"][-1])
        if self._probability:
            policy = self.dtype_policy
            self.sampling_layer = self.decoder_cell.sampling_layer = dropout_layer(0.5, name="sampling_layer", dtype=policy)
            if not callable(self._probability):
                initial = keras.initializers.Constant(self._probability)
                self._probability_variable = self.add_weight(
                    name="sampling_probability", shape=(), dtype="float32", initializer=initial, trainable=False
                )
        self.built = True

    @property
    def sampling_probability(self) -> Any:
        """The current number, or the function of the step."""
        variable = self._probability_variable
        return self._probability if variable is None else float(tf.convert_to_tensor(variable))

    @sampling_probability.setter
    def sampling_probability(self, value: Any) -> None:
        """Sets the number from the next update on, for example in a callback of `fit`."""
        if not callable(value):
            value = check_probability("sampling_probability", value)
        if self._probability_variable is not None and not callable(value):
            self._probability_variable.assign(value)
        elif self.built:
            raise ValueError(
                "`sampling_probability` can be set after the first batch only from one number to another, if the first is "
                f"above 0. Received: sampling_probability={value!r} after {self.sampling_probability!r}. Build the decoder "
                "with a function of the step, or with a number above 0 that is set to 0 before training."
            )
        else:
            self._probability = value

    def call(
        self,
        representation: dict[str, Any],
        targets: tf.Tensor,
        training: bool | None = None,
        step: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Logits of each target token, given the previous tokens.

        Args:
            representation: What `Seq2SeqEncoder` returns.
            targets: Integer ids, `[batch, time]`, each row ending with the end id and then padding.
            training: Whether dropout is active.
            step: The number of updates so far, which a trainer passes; for a `sampling_probability` that is a function.

        Returns:
            Logits, float32 `[batch, time, vocabulary_size]`.

        Raises:
            ValueError: If the representation lacks an entry or a copy id of it is out of range, the targets are not a matrix
                of integers, or no step is passed.
        """
        self._check(representation)
        targets = check_ids("targets", targets)
        memory, state = self.begin(representation)
        sampling = self._sampling_at(step) if training and self._probability else None
        vectors = self.run(self.shift_right(targets), memory, state, training=training, sampling=sampling)
        return self.decoder_cell.logits(self.dropout_layer(vectors, training=training), memory)

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
            beam_width: Number of hypotheses in the beam; 1 is greedy.
            length_penalty: See `decode`.
            maximum_length: Number of ids; the constructor's by default.
            engine: `"native"` or `"addons"`; the constructor's by default. An exported model that must run without
                TensorFlow Addons needs `"native"`.

        Returns:
            ids, int32 `[batch, maximum_length]`, up to and including the end id, then padding.

        Raises:
            ValueError: If an argument is out of its range.
            ImportError: If `engine="addons"` and TensorFlow Addons is not installed.
        """
        search = Search(self._length(maximum_length), self.end_id, beam_width, length_penalty=length_penalty)
        loops = self._loops(engine)
        memory, state = self._begin_decoding(representation)
        if beam_width == 1:
            ids, lengths = loops.decode_rows(self.decoder_cell, memory, state, search)
        else:
            ids, lengths = (each[:, 0] for each in loops.decode_beams(self.decoder_cell, memory, state, search)[:2])
        return padded(ids, lengths, self.padding_id)

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
        """Sequences with lengths, scores and, on request, attention weights.

        The score of a sequence is its log probability, given that it has no padding and no start id, divided by
        `((5 + length) / 6) ** length_penalty`; the length includes the end id. There is no coverage penalty: rank `num_best`
        sequences by their scores and attention weights.

        Args:
            representation: What `Seq2SeqEncoder` returns.
            beam_width: Number of hypotheses in the beam; 1 is greedy.
            num_best: Number of sequences per example, at most `beam_width`.
            length_penalty: 0 compares log probabilities; larger values favor longer sequences.
            maximum_length: Number of ids; the constructor's by default.
            sample: Whether to sample each id instead of taking the most probable one.
            temperature: Divides the logits before sampling: below 1 sharpens the distribution (more conservative),
                above 1 flattens it (more diverse).
            top_k: Samples from this many most probable ids only; None for all.
            seed: The same seed returns the same sequences, with either engine; None returns new ones at each call.
            return_attention: Whether to compute the attention weights too.

        Returns:
            See `Decoded`.

        Raises:
            ValueError: If an argument is out of its range, or attention is requested from a decoder without it.
        """
        if return_attention and self.attention is None:
            raise ValueError(
                "`return_attention` needs a decoder with attention. Received: return_attention=True, attention=None. "
                "Build the decoder with an attention."
            )
        if sample and seed is None:
            seed = tf.random.uniform([], maxval=tf.int32.max, dtype=tf.int32)
        length = self._length(maximum_length)
        search = Search(length, self.end_id, beam_width, num_best, length_penalty, sample, temperature, top_k, seed)
        memory, state = self._begin_decoding(representation)
        if beam_width > 1:
            result: Decoded = self._loops().decode_beams(self.decoder_cell, memory, state, search)
        else:
            ids, lengths = self._loops().decode_rows(self.decoder_cell, memory, state, search)
            logits = self.decoder_cell.next_logits(self.run(self.shift_right(ids), memory, state), memory)
            scores = score_rows(logits, ids, lengths) / penalty(lengths, length_penalty)
            result = Decoded(ids[:, tf.newaxis], lengths[:, tf.newaxis], scores[:, tf.newaxis], None)
        if return_attention:
            result = result._replace(attention=self._weights(result, memory, state))
        return result._replace(ids=padded(result.ids, result.lengths, self.padding_id))

    def begin_search(self, representation: dict[str, Any], *, beam_width: int = 1) -> SearchParts:
        """Step, state and memory for the functions of `multihead.models.search`.

        Args:
            representation: What `Seq2SeqEncoder` or `TransformerEncoder` returns.
            beam_width: The width of the beam that will be searched with; 1 for `greedy` and `sample`.

        Returns:
            Step, state and memory, in the order of the arguments of `search.greedy`, `search.beam` and `search.sample`.

        Raises:
            ValueError: If the representation lacks an entry, or `beam_width` is out of its range.

        Example:
            >>> from multihead.models import Seq2SeqEncoder, search
            >>> encoder, decoder = Seq2SeqEncoder(9, 4, 8), Seq2SeqDecoder(9, 4, 8)
            >>> parts = decoder.begin_search(encoder(tf.constant([[4, 5]])))
            >>> ends = dict(start_id=2, end_id=3, maximum_length=6)
            >>> search.greedy(*parts, **ends).ids.shape
            TensorShape([1, 1, 6])
        """
        check_count("beam_width", beam_width)
        memory, state = self._begin_decoding(representation)
        step = FastStep(self.decoder_cell, beam_width)
        return SearchParts(step, state, step.prepare(memory))

    def begin(self, representation: dict[str, Any]) -> tuple[MemoryOrNone, DecoderState]:
        """The memory that attention reads, or `()` without attention, and the state before the first step."""
        layers = self.bridge(representation["state"])
        vector = tf.zeros_like(hidden_of(layers[-1])) if self.input_feeding else ()
        if self.attention is None:
            return (), DecoderState(layers, vector)
        memory = self.attention_layer.prepare(representation["outputs"], representation["mask"])
        if self.copy_ids is not None:
            ids = representation["copy_ids"]
            ids = check_tokens(tf.where(memory.mask, ids, tf.zeros_like(ids)), self.vocabulary_size, "copy_ids")
            pointer = self.pointer_layer.prepare(memory.values, memory.mask, ids, self.embedding(ids))
            memory = memory._replace(pointer=pointer)
        return memory, DecoderState(layers, vector)

    def run(
        self,
        ids: tf.Tensor,
        memory: MemoryOrNone,
        state: DecoderState,
        *,
        training: bool | None = None,
        sampling: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """The vectors of a whole input sequence, teacher-forced.

        Args:
            ids: Input ids, beginning with the start id, `[batch, time]`.
            memory: What `begin` returned.
            state: What `begin` returned.
            training: Whether dropout is active.
            sampling: The probability that a step reads an id sampled from the previous step's logits; None for never.

        Returns:
            `[batch, time, units]`.
        """
        time, ids = ids.shape[1] or tf.shape(ids)[1], with_a_step(ids, self.padding_id)
        if self.input_feeding or sampling is not None:
            inputs = self.dropout_layer(self.decoder_cell.embed(ids), training=training)
            step_by_step = self._loops().run_stepwise
            vectors = step_by_step(self.decoder_cell, inputs, memory, state, training=training, sampling=sampling)
        else:
            vectors = self._run_layers(ids, state, training)
            if self.attention is not None:
                context, _ = self.attention_layer(vectors, memory)
                vectors = self.vector_layer(tf.concat([vectors, context], axis=-1))
        return vectors[:, :time]

    def copied(self, representation: dict[str, Any], ids: tf.Tensor) -> tf.Tensor:
        """The probability that each id of a sequence was copied from the source, rather than generated.

        Args:
            representation: What `Seq2SeqEncoder` returns.
            ids: Integer ids, for example those of `generate`, `[batch, time]`.

        Returns:
            float32 `[batch, time]`: the copied part of each id's probability, divided by all of it.

        Raises:
            ValueError: If the decoder does not copy, the representation lacks an entry, or an id is out of range.
        """
        if self.copy_ids is None:
            raise ValueError(
                "`copied` needs a decoder that copies. Received: copy_ids=None. Build it with `copy_ids`, a number of ids."
            )
        memory, state = self._begin_decoding(representation)
        ids = check_tokens(ids, self.vocabulary_size, "ids")
        vectors = self.run(self.shift_right(ids), memory, state)
        parts = self.pointer_layer.parts(self.output_layer(vectors), vectors, memory.pointer)
        generated, copied = (tf.gather(part, ids, axis=2, batch_dims=2) for part in parts)
        return tf.math.divide_no_nan(copied, generated + copied)

    def shift_right(self, targets: tf.Tensor) -> tf.Tensor:
        """The inputs for targets: the start id, then all targets but the last."""
        return shift_right(targets, self.start_id)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "cell": self.cell,
            "attention": self.attention,
            "input_feeding": self.input_feeding,
            "copy_ids": self.copy_ids,
            "sampling_probability": keras.saving.serialize_keras_object(self._probability),
            "engine": self.engine,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Seq2SeqDecoder:
        """A decoder with the constructor's arguments."""
        probability = config.get("sampling_probability")
        if isinstance(probability, dict):
            config = {**config, "sampling_probability": keras.saving.deserialize_keras_object(probability)}
        return cls(**config)

    def _sampling_at(self, step: tf.Tensor | None) -> tf.Tensor:
        """The sampling probability at a step, a float32 scalar."""
        probability = self._probability if self._probability_variable is None else self._probability_variable
        if callable(self._probability):
            if step is None:
                raise ValueError(
                    "`step` is needed for a `sampling_probability` that is a function of it. Received: step=None. "
                    "Pass the number of updates so far, as a trainer does."
                )
            probability = self._probability(step)
        probability = tf.cast(tf.convert_to_tensor(probability), tf.float32)
        if probability.shape.rank != 0:
            raise ValueError(
                "`sampling_probability` must give one number at each step. Received: a tensor of shape "
                f"{probability.shape}. Return a scalar."
            )
        return tf.clip_by_value(probability, 0.0, 1.0)

    def _loops(self, engine: str | None = None) -> Any:
        """The module of the requested engine, by default the constructor's."""
        engine = check_choice("engine", engine, ENGINES) or self.engine
        if engine == "addons":
            _addons_loops.check_installed()
        if self.compute_dtype != "float32" or engine == "native":
            return _native_loops
        return _addons_loops if engine == "addons" or _addons_loops.is_installed() else _native_loops

    def _check(self, representation: Any) -> None:
        entries = ("outputs", "state", "mask", *(() if self.copy_ids is None else ("copy_ids",)))
        check_representation("representation", representation, entries, type(self).__name__)

    def _begin_decoding(self, representation: dict[str, Any]) -> tuple[MemoryOrNone, DecoderState]:
        """Builds the decoder if necessary, and begins in its own precision."""
        self._check(representation)
        if not self.built:
            with tf.init_scope():
                self.build(tf.nest.map_structure(lambda tensor: tensor.shape, representation))
        dtype = self.compute_dtype
        return self.begin(
            tf.nest.map_structure(lambda leaf: tf.cast(leaf, dtype) if leaf.dtype.is_floating else leaf, representation)
        )

    def _run_layers(self, ids: tf.Tensor, state: DecoderState, training: bool | None) -> tf.Tensor:
        """Hidden states of the last layer over a whole input sequence, `[batch, time, units]`."""
        outputs = self.decoder_cell.embed(ids)
        for layer, layer_state in zip(self.recurrent_layers, state.layers):
            outputs = self.dropout_layer(outputs, training=training)
            outputs = layer(outputs, initial_state=state_list(layer_state))[0]
        return outputs

    def _weights(self, result: Decoded, memory: MemoryOrNone, state: DecoderState) -> tf.Tensor:
        """Attention weights of decoded sequences, from a second, teacher-forced pass over them."""
        num_best, length = result.ids.shape[1:]
        ids = tf.reshape(result.ids, [-1, length])
        memory, state = tf.nest.map_structure(lambda tensor: tf.repeat(tensor, num_best, axis=0), (memory, state))
        if self.input_feeding:
            inputs = self.decoder_cell.embed(self.shift_right(ids))
            hidden = _native_loops.run_stepwise(self.decoder_cell, inputs, memory, state, hidden=True)
        else:
            hidden = self._run_layers(self.shift_right(ids), state, training=False)
        weights = self.attention_layer(hidden, memory)[1]
        weights = tf.reshape(weights, [-1, num_best, length, tf.shape(weights)[-1]])
        return tf.where(tf.sequence_mask(result.lengths, length)[..., tf.newaxis], weights, tf.zeros([], weights.dtype))
