"""This library's own decoding loops, for both stacks.

Finished examples are removed from the batch once they are at least 1/16 of it; their results are stored and the loop
continues with fewer rows. An example's sequence does not depend on the other examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from ._attention import MemoryOrNone
from ._cell import DecoderCell, DecoderState, FastStep, count_rows
from ._recurrent import hidden_of
from ._search import Decoded, Search, next_ids, penalty, rank_beams

_FRACTION = 16
"""Finished examples are removed once they are one in this many: continuing with fewer rows costs about a tenth of a step."""


class LoopState(NamedTuple):
    """The loop's variables, one entry per example in the loop.

    Without beams, the ids, the last ids and the state have no axis for them, and totals and `ended` are `()`.

    Attributes:
        number: The example's position in the batch.
        done: Whether its result is final.
        ids: The ids written so far, int32 `[examples, beams, maximum_length]`.
        totals: Log probability of each beam, float32 `[examples, beams]`.
        ended: Whether a beam has written its end id, `[examples, beams]`.
        last: The last ids, `[examples, beams]`.
        state: The decoder's state, each tensor `[examples, beams, ...]`.
        memory: What attention reads; `()` without attention.
    """

    number: tf.Tensor
    done: tf.Tensor
    ids: tf.Tensor
    totals: Any
    ended: Any
    last: tf.Tensor
    state: DecoderState
    memory: MemoryOrNone


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

    def advance(time: tf.Tensor, loop: LoopState) -> LoopState:
        logits, state = step(loop.last, loop.state, loop.memory)
        last = tf.where(loop.done, 0, next_ids(logits, time, search))
        done = tf.logical_or(loop.done, tf.equal(last, cell.end_id))
        return loop._replace(done=done, ids=_write(loop.ids, time, last), last=last, state=state)

    loop = _begin(tf.fill([count_rows(state)], cell.start_id), state, step.prepare(memory), search)
    # A sample depends on the position in the batch, so sampled examples keep theirs.
    ids, _ = run_until_done(advance, loop, search, remove_done=not search.sample)
    return ids, tf.math.count_nonzero(ids, axis=1, dtype=tf.int32)


def decode_beams(cell: DecoderCell, memory: MemoryOrNone, state: DecoderState, search: Search) -> Decoded:
    """Beam search.

    A step keeps the `beam_width` continuations with the highest log probability divided by length penalty. As in
    TensorFlow Addons, an end id counts towards the length only from the next step on. An example is done when its
    `num_best` best beams have ended and no other beam can overtake them.

    Args:
        cell: The decoder's cell.
        memory: What attention reads, one entry per example: its beams share it; `()` without attention.
        state: The initial state, one row per example.
        search: Width, maximum length, length penalty, number of results.

    Returns:
        The best hypotheses, without attention.
    """
    width, power = search.beam_width, search.length_penalty
    per_beam = min(width + 1, cell.vocabulary_size)  # one of them may be the end id again
    step = FastStep(cell, width)

    def advance(time: tf.Tensor, loop: LoopState) -> LoopState:
        rows = tf.nest.map_structure(lambda tensor: tf.reshape(tensor, [-1, tensor.shape[2]]), loop.state)
        logits, state = step(tf.reshape(loop.last, [-1]), rows, loop.memory)
        state = tf.nest.map_structure(lambda tensor: tf.reshape(tensor, [-1, width, tensor.shape[1]]), state)
        log_probabilities, tokens = _candidates(logits, cell.end_id, per_beam)
        # A beam that has ended continues unchanged, by its first candidate, which is the end id.
        unchanged = tf.constant([0.0] + [-float("inf")] * per_beam)
        ended = tf.repeat(loop.ended[:, :, tf.newaxis], per_beam + 1, axis=2)
        steps = tf.where(ended, unchanged, tf.reshape(log_probabilities, [-1, width, per_beam + 1]))
        totals = loop.totals[:, :, tf.newaxis] + steps
        scores = totals
        if power:
            longer = tf.logical_not(tf.logical_or(ended, tf.constant([True] + [False] * per_beam)))
            lengths = _lengths(loop.ids, loop.ended, time)[:, :, tf.newaxis]
            scores /= penalty(lengths + tf.cast(longer, tf.int32), power)
        _, chosen = tf.math.top_k(_flat(scores), width)
        origin = chosen // (per_beam + 1)
        last = tf.gather(tf.reshape(tokens, [-1, width * (per_beam + 1)]), chosen, batch_dims=1)
        totals = tf.gather(_flat(totals), chosen, batch_dims=1)
        return extend(loop._replace(last=last, totals=totals, state=state), origin, time)

    def extend(loop: LoopState, origin: tf.Tensor, time: tf.Tensor) -> LoopState:
        ended, ids = tf.gather(loop.ended, origin, batch_dims=1), tf.gather(loop.ids, origin, batch_dims=1)
        ids = _write(ids, time, tf.where(ended, 0, loop.last))
        ended = tf.logical_or(ended, tf.equal(loop.last, cell.end_id))
        state = tf.nest.map_structure(lambda tensor: tf.gather(tensor, origin, batch_dims=1), loop.state)
        lengths = tf.where(ended, _lengths(ids, ended, time + 1), search.maximum_length)
        best = tf.math.top_k(loop.totals / penalty(lengths, power), search.num_best).indices
        done = tf.reduce_all(tf.gather(ended, best, batch_dims=1), axis=1)
        return loop._replace(done=done, ids=ids, ended=ended, state=state)

    last = tf.fill([count_rows(state), width], cell.start_id)
    beams = tf.nest.map_structure(lambda tensor: tf.repeat(tensor[:, tf.newaxis], width, axis=1), state)
    # At first all beams of an example are equal: only one may continue.
    totals = tf.zeros_like(last, tf.float32) + tf.constant([0.0] + [-float("inf")] * (width - 1))
    loop = _begin(last, beams, step.prepare(memory), search)
    loop = loop._replace(totals=totals, ended=tf.zeros_like(last, tf.bool))
    ids, totals = run_until_done(advance, loop, search, remove_done=True)
    return rank_beams(ids, totals, cell.end_id, search)


def _candidates(logits: tf.Tensor, end_id: int, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Each row's end id and its most probable ids: no other can be among the best continuations.

    Args:
        logits: float32 `[rows, vocabulary]`.
        end_id: The id that ends a sequence; it comes first, and may come again with probability 0.
        count: Number of other ids.

    Returns:
        Log probabilities, float32, and ids, int32, each `[rows, 1 + count]`.
    """
    values, tokens = tf.math.top_k(logits, count)
    values = tf.where(tf.equal(tokens, end_id), -float("inf"), values)
    values = tf.concat([logits[:, end_id, tf.newaxis], values], axis=1)
    log_probabilities = values - tf.reduce_logsumexp(logits, axis=1, keepdims=True)
    return log_probabilities, tf.concat([tf.fill([tf.shape(tokens)[0], 1], end_id), tokens], axis=1)


def _begin(last: tf.Tensor, state: DecoderState, memory: MemoryOrNone, search: Search) -> LoopState:
    """All examples before the first step, none of them done; without totals and `ended`."""
    examples = tf.shape(last)[0]
    return LoopState(
        number=tf.range(examples),
        done=tf.zeros([examples], tf.bool),
        ids=tf.zeros([examples, *last.shape[1:], search.maximum_length], tf.int32),
        totals=(),
        ended=(),
        last=last,
        state=state,
        memory=memory,
    )


def run_until_done(
    advance: Callable[[tf.Tensor, LoopState], LoopState], loop: LoopState, search: Search, *, remove_done: bool
) -> tuple[tf.Tensor, Any]:
    """Runs steps until every example is done or at its maximum length.

    Args:
        advance: One step: from the time and the loop's variables to the variables after the step.
        loop: The variables of all examples.
        search: The maximum length.
        remove_done: Whether finished examples are removed from the loop.

    Returns:
        All examples' ids and totals.
    """
    shapes = tf.nest.map_structure(lambda tensor: tf.TensorShape([None]).concatenate(tensor.shape[1:]), loop)
    results = (loop.ids, loop.totals)

    def run(time: tf.Tensor, loop: LoopState, enough: tf.Tensor) -> tuple[tf.Tensor, LoopState]:
        def proceed(time: tf.Tensor, loop: LoopState) -> tf.Tensor:
            done = tf.reduce_sum(tf.cast(loop.done, tf.int32))
            return tf.logical_and(time < search.maximum_length, done < enough)

        return tf.while_loop(proceed, lambda time, loop: (time + 1, advance(time, loop)), (time, loop))

    def store_done(time: tf.Tensor, loop: LoopState, results: Any) -> tuple[Any, ...]:
        time, loop = run(time, loop, (tf.size(loop.done) + _FRACTION - 1) // _FRACTION)
        positions = loop.number[:, tf.newaxis]
        results = tf.nest.map_structure(
            lambda whole, part: tf.tensor_scatter_nd_update(whole, positions, part), results, (loop.ids, loop.totals)
        )
        unfinished = tf.squeeze(tf.where(tf.logical_not(loop.done)), axis=1)
        return time, tf.nest.map_structure(lambda tensor: tf.gather(tensor, unfinished), loop), results

    def any_left(time: tf.Tensor, loop: LoopState, results: Any) -> tf.Tensor:
        return tf.logical_and(time < search.maximum_length, tf.size(loop.done) > 0)

    start = tf.constant(0)
    if not remove_done or loop.done.shape[0] == 1:  # a batch of one example ends with it
        _, loop = run(start, loop, tf.size(loop.done))
        return loop.ids, loop.totals
    result_shapes = tf.nest.map_structure(lambda tensor: tensor.shape, results)
    _, _, results = tf.while_loop(any_left, store_done, (start, loop, results), (tf.TensorShape([]), shapes, result_shapes))
    return results


def _write(ids: tf.Tensor, time: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """Writes `[...]` at position `time` of `[..., maximum_length]`."""
    return tf.where(tf.equal(tf.range(ids.shape[-1]), time), last[..., tf.newaxis], ids)


def _lengths(ids: tf.Tensor, ended: tf.Tensor, time: tf.Tensor) -> tf.Tensor:
    """Number of ids that each beam has written, the end id included: `time` until it ends, as none is padding."""
    return tf.where(ended, tf.reduce_sum(tf.cast(tf.not_equal(ids, 0), tf.int32), axis=2), time)


def _flat(tensor: tf.Tensor) -> tf.Tensor:
    """`[examples, beams * vocabulary]` from `[examples, beams, vocabulary]`."""
    return tf.reshape(tensor, [-1, tensor.shape[1] * tensor.shape[2]])


def run_stepwise(
    cell: DecoderCell,
    embedded: tf.Tensor,
    memory: MemoryOrNone,
    state: DecoderState,
    *,
    training: bool | None = None,
    sampling: float = 0.0,
    hidden: bool = False,
) -> tf.Tensor:
    """Teacher-forced vectors step by step, so that a step can depend on the previous one.

    Args:
        cell: The decoder's cell.
        embedded: Embedded inputs, `[batch, time, embedding_size]`.
        memory: What attention reads; `()` without attention.
        state: The initial state.
        training: Whether dropout is active.
        sampling: Probability with which an input is replaced by an id sampled from the previous step.
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
        if sampling:
            sampled = cell.sample_inputs(vectors, sampling, seed, time)
            inputs = tf.where(sampled[:, tf.newaxis] >= 0, cell.embedding(tf.maximum(sampled, 0)), inputs)
        return time + 1, inputs, state, outputs

    seed = cell.sampling_seed() if sampling else None
    start = (tf.constant(0), embedded[0], state, outputs)
    _, _, _, outputs = tf.while_loop(lambda time, *_: time < steps, advance, start, maximum_iterations=steps)
    return tf.transpose(outputs.stack(), [1, 0, 2])
