"""This library's own decoding, for both stacks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ._attention import MemoryOrNone
from ._cell import DecoderCell, DecoderState, FastStep, count_rows
from ._loops import search_beams, search_rows
from ._recurrent import hidden_of
from ._search import Decoded, Search


def decode_rows(cell: DecoderCell, memory: MemoryOrNone, state: DecoderState, search: Search) -> tuple[tf.Tensor, tf.Tensor]:
    """Greedy decoding or sampling.

    Args:
        cell: The decoder's cell.
        memory: What attention reads; `()` without attention.
        state: The initial state, one row per example.
        search: Maximum length and how to choose ids.

    Returns:
        ids, int32 `[batch, maximum_length]`, and lengths, int32 `[batch]`.
    """
    step = FastStep(cell, width=1)
    return search_rows(step, _starts(cell, state), state, step.prepare(memory), search)[:2]


def decode_beams(cell: DecoderCell, memory: MemoryOrNone, state: DecoderState, search: Search) -> Decoded:
    """Beam search; see `_loops.search_beams`.

    Args:
        cell: The decoder's cell.
        memory: What attention reads, one entry per example: its beams share it; `()` without attention.
        state: The initial state, one row per example.
        search: Width, maximum length, length penalty, number of results.

    Returns:
        The best hypotheses, without attention.
    """
    step = FastStep(cell, search.beam_width)
    return search_beams(step, _starts(cell, state), state, step.prepare(memory), search)


def _starts(cell: DecoderCell, state: DecoderState) -> tf.Tensor:
    return tf.fill([count_rows(state)], cell.start_id)


def run_stepwise(
    cell: DecoderCell,
    embedded: tf.Tensor,
    memory: MemoryOrNone,
    state: DecoderState,
    *,
    training: bool | None = None,
    sampling: tf.Tensor | None = None,
    hidden: bool = False,
) -> tf.Tensor:
    """Teacher-forced vectors step by step, so that a step can depend on the previous one.

    Args:
        cell: The decoder's cell.
        embedded: Embedded inputs, `[batch, time, embedding_size]`.
        memory: What attention reads; `()` without attention.
        state: The initial state.
        training: Whether dropout is active.
        sampling: Probability with which an input is replaced by an id sampled from the previous step; None for never.
        hidden: Whether to return the last layer's hidden states instead of the vectors.

    Returns:
        `[batch, time, units]`.
    """
    steps = tf.shape(embedded)[1]
    embedded = tf.transpose(embedded, [1, 0, 2])
    outputs = tf.TensorArray(embedded.dtype, steps, element_shape=[None, cell.units])

    def advance(time: tf.Tensor, inputs: tf.Tensor, state: DecoderState, outputs: tf.TensorArray) -> tuple[Any, ...]:
        vectors, state = cell.step(inputs, state, memory, training=training)
        outputs = outputs.write(time, hidden_of(state.layers[-1]) if hidden else vectors)
        inputs = embedded[tf.minimum(time + 1, steps - 1)]
        if sampling is not None:
            sampled = cell.sample_inputs(vectors, memory, sampling, seed, time)
            inputs = tf.where(sampled[:, tf.newaxis] >= 0, cell.embed(tf.maximum(sampled, 0)), inputs)
        return time + 1, inputs, state, outputs

    seed = None if sampling is None else cell.sampling_seed()
    start = (tf.constant(0), embedded[0], state, outputs)
    _, _, _, outputs = tf.while_loop(lambda time, *_: time < steps, advance, start, maximum_iterations=steps)
    return tf.transpose(outputs.stack(), [1, 0, 2])
