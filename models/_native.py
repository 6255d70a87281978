"""The library's own decoding loops, on both stacks.

Examples that are done leave the loop: as soon as they are a sixteenth of those at work, their results are put away and the
loop goes on with fewer rows. An example's sequence does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from ._recurrent import hidden_of
from ._step import Step, StepMemory
from .attention import Memory
from .decoding import Decoded, Search, count_rows, penalty, pick, rank_beams

if TYPE_CHECKING:
    from .decoder import Seq2SeqDecoder


_SHARE = 16
"""Examples leave when one in so many is done: going on with fewer rows costs about a tenth of a step."""


class _Work(NamedTuple):
    """What the loop carries, one entry per example at work.

    Without beams, the ids, the last ids and the state have no axis for them, and totals and `ended` are empty tuples.

    Attributes:
        number: The example's place in the batch.
        done: Whether its result stands.
        ids: What it wrote so far, int32 `[examples, beams, maximum_length]`.
        totals: Log probability of each beam, float32 `[examples, beams]`.
        ended: Whether a beam has written its end id, `[examples, beams]`.
        last: The last ids, `[examples, beams]`.
        state: The decoder's state, each tensor `[examples, beams, ...]`.
        memory: What attention reads; an empty tuple without attention.
    """

    number: tf.Tensor
    done: tf.Tensor
    ids: tf.Tensor
    totals: Any
    ended: Any
    last: tf.Tensor
    state: Any
    memory: Any


def decode_rows(decoder: Seq2SeqDecoder, memory: Memory | None, state: Any, search: Search) -> tuple[tf.Tensor, tf.Tensor]:
    """Greedy decoding or sampling.

    Args:
        decoder: The decoder.
        memory: What attention reads.
        state: The initial state, for one row per example.
        search: Maximum length and how to pick.

    Returns:
        ids, int32 `[batch, maximum_length]`, and lengths, int32 `[batch]`.
    """
    advance = Step(decoder, width=1)

    def step(time: tf.Tensor, work: _Work) -> _Work:
        logits, state = advance(work.last, work.state, work.memory or None)
        last = tf.where(work.done, 0, pick(logits, time, search))
        done = tf.logical_or(work.done, tf.equal(last, decoder.end_id))
        return work._replace(done=done, ids=_write(work.ids, time, last), last=last, state=state)

    work = _begin(tf.fill([count_rows(state)], decoder.start_id), state, advance.prepare(memory), search)
    # Draws belong to a place in the batch, so sampled examples keep theirs.
    ids, _ = _finish(step, work, search, leave=not search.sample)
    return ids, tf.math.count_nonzero(ids, axis=1, dtype=tf.int32)


def decode_beams(decoder: Seq2SeqDecoder, memory: Memory | None, state: Any, search: Search) -> Decoded:
    """Beam search.

    A step keeps the `beam_width` continuations with the highest log probability over length penalty, in which, as in
    TensorFlow Addons, an end id counts for the length only from the next step on. An example is done when its
    `num_best` best beams have ended and no other one can overtake them any more.

    Args:
        decoder: The decoder.
        memory: What attention reads, one entry per example: beams share it.
        state: The initial state, for one row per example.
        search: Width, maximum length, length penalty, number of results.

    Returns:
        The best hypotheses, without attention.
    """
    width, power = search.beam_width, search.length_penalty
    end_id = decoder.end_id
    per_beam = min(width + 1, decoder.vocabulary_size)  # one of them may be the end id once more
    advance = Step(decoder, width)

    def step(time: tf.Tensor, work: _Work) -> _Work:
        rows = tf.nest.map_structure(lambda tensor: tf.reshape(tensor, [-1, tensor.shape[2]]), work.state)
        logits, state = advance(tf.reshape(work.last, [-1]), rows, work.memory or None)
        state = tf.nest.map_structure(lambda tensor: tf.reshape(tensor, [-1, width, tensor.shape[1]]), state)
        log_probabilities, tokens = _candidates(logits, end_id, per_beam)
        # A beam that has ended goes on as it is, by its first candidate, which is the end id.
        unchanged = tf.constant([0.0] + [-float("inf")] * per_beam)
        ended = tf.repeat(work.ended[:, :, tf.newaxis], per_beam + 1, axis=2)
        steps = tf.where(ended, unchanged, tf.reshape(log_probabilities, [-1, width, per_beam + 1]))
        totals = work.totals[:, :, tf.newaxis] + steps
        scores = totals
        if power:
            longer = tf.logical_not(tf.logical_or(ended, tf.constant([True] + [False] * per_beam)))
            lengths = _lengths(work.ids, work.ended, time)[:, :, tf.newaxis]
            scores /= penalty(lengths + tf.cast(longer, tf.int32), power)
        _, chosen = tf.math.top_k(_flat(scores), width)
        origin = chosen // (per_beam + 1)
        last = tf.gather(tf.reshape(tokens, [-1, width * (per_beam + 1)]), chosen, batch_dims=1)
        return _follow(work, state, origin, last, tf.gather(_flat(totals), chosen, batch_dims=1), time)

    def _follow(work: _Work, state: Any, origin: tf.Tensor, last: tf.Tensor, totals: tf.Tensor, time: tf.Tensor) -> _Work:
        ended, ids = tf.gather(work.ended, origin, batch_dims=1), tf.gather(work.ids, origin, batch_dims=1)
        ids = _write(ids, time, tf.where(ended, 0, last))
        ended = tf.logical_or(ended, tf.equal(last, end_id))
        state = tf.nest.map_structure(lambda tensor: tf.gather(tensor, origin, batch_dims=1), state)
        lengths = tf.where(ended, _lengths(ids, ended, time + 1), search.maximum_length)
        best = tf.math.top_k(totals / penalty(lengths, power), search.num_best).indices
        done = tf.reduce_all(tf.gather(ended, best, batch_dims=1), axis=1)
        return work._replace(done=done, ids=ids, totals=totals, ended=ended, last=last, state=state)

    last = tf.fill([count_rows(state), width], decoder.start_id)
    beams = tf.nest.map_structure(lambda tensor: tf.repeat(tensor[:, tf.newaxis], width, axis=1), state)
    # At first all beams of an example are alike: only one may continue.
    totals = tf.zeros_like(last, tf.float32) + tf.constant([0.0] + [-float("inf")] * (width - 1))
    work = _begin(last, beams, advance.prepare(memory), search)
    work = work._replace(totals=totals, ended=tf.zeros_like(last, tf.bool))
    ids, totals = _finish(step, work, search, leave=True)
    return rank_beams(ids, totals, decoder.end_id, search)


def _candidates(logits: tf.Tensor, end_id: int, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Each row's end id and its likeliest ids: no other can be among the best continuations.

    Args:
        logits: float32 `[rows, vocabulary]`.
        end_id: The id that ends a sequence; it comes first, and may come again with no probability.
        count: Number of further ids.

    Returns:
        Log probabilities, float32, and ids, int32, each `[rows, 1 + count]`.
    """
    values, tokens = tf.math.top_k(logits, count)
    values = tf.where(tf.equal(tokens, end_id), -float("inf"), values)
    values = tf.concat([logits[:, end_id, tf.newaxis], values], axis=1)
    log_probabilities = values - tf.reduce_logsumexp(logits, axis=1, keepdims=True)
    return log_probabilities, tf.concat([tf.fill([tf.shape(tokens)[0], 1], end_id), tokens], axis=1)


def _begin(last: tf.Tensor, state: Any, memory: StepMemory | None, search: Search) -> _Work:
    """All examples before the first step, none of them done; without totals and `ended`."""
    examples = tf.shape(last)[0]
    return _Work(
        number=tf.range(examples),
        done=tf.zeros([examples], tf.bool),
        ids=tf.zeros([examples, *last.shape[1:], search.maximum_length], tf.int32),
        totals=(),
        ended=(),
        last=last,
        state=state,
        memory=memory or (),
    )


def _finish(step: Callable[[tf.Tensor, _Work], _Work], work: _Work, search: Search, *, leave: bool) -> tuple[tf.Tensor, Any]:
    """Steps until every example is done or at its maximum length.

    Args:
        step: From the time and the work to the work after.
        work: All examples.
        search: The maximum length.
        leave: Whether done examples leave the loop.

    Returns:
        All examples' ids and totals.
    """
    shapes = tf.nest.map_structure(lambda tensor: tf.TensorShape([None]).concatenate(tensor.shape[1:]), work)
    results = (work.ids, work.totals)

    def run(time: tf.Tensor, work: _Work, enough: tf.Tensor) -> tuple[tf.Tensor, _Work]:
        def proceed(time: tf.Tensor, work: _Work) -> tf.Tensor:
            done = tf.reduce_sum(tf.cast(work.done, tf.int32))
            return tf.logical_and(time < search.maximum_length, done < enough)

        return tf.while_loop(proceed, lambda time, work: (time + 1, step(time, work)), (time, work))

    def put_away(time: tf.Tensor, work: _Work, results: Any) -> tuple[Any, ...]:
        time, work = run(time, work, (tf.size(work.done) + _SHARE - 1) // _SHARE)
        places = work.number[:, tf.newaxis]
        results = tf.nest.map_structure(
            lambda whole, part: tf.tensor_scatter_nd_update(whole, places, part), results, (work.ids, work.totals)
        )
        working = tf.squeeze(tf.where(tf.logical_not(work.done)), axis=1)
        return time, tf.nest.map_structure(lambda tensor: tf.gather(tensor, working), work), results

    def unfinished(time: tf.Tensor, work: _Work, results: Any) -> tf.Tensor:
        return tf.logical_and(time < search.maximum_length, tf.size(work.done) > 0)

    start = tf.constant(0)
    if not leave or work.done.shape[0] == 1:  # a single example has no others to leave
        _, work = run(start, work, tf.size(work.done))
        return work.ids, work.totals
    result_shapes = tf.nest.map_structure(lambda tensor: tensor.shape, results)
    _, _, results = tf.while_loop(unfinished, put_away, (start, work, results), (tf.TensorShape([]), shapes, result_shapes))
    return results


def _write(ids: tf.Tensor, time: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """Puts `[...]` into the place `time` of `[..., maximum_length]`."""
    return tf.where(tf.equal(tf.range(ids.shape[-1]), time), last[..., tf.newaxis], ids)


def _lengths(ids: tf.Tensor, ended: tf.Tensor, time: tf.Tensor) -> tf.Tensor:
    """Number of ids that each beam has written, the end id included: all of them, as none is padding, until it ends."""
    return tf.where(ended, tf.reduce_sum(tf.cast(tf.not_equal(ids, 0), tf.int32), axis=2), time)


def _flat(tensor: tf.Tensor) -> tf.Tensor:
    """`[examples, beams * vocabulary]` from `[examples, beams, vocabulary]`."""
    return tf.reshape(tensor, [-1, tensor.shape[1] * tensor.shape[2]])


def run_stepwise(
    decoder: Seq2SeqDecoder,
    embedded: tf.Tensor,
    memory: Memory | None,
    state: Any,
    *,
    training: bool | None = None,
    sampling: float = 0.0,
    hidden: bool = False,
) -> tf.Tensor:
    """Teacher-forced vectors step by step, so that a step can depend on the one before.

    Args:
        decoder: The decoder.
        embedded: Embedded inputs, `[batch, time, embedding_size]`.
        memory: What attention reads.
        state: The initial state.
        training: Whether dropout is active.
        sampling: Probability with which an input is replaced by an id drawn from the step before.
        hidden: Whether to return the upper layer's hidden states rather than the vectors.

    Returns:
        `[batch, time, units]`.
    """
    steps = tf.shape(embedded)[1]
    embedded = tf.transpose(embedded, [1, 0, 2])
    outputs = tf.TensorArray(embedded.dtype, steps, element_shape=[None, decoder.units])

    def step(time: tf.Tensor, inputs: tf.Tensor, state: Any, outputs: tf.TensorArray) -> tuple[Any, ...]:
        vectors, state = decoder.advance(inputs, state, memory, training=training)
        outputs = outputs.write(time, hidden_of(state.layers[-1]) if hidden else vectors)
        inputs = embedded[tf.minimum(time + 1, steps - 1)]
        if sampling:
            drawn = tf.random.categorical(decoder.next_logits(vectors), 1, dtype=tf.int32)[:, 0]
            replaced = tf.random.uniform(tf.shape(drawn)) < sampling
            inputs = tf.where(replaced[:, tf.newaxis], decoder.embed(drawn), inputs)
        return time + 1, inputs, state, outputs

    start = (tf.constant(0), embedded[0], state, outputs)
    _, _, _, outputs = tf.while_loop(lambda time, *_: time < steps, step, start, maximum_iterations=steps)
    return tf.transpose(outputs.stack(), [1, 0, 2])
