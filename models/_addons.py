"""Decoding by TensorFlow Addons, on a decoder's own weights: the one file that imports it."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from .attention import Memory
from .decoding import Decoded, Search, count_rows, pick, rank_beams, tidy

if TYPE_CHECKING:
    from .decoder import Seq2SeqDecoder


@functools.cache
def is_installed() -> bool:
    """Whether TensorFlow Addons can be used here: it is installed and TensorFlow is older than 2.16."""
    release = tuple(int(part) for part in tf.__version__.split(".")[:2])
    return release < (2, 16) and importlib.util.find_spec("tensorflow_addons") is not None


def check_installed() -> None:
    """Checks that TensorFlow Addons can be used here.

    Raises:
        ImportError: If it cannot.
    """
    if not is_installed():
        raise ImportError(
            '`engine="addons"` needs TensorFlow Addons, which works up to TensorFlow 2.15. '
            f'Received: TensorFlow {tf.__version__}. Install the `addons` extra, or use engine="native".'
        )


@functools.cache
def _seq2seq() -> Any:
    """The module `tensorflow_addons.seq2seq`, imported at the first use and without its notice of end of life."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_addons.seq2seq as seq2seq
    return seq2seq


class _LayersCell(keras.layers.Layer):
    """A decoder's recurrent layers as one cell, with the decoder's own first state as its initial state."""

    def __init__(self, decoder: Seq2SeqDecoder, initial: tuple[Any, ...]) -> None:
        super().__init__(name="layers_cell")
        self.output_size = decoder.units
        self.state_size = tf.nest.map_structure(lambda tensor: decoder.units, initial)
        self._borrowed = (decoder, initial)

    def get_initial_state(self, inputs: Any = None, batch_size: Any = None, dtype: Any = None) -> tuple[Any, ...]:
        """The decoder's first state, whatever the arguments."""
        return self._borrowed[1]

    def call(self, inputs: tf.Tensor, states: tuple[Any, ...], training: bool | None = None) -> tuple[Any, ...]:
        """One step."""
        return self._borrowed[0].step_layers(inputs, states, training=training)


class _NextLogits(keras.layers.Layer):
    """A decoder's output layer as it is while decoding."""

    def __init__(self, decoder: Seq2SeqDecoder) -> None:
        super().__init__(name="next_logits")
        self._borrowed = (decoder,)

    def compute_output_shape(self, input_shape: Any) -> tf.TensorShape:
        """Vectors become logits."""
        return tf.TensorShape(input_shape)[:-1].concatenate(self._borrowed[0].vocabulary_size)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Logits for `[..., units]`."""
        return self._borrowed[0].next_logits(inputs)


def decode_rows(decoder: Seq2SeqDecoder, memory: Memory | None, state: Any, search: Search) -> tuple[tf.Tensor, tf.Tensor]:
    """Greedy decoding or sampling by `BasicDecoder`; as `_native.decode_rows`."""
    seq2seq = _seq2seq()

    class Sampler(seq2seq.GreedyEmbeddingSampler):  # type: ignore[name-defined]
        def sample(self, time: tf.Tensor, outputs: tf.Tensor, state: Any) -> tf.Tensor:
            return pick(outputs, time, search)

    rows = count_rows(state)
    memory, state = _never_empty((memory, state))
    cell, initial = wrap(decoder, memory, state)
    loop = seq2seq.BasicDecoder(cell, Sampler(decoder.embed), _NextLogits(decoder), maximum_iterations=search.maximum_length)
    starts = tf.fill([count_rows(state)], decoder.start_id)
    outputs, _, _ = loop(None, start_tokens=starts, end_token=decoder.end_id, initial_state=initial)
    ids, lengths = tidy(outputs.sample_id, decoder.end_id, search.maximum_length)
    return ids[:rows], lengths[:rows]


def decode_beams(decoder: Seq2SeqDecoder, memory: Memory | None, state: Any, search: Search) -> Decoded:
    """Beam search by `BeamSearchDecoder`; as `_native.decode_beams`."""
    seq2seq = _seq2seq()
    rows = count_rows(state)
    memory, state = _never_empty((memory, state))
    starts = tf.fill([count_rows(state)], decoder.start_id)
    state = seq2seq.tile_batch(state, search.beam_width)
    memory = None if memory is None else seq2seq.tile_batch(memory, search.beam_width)
    cell, initial = wrap(decoder, memory, state)
    loop = seq2seq.BeamSearchDecoder(
        cell,
        search.beam_width,
        embedding_fn=decoder.embed,
        output_layer=_NextLogits(decoder),
        length_penalty_weight=search.length_penalty,
        reorder_tensor_arrays=False,
        maximum_iterations=search.maximum_length,
    )
    outputs, final, _ = loop(None, start_tokens=starts, end_token=decoder.end_id, initial_state=initial)
    ids = tf.transpose(outputs.predicted_ids, [0, 2, 1])
    return rank_beams(ids[:rows], final.log_probs[:rows], decoder.end_id, search)


def run_stepwise(
    decoder: Seq2SeqDecoder,
    embedded: tf.Tensor,
    memory: Memory | None,
    state: Any,
    *,
    training: bool | None = None,
    sampling: float = 0.0,
) -> tf.Tensor:
    """Teacher-forced vectors by `BasicDecoder`; as `_native.run_stepwise`."""
    seq2seq = _seq2seq()

    class Sampler(seq2seq.ScheduledEmbeddingTrainingSampler):  # type: ignore[name-defined]
        def sample(self, time: tf.Tensor, outputs: tf.Tensor, state: Any) -> tf.Tensor:
            return super().sample(time, decoder.next_logits(outputs), state)

    rows = count_rows(state)
    memory, state, embedded = _never_empty((memory, state, embedded))
    cell, initial = wrap(decoder, memory, state)
    loop = seq2seq.BasicDecoder(cell, Sampler(sampling, decoder.embed) if sampling else seq2seq.TrainingSampler())
    outputs, _, _ = loop(embedded, initial_state=initial, training=training)
    return outputs.rnn_output[:rows]


def _never_empty(tensors: Any) -> Any:
    """Adds a row to tensors without one: Addons' loops need a step to know the shape of their results."""

    def pad(tensor: tf.Tensor | None) -> tf.Tensor | None:
        if tensor is None or tensor.shape[0]:
            return tensor
        missing = tf.maximum(0, 1 - tf.shape(tensor)[0])
        padding = [[0, missing], *([[0, 0]] * (tensor.shape.rank - 1))]
        return tf.pad(tensor, padding, constant_values=tensor.dtype == tf.bool)

    return tf.nest.map_structure(pad, tensors)


def wrap(decoder: Seq2SeqDecoder, memory: Memory | None, state: Any) -> tuple[Any, Any]:
    """The decoder's layers as a cell, with Addons' attention around it if it has any, and the cell's first state."""
    cell = _LayersCell(decoder, state.layers)
    if memory is None:
        return cell, state.layers
    wrapper = _seq2seq().AttentionWrapper(
        cell,
        _mechanism(decoder, memory),
        attention_layer=decoder.vector_layer,
        cell_input_fn=None if decoder.input_feeding else lambda inputs, attention: inputs,
    )
    return wrapper, wrapper.get_initial_state(batch_size=tf.shape(memory.mask)[0], dtype=memory.values.dtype)


def _mechanism(decoder: Seq2SeqDecoder, memory: Memory) -> Any:
    """Addons' attention mechanism on the decoder's weights."""
    seq2seq, attention = _seq2seq(), decoder.attention_layer
    lengths = tf.reduce_sum(tf.cast(memory.mask, tf.int32), axis=1)
    if decoder.attention == "luong":
        mechanism = seq2seq.LuongAttention(decoder.units, memory_layer=attention.memory_layer)
    else:
        mechanism = seq2seq.BahdanauAttention(
            decoder.units, memory_layer=attention.memory_layer, query_layer=attention.query_layer
        )
        # Set before Addons would make a variable of its own.
        mechanism.attention_v = tf.convert_to_tensor(attention.score_layer.kernel)[:, 0]
    mechanism.setup_memory(memory.values, lengths)
    return mechanism
