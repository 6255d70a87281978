"""The sequence decoder as a transformer: teacher-forced training, and decoding from stored keys and values."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ._blocks import EPSILON, Attended, Cache, Embedded, FeedForward, StepMemory, bias_of
from ._checks import check_choice, check_count, check_heads, check_ids, check_representation
from ._ids import AbstractDecoder
from ._loops import search_beams, search_rows
from ._recurrent import build_layer, dropout_layer
from ._search import Decoded, Search, SearchParts, excluded_ids, padded, penalty, shift_right


@keras.saving.register_keras_serializable(package="models")
class TransformerDecoder(AbstractDecoder):
    """Writes a sequence of token ids from an encoder's outputs, with attention to them and to the ids written so far.

    Each layer adds three parts to its input `x`: attention to the positions up to its own, attention to the encoder's
    outputs, and the feed-forward part, `W_2 gelu(W_1 norm(x))`; the attention parts read `norm(x)`, too. The logits are an
    affine map of the normalized result of the last layer. Positions are sinusoidal. The layers are Keras's own.

    Training computes all positions at once. Decoding stores keys and values of all layers, those of the encoder's outputs
    once per batch, and computes one position per step; the result is the same as without stored keys and values. The
    representation may also be that of a `Seq2SeqEncoder`, of any width. The decoder reads its `outputs` and `mask` only:
    with a balancer at the representation, give other heads `pool=True`, so that they read `outputs`, too, and not `final`
    alone.

    Ids: `start_id` precedes the first token, `end_id` ends a sequence, `padding_id` fills it up. Rows of targets hold the
    tokens, the end id and padding, without the start id; a trainer checks this when it reads the data (`check_labels`).
    Decoding returns neither padding nor the start id before the end; the start id may be the end id, too.

    Sources: as for `TransformerEncoder`.

    Args:
        vocabulary_size: Number of token ids, padding included.
        embedding_size: Size of a token's vector. If it is not `units`, an affine map follows.
        units: Size of each layer's result.
        num_heads: Number of attention heads in a layer; it divides `units`.
        num_layers: Number of layers.
        feed_forward_units: Size of the inner layer of the feed-forward part; None for `4 * units`.
        dropout: Fraction of the embedded ids, of the attention weights, of each part's result and of what the logits are
            computed from that is dropped in training.
        start_id: The id that precedes the first token.
        end_id: The id that ends a sequence.
        padding_id: The id of padding, as in the loss.
        maximum_length: Number of ids that `generate` returns, and the most that a row of targets may have.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own. Logits are always float32.

    Raises:
        ValueError: If an argument is out of its range, or `num_heads` does not divide `units`.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_size: int,
        units: int,
        *,
        num_heads: int = 4,
        num_layers: int = 2,
        feed_forward_units: int | None = None,
        dropout: float = 0.0,
        start_id: int = 2,
        end_id: int = 3,
        padding_id: int = 0,
        maximum_length: int = 64,
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
        self.num_heads = check_heads(units, num_heads)
        self.feed_forward_units = feed_forward_units and check_count("feed_forward_units", feed_forward_units)
        self._create_layers()

    def _create_layers(self) -> None:
        policy, rate, inner = self.dtype_policy, self.dropout, self.feed_forward_units or 4 * self.units
        self.embedded = Embedded(self.vocabulary_size, self.embedding_size, self.units, rate, dtype=policy)
        self.own_layers, self.source_layers = (
            [
                Attended(self.units, self.num_heads, rate, name=f"{read}_{index}", dtype=policy)
                for index in range(self.num_layers)
            ]
            for read in ("own", "source")
        )
        self.feed_forward_layers = [FeedForward(self.units, inner, rate, dtype=policy) for _ in range(self.num_layers)]
        self.norm = keras.layers.LayerNormalization(epsilon=EPSILON, name="norm", dtype=policy)
        self.dropout_layer = dropout_layer(rate, dtype=policy)
        self.output_layer = keras.layers.Dense(self.vocabulary_size, name="output", dtype="float32")

    def build(self, representation_shape: Any) -> None:
        """Creates the weights from the shapes of the representation's entries."""
        self._check(representation_shape)
        build_layer(self.embedded, None, None)
        for layer in self.own_layers:
            build_layer(layer, None, None, self.units)
        for layer in self.source_layers:
            build_layer(layer, None, None, representation_shape["outputs"][-1])
        for layer in (*self.feed_forward_layers, self.norm, self.output_layer):
            build_layer(layer, None, None, self.units)
        self.built = True

    def call(self, representation: dict[str, Any], targets: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Logits of each target token, given the previous tokens.

        Args:
            representation: What `TransformerEncoder` or `Seq2SeqEncoder` returns.
            targets: Integer ids, `[batch, time]`, each row ending with the end id and then padding.
            training: Whether dropout is active.

        Returns:
            Logits, float32 `[batch, time, vocabulary_size]`.

        Raises:
            ValueError: If the representation lacks an entry, or the targets are not a matrix of integers.
        """
        self._check(representation)
        ids = shift_right(check_ids("targets", targets), self.start_id)
        vectors = self._run(representation, ids, self.num_layers, training)
        return self.output_layer(self.dropout_layer(self.norm(vectors), training=training))

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
            representation: What `TransformerEncoder` or `Seq2SeqEncoder` returns.
            beam_width: Number of hypotheses in the beam; 1 is greedy.
            length_penalty: See `decode`.
            maximum_length: Number of ids; the constructor's by default.
            engine: `"native"` or None, which is the same. The argument is that of `Seq2SeqDecoder.generate`; the engine
                `"addons"` has no transformer.

        Returns:
            ids, int32 `[batch, maximum_length]`, up to and including the end id, then padding.

        Raises:
            ValueError: If an argument is out of its range.
        """
        check_choice("engine", engine, ("native", None))
        search = Search(self._length(maximum_length), self.end_id, beam_width, length_penalty=length_penalty)
        parts, starts = self._begin(representation, search)
        if beam_width == 1:
            ids, lengths, _ = search_rows(parts.step, starts, parts.state, parts.memory, search)
        else:
            ids, lengths = (each[:, 0] for each in search_beams(parts.step, starts, parts.state, parts.memory, search)[:2])
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

        The score of a sequence is its log probability divided by `((5 + length) / 6) ** length_penalty`; the length
        includes the end id.

        Args:
            representation: What `TransformerEncoder` or `Seq2SeqEncoder` returns.
            beam_width: Number of hypotheses in the beam; 1 is greedy.
            num_best: Number of sequences per example, at most `beam_width`.
            length_penalty: 0 compares log probabilities; larger values favor longer sequences.
            maximum_length: Number of ids; the constructor's by default.
            sample: Whether to sample each id instead of taking the most probable one.
            temperature: Divides the logits before sampling: below 1 sharpens the distribution (more conservative),
                above 1 flattens it (more diverse).
            top_k: Samples from this many most probable ids only; None for all.
            seed: The same seed returns the same sequences; None returns new ones at each call.
            return_attention: Whether to compute the attention weights too: of the last layer, the mean over its heads.

        Returns:
            See `Decoded`.

        Raises:
            ValueError: If an argument is out of its range.
        """
        if sample and seed is None:
            seed = tf.random.uniform([], maxval=tf.int32.max, dtype=tf.int32)
        length = self._length(maximum_length)
        search = Search(length, self.end_id, beam_width, num_best, length_penalty, sample, temperature, top_k, seed)
        parts, starts = self._begin(representation, search)
        if beam_width > 1:
            result = search_beams(parts.step, starts, parts.state, parts.memory, search)
        else:
            ids, lengths, totals = search_rows(parts.step, starts, parts.state, parts.memory, search, scored=True)
            scores = totals / penalty(lengths, length_penalty)
            result = Decoded(ids[:, tf.newaxis], lengths[:, tf.newaxis], scores[:, tf.newaxis], None)
        if return_attention:
            result = result._replace(attention=self._weights(result, representation))
        return result._replace(ids=padded(result.ids, result.lengths, self.padding_id))

    def begin_search(
        self, representation: dict[str, Any], *, beam_width: int = 1, maximum_length: int | None = None
    ) -> SearchParts:
        """Step, state and memory for the functions of `multihead.models.search`.

        Args:
            representation: What `TransformerEncoder` or `Seq2SeqEncoder` returns.
            beam_width: The width of the beam that will be searched with; 1 for `greedy` and `sample`.
            maximum_length: The number of ids to search for, which is the length of the stored keys and values; the
                constructor's by default.

        Returns:
            Step, state and memory, in the order of the arguments of `search.greedy`, `search.beam` and `search.sample`.

        Raises:
            ValueError: If the representation lacks an entry, or a number is out of its range.

        Example:
            >>> from multihead.models import TransformerEncoder, search
            >>> encoder = TransformerEncoder(9, 8, 8)
            >>> decoder = TransformerDecoder(9, 8, 8)
            >>> representation = encoder(tf.constant([[4, 5]]))
            >>> parts = decoder.begin_search(representation, maximum_length=6)
            >>> ends = dict(start_id=2, end_id=3, maximum_length=6)
            >>> search.greedy(*parts, **ends).ids.shape
            TensorShape([1, 1, 6])
        """
        length = check_count("maximum_length", self._length(maximum_length))
        step = TransformerStep(self, check_count("beam_width", beam_width))
        representation = self._built_for(representation)
        outputs, mask = representation["outputs"], representation["mask"]
        rows = tf.shape(mask)[0]
        empty = tf.zeros([rows, length, self.num_heads, self.units // self.num_heads], self.compute_dtype)
        caches = tuple(Cache(empty, empty) for _ in range(self.num_layers))
        memory = StepMemory(tuple(layer.cache(outputs) for layer in self.source_layers), bias_of(mask, self.compute_dtype))
        return SearchParts(step, TransformerState(tf.zeros([rows], tf.int32), caches), memory)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "feed_forward_units": self.feed_forward_units,
        }

    def _run(self, representation: dict[str, Any], ids: tf.Tensor, num_layers: int, training: bool | None) -> tf.Tensor:
        """Results of the first layers for a whole input sequence `[batch, time]`, `[batch, time, units]`."""
        outputs, mask = representation["outputs"], representation["mask"]
        vectors = self.embedded(ids, tf.range(tf.shape(ids)[1])[tf.newaxis], training=training)
        for own, source, feed_forward in zip(self.own_layers, self.source_layers, self.feed_forward_layers[:num_layers]):
            vectors = own(vectors, causal=True, training=training)
            vectors = feed_forward(source(vectors, outputs, mask, training=training), training=training)
        return vectors

    def _begin(self, representation: dict[str, Any], search: Search) -> tuple[SearchParts, tf.Tensor]:
        """The parts of a search, and the ids before the first step, int32 `[batch]`."""
        parts = self.begin_search(representation, beam_width=search.beam_width, maximum_length=search.maximum_length)
        return parts, tf.fill(tf.shape(parts.state.place), self.start_id)

    def _check(self, representation: Any) -> None:
        check_representation("representation", representation, ("outputs", "mask"), type(self).__name__)

    def _built_for(self, representation: dict[str, Any]) -> dict[str, Any]:
        """The entries that are read, in this layer's own precision; builds the decoder if necessary."""
        self._check(representation)
        entries = {name: representation[name] for name in ("outputs", "mask")}
        if not self.built:
            with tf.init_scope():
                self.build({name: tensor.shape for name, tensor in entries.items()})
        return {**entries, "outputs": tf.cast(entries["outputs"], self.compute_dtype)}

    def _weights(self, result: Decoded, representation: dict[str, Any]) -> tf.Tensor:
        """The last layer's attention weights of decoded sequences, from a second, teacher-forced pass over them."""
        num_best, length = result.ids.shape[1:]
        ids = tf.reshape(result.ids, [-1, length])
        entries = {name: tf.repeat(each, num_best, axis=0) for name, each in self._built_for(representation).items()}
        vectors = self._run(entries, shift_right(ids, self.start_id), self.num_layers - 1, training=False)
        vectors = self.own_layers[-1](vectors, causal=True, training=False)
        weights = self.source_layers[-1].weights_of(vectors, entries["outputs"], entries["mask"])
        weights = tf.reshape(weights, [-1, num_best, length, tf.shape(weights)[-1]])
        return tf.where(tf.sequence_mask(result.lengths, length)[..., tf.newaxis], weights, tf.zeros([], weights.dtype))


class TransformerState(NamedTuple):
    """What one step passes to the next.

    Attributes:
        place: The position of the next step, int32 `[rows]`.
        caches: Keys and values of each layer, `[rows, maximum_length, heads, size]`, zero from the next position on.
    """

    place: tf.Tensor
    caches: tuple[Cache, ...]


class TransformerStep:
    """One position of a decoder, from the keys and values of those before it.

    Args:
        decoder: The decoder.
        width: Number of rows per example; the rows of an example are consecutive.
    """

    def __init__(self, decoder: TransformerDecoder, width: int) -> None:
        self._decoder = decoder
        self._width = width

    def __call__(self, last: tf.Tensor, state: TransformerState, memory: StepMemory) -> tuple[tf.Tensor, TransformerState]:
        """Reads the last ids.

        Args:
            last: int32 `[batch * width]`.
            state: The state before the step.
            memory: Keys and values of the encoder's outputs, one entry per example.

        Returns:
            The logits of the next ids, float32 `[batch * width, vocabulary_size]`, and the state after the step.
        """
        decoder, place = self._decoder, state.place[:, tf.newaxis]
        vectors = decoder.embedded(last[:, tf.newaxis], place, training=False)
        places = tf.range(state.caches[0].keys.shape[1])
        here, bias = tf.equal(places, place)[:, :, tf.newaxis, tf.newaxis], bias_of(places <= place, vectors.dtype)
        caches = []
        for index, (own, source) in enumerate(zip(decoder.own_layers, decoder.source_layers)):
            normed = own.norm(vectors)
            cache = Cache(*(tf.where(here, new, old) for new, old in zip(own.cache(normed), state.caches[index])))
            caches.append(cache)
            vectors = own.step(vectors, normed, cache, bias)
            vectors = tf.reshape(vectors, [-1, self._width, decoder.units])
            vectors = source.step(vectors, source.norm(vectors), memory.caches[index], memory.bias)
            vectors = decoder.feed_forward_layers[index](tf.reshape(vectors, [-1, 1, decoder.units]), training=False)
        logits = decoder.output_layer(decoder.norm(vectors)[:, 0])
        logits += excluded_ids(decoder)
        return logits, TransformerState(state.place + 1, tuple(caches))
