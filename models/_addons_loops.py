"""Decoding with TensorFlow Addons, from a decoder's own weights. No other file imports TensorFlow Addons.

Its functions are exempt from AutoGraph, which would convert Addons and its type checks too; that would take most of the time
of a trace.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ._attention import Memory, MemoryOrNone
from ._cell import DecoderCell, DecoderState, count_rows
from ._search import Decoded, Search, next_ids, pad_after_end, rank_beams


@functools.cache
def is_installed() -> bool:
    """Whether TensorFlow Addons can be used here: it is installed and TensorFlow is older than 2.16."""
    release = tuple(int(part) for part in tf.__version__.split(".")[:2])
    return release < (2, 16) and importlib.util.find_spec("tensorflow_addons") is not None


def check_installed() -> None:
    """Checks that TensorFlow Addons can be used here.

    Raises:
        ImportError: If TensorFlow Addons is not installed, or TensorFlow is 2.16 or newer.
    """
    if not is_installed():
        raise ImportError(
            '`engine="addons"` needs TensorFlow Addons, which works up to TensorFlow 2.15. '
            f'Received: TensorFlow {tf.__version__}. Install the `addons` extra, or use engine="native".'
        )


@functools.cache
def _seq2seq() -> Any:
    """The module `tensorflow_addons.seq2seq`, imported at first use and without its end-of-life warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_addons.seq2seq as seq2seq
    return seq2seq


class _RecurrentCell(keras.layers.Layer):
    """A decoder's recurrent layers as one Keras cell, with the decoder's first state as its initial state."""

    def __init__(self, cell: DecoderCell, initial: tuple[Any, ...]) -> None:
        super().__init__(name="recurrent_cell")
        self.output_size = cell.units
        self.state_size = tf.nest.map_structure(lambda tensor: cell.units, initial)
        self._cell = cell
        self._initial: Callable[[], tuple[Any, ...]] = lambda: initial  # Keras would wrap the tuple

    def get_initial_state(self, inputs: Any = None, batch_size: Any = None, dtype: Any = None) -> tuple[Any, ...]:
        """The decoder's first state, whatever the arguments."""
        return self._initial()

    def call(self, inputs: tf.Tensor, states: tuple[Any, ...], training: bool | None = None) -> tuple[Any, ...]:
        """One step."""
        return self._cell.recurrent_step(inputs, states, training=training)


class _NextLogits(keras.layers.Layer):
    """A decoder's output layer as it is used in decoding."""

    def __init__(self, cell: DecoderCell, memory: MemoryOrNone) -> None:
        super().__init__(name="next_logits")
        self._cell = cell
        self._memory: Callable[[], MemoryOrNone] = lambda: memory  # Keras would wrap the tuple

    def compute_output_shape(self, input_shape: Any) -> tf.TensorShape:
        """The shape of logits for vectors of a shape."""
        return tf.TensorShape(input_shape)[:-1].concatenate(self._cell.vocabulary_size)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Logits for `[batch, units]` or `[batch, beams, units]`."""
        return self._cell.next_logits(inputs, self._memory())


@tf.autograph.experimental.do_not_convert
def decode_rows(cell: DecoderCell, memory: MemoryOrNone, state: DecoderState, search: Search) -> tuple[tf.Tensor, tf.Tensor]:
    """Greedy decoding or sampling by `BasicDecoder`; arguments and results are those of `_native_loops.decode_rows`."""
    seq2seq = _seq2seq()

    class Sampler(seq2seq.GreedyEmbeddingSampler):  # type: ignore[name-defined]
        def sample(self, time: tf.Tensor, outputs: tf.Tensor, state: Any) -> tf.Tensor:
            return next_ids(outputs, time, search)

    rows = count_rows(state)
    memory, state = _never_empty((memory, state))
    wrapped, initial = wrap(cell, memory, state)
    sampler, length = Sampler(cell.embed), search.maximum_length
    loop = seq2seq.BasicDecoder(wrapped, sampler, _NextLogits(cell, memory), maximum_iterations=length)
    starts = tf.fill([count_rows(state)], cell.start_id)
    outputs, _, _ = loop(None, start_tokens=starts, end_token=cell.end_id, initial_state=initial)
    ids, lengths = pad_after_end(outputs.sample_id, cell.end_id, length)
    return ids[:rows], lengths[:rows]


@tf.autograph.experimental.do_not_convert
def decode_beams(cell: DecoderCell, memory: MemoryOrNone, state: DecoderState, search: Search) -> Decoded:
    """Beam search by `BeamSearchDecoder`; arguments and results are those of `_native_loops.decode_beams`."""
    seq2seq = _seq2seq()
    rows = count_rows(state)
    memory, state = _never_empty((memory, state))
    starts, output_layer = tf.fill([count_rows(state)], cell.start_id), _NextLogits(cell, memory)
    memory, state = seq2seq.tile_batch((memory, state), search.beam_width)
    wrapped, initial = wrap(cell, memory, state)
    loop = seq2seq.BeamSearchDecoder(
        wrapped,
        search.beam_width,
        embedding_fn=cell.embed,
        output_layer=output_layer,
        length_penalty_weight=search.length_penalty,
        reorder_tensor_arrays=False,
        maximum_iterations=search.maximum_length,
    )
    outputs, final, _ = loop(None, start_tokens=starts, end_token=cell.end_id, initial_state=initial)
    ids = tf.transpose(outputs.predicted_ids, [0, 2, 1])
    return rank_beams(ids[:rows], final.log_probs[:rows], search)


@tf.autograph.experimental.do_not_convert
def run_stepwise(
    cell: DecoderCell,
    embedded: tf.Tensor,
    memory: MemoryOrNone,
    state: DecoderState,
    *,
    training: bool | None = None,
    sampling: tf.Tensor | None = None,
) -> tf.Tensor:
    """Teacher-forced vectors by `BasicDecoder`; arguments and results are those of `_native_loops.run_stepwise`."""
    seq2seq = _seq2seq()
    seed = None if sampling is None else cell.sampling_seed()

    class Sampler(seq2seq.ScheduledEmbeddingTrainingSampler):  # type: ignore[name-defined]
        def sample(self, time: tf.Tensor, outputs: tf.Tensor, state: Any) -> tf.Tensor:
            return cell.sample_inputs(outputs, memory, sampling, seed, time)

    rows = count_rows(state)
    memory, state, embedded = _never_empty((memory, state, embedded))
    wrapped, initial = wrap(cell, memory, state)
    sampler = seq2seq.TrainingSampler() if sampling is None else Sampler(sampling, cell.embed)
    loop = seq2seq.BasicDecoder(wrapped, sampler)
    outputs, _, _ = loop(embedded, initial_state=initial, training=training)
    return outputs.rnn_output[:rows]


def _never_empty(tensors: Any) -> Any:
    """Adds a row to tensors without one: Addons' loops need one step to infer the shapes of their results."""

    def pad(tensor: tf.Tensor) -> tf.Tensor:
        if tensor.shape[0]:
            return tensor
        missing = tf.maximum(0, 1 - tf.shape(tensor)[0])
        padding = [[0, missing], *([[0, 0]] * (tensor.shape.rank - 1))]
        return tf.pad(tensor, padding, constant_values=tensor.dtype == tf.bool)

    return tf.nest.map_structure(pad, tensors)


def wrap(cell: DecoderCell, memory: MemoryOrNone, state: DecoderState) -> tuple[Any, Any]:
    """The recurrent layers as a Keras cell, with Addons' attention around it if there is any, and its first state."""
    recurrent = _RecurrentCell(cell, state.layers)
    if cell.attention_layer is None:
        return recurrent, state.layers
    wrapper = _seq2seq().AttentionWrapper(
        recurrent,
        _mechanism(cell, memory),
        attention_layer=cell.vector_layer,
        cell_input_fn=None if cell.input_feeding else lambda inputs, attention: inputs,
    )
    return wrapper, wrapper.get_initial_state(batch_size=tf.shape(memory.mask)[0], dtype=memory.values.dtype)


def _mechanism(cell: DecoderCell, memory: Memory) -> Any:
    """Addons' attention mechanism with the cell's weights."""
    seq2seq, attention = _seq2seq(), cell.attention_layer
    if attention.kind == "luong":
        mechanism = seq2seq.LuongAttention(cell.units, memory_layer=attention.memory_layer)
    else:
        mechanism = seq2seq.BahdanauAttention(
            cell.units, memory_layer=attention.memory_layer, query_layer=attention.query_layer
        )
        # Set here, before Addons would create a variable of its own.
        mechanism.attention_v = tf.convert_to_tensor(attention.score_layer.kernel)[:, 0]
    mechanism.setup_memory(memory.values, memory_mask=memory.mask)
    return mechanism
