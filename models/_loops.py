"""The loops of greedy search, sampling and beam search, over any step; `search` describes steps and states.

Finished examples can be removed from the batch once they are at least 1/16 of it; their results are stored and the loop
continues with fewer rows. An example's sequence does not depend on the other examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from ._search import Decoded, Search, largest, lengths_of, next_ids, penalty, rank_beams

_FRACTION = 16
"""Finished examples are removed once they are one in this many: continuing with fewer rows costs about a tenth of a step."""

Step = Callable[[tf.Tensor, Any, Any], tuple[tf.Tensor, Any]]
"""From the last ids, int32 `[rows]`, the state, one entry per row, and the memory, one entry per example, to the logits of
the next ids, float32 `[rows, vocabulary]`, and the state after the step. The rows of an example are consecutive."""


class LoopState(NamedTuple):
    """The loop's variables, one entry per example in the loop.

    Without beams, the ids, the last ids and the state have no axis for them, and `lengths` and `ended` are `()`.

    Attributes:
        number: The example's position in the batch.
        done: Whether its result is final.
        ids: The ids written so far, int32 `[examples, beams, maximum_length]`.
        totals: Log probability of each beam, float32 `[examples, beams]`; `()` if it is not computed.
        lengths: Number of ids that each beam has written, the end id included, int32 `[examples, beams]`.
        ended: Whether a beam has written its end id, `[examples, beams]`.
        last: The last ids, `[examples, beams]`.
        state: The state of the steps, each tensor `[examples, beams, ...]`.
        memory: What the steps read besides their state; `()` for nothing.
    """

    number: tf.Tensor
    done: tf.Tensor
    ids: tf.Tensor
    totals: Any
    lengths: Any
    ended: Any
    last: tf.Tensor
    state: Any
    memory: Any


def search_rows(
    step: Step, start: tf.Tensor, state: Any, memory: Any, search: Search, *, scored: bool = False
) -> tuple[tf.Tensor, tf.Tensor, Any]:
    """Greedy search or sampling.

    Args:
        step: One step.
        start: The ids before the first, int32 `[batch]`.
        state: The initial state, one entry per example.
        memory: What the steps read besides their state; `()` for nothing.
        search: Maximum length, end id, how to choose ids, and whether to remove finished examples.
        scored: Whether to add up log probabilities.

    Returns:
        ids, int32 `[batch, maximum_length]`, lengths, int32 `[batch]`, and log probabilities, float32 `[batch]`, or `()`.
    """

    def advance(time: tf.Tensor, loop: LoopState) -> LoopState:
        logits, state = step(loop.last, loop.state, loop.memory)
        chosen, totals = next_ids(logits, time, search), loop.totals
        if scored:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=chosen, logits=logits)
            totals -= tf.where(loop.done, 0.0, losses)
        last = tf.where(loop.done, 0, chosen)
        done = tf.logical_or(loop.done, tf.equal(chosen, search.end_id))
        return loop._replace(done=done, ids=_write(loop.ids, time, last), totals=totals, last=last, state=state)

    loop = _begin(start, state, memory, search)
    if scored:
        loop = loop._replace(totals=tf.zeros_like(start, tf.float32))
    # A sample depends on the position in the batch, so sampled examples keep theirs.
    ids, totals = run_until_done(advance, loop, search, remove_done=search.remove_finished and not search.sample)
    return ids, lengths_of(ids, search.end_id), totals


def search_beams(step: Step, start: tf.Tensor, state: Any, memory: Any, search: Search) -> Decoded:
    """Beam search.

    A step keeps the `beam_width` continuations with the highest log probability divided by length penalty. As in
    TensorFlow Addons, an end id counts towards the length only from the next step on. An example is done when its
    `num_best` best beams have ended and no other beam can overtake them.

    Args:
        step: One step; it gets `beam_width` rows per example.
        start: The ids before the first, int32 `[batch]`.
        state: The initial state, one entry per example.
        memory: What the steps read besides their state, one entry per example: its beams share it; `()` for nothing.
        search: Width, maximum length, end id, length penalty, number of results, and whether to remove finished examples.

    Returns:
        The best hypotheses, without attention.
    """
    width, power = search.beam_width, search.length_penalty

    def advance(time: tf.Tensor, loop: LoopState) -> LoopState:
        rows = tf.nest.map_structure(_as_rows, loop.state)
        logits, state = step(tf.reshape(loop.last, [-1]), rows, loop.memory)
        state = tf.nest.map_structure(lambda tensor: _as_beams(tensor, width), state)
        per_beam = min(width + 1, int(logits.shape[1]))  # one of them may be the end id again
        log_probabilities, tokens = _candidates(logits, search.end_id, per_beam)
        # A beam that has ended continues unchanged, by its first candidate, which is the end id.
        unchanged = tf.constant([0.0] + [-float("inf")] * per_beam)
        ended = loop.ended[:, :, tf.newaxis]
        steps = tf.where(ended, unchanged, tf.reshape(log_probabilities, [-1, width, per_beam + 1]))
        totals = loop.totals[:, :, tf.newaxis] + steps
        scores = totals
        if power:
            longer = tf.logical_not(tf.logical_or(ended, tf.constant([True] + [False] * per_beam)))
            scores /= penalty(loop.lengths[:, :, tf.newaxis] + tf.cast(longer, tf.int32), power)
        best, chosen = tf.math.top_k(_flat(scores), width)
        origin = chosen // (per_beam + 1)
        last = tf.gather(tf.reshape(tokens, [-1, width * (per_beam + 1)]), chosen, batch_dims=1)
        totals = tf.gather(_flat(totals), chosen, batch_dims=1) if power else best
        return extend(loop._replace(last=last, totals=totals, state=state), origin, time)

    def extend(loop: LoopState, origin: tf.Tensor, time: tf.Tensor) -> LoopState:
        ended, ids, lengths = (tf.gather(each, origin, batch_dims=1) for each in (loop.ended, loop.ids, loop.lengths))
        ids = _write(ids, time, tf.where(ended, 0, loop.last))
        lengths = tf.where(ended, lengths, time + 1)
        ended = tf.logical_or(ended, tf.equal(loop.last, search.end_id))
        state = tf.nest.map_structure(lambda tensor: tf.gather(tensor, origin, batch_dims=1), loop.state)
        if power:
            bounds = loop.totals / penalty(tf.where(ended, lengths, search.maximum_length), power)
            best = tf.math.top_k(bounds, search.num_best).indices
            done = tf.reduce_all(tf.gather(ended, best, batch_dims=1), axis=1)
        else:  # the beams are in the order of their totals
            done = tf.reduce_all(ended[:, : search.num_best], axis=1)
        return loop._replace(done=done, ids=ids, lengths=lengths, ended=ended, state=state)

    last = tf.repeat(start[:, tf.newaxis], width, axis=1)
    beams = tf.nest.map_structure(lambda tensor: tf.repeat(tensor[:, tf.newaxis], width, axis=1), state)
    # At first all beams of an example are equal: only one may continue.
    totals = tf.zeros_like(last, tf.float32) + tf.constant([0.0] + [-float("inf")] * (width - 1))
    loop = _begin(last, beams, memory, search)
    loop = loop._replace(totals=totals, lengths=tf.zeros_like(last), ended=tf.zeros_like(last, tf.bool))
    ids, totals = run_until_done(advance, loop, search, remove_done=search.remove_finished)
    return rank_beams(ids, totals, search)


def _candidates(logits: tf.Tensor, end_id: int, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Each row's end id and its most probable ids: no other can be among the best continuations.

    Args:
        logits: float32 `[rows, vocabulary]`.
        end_id: The id that ends a sequence; it comes first, and may come again with probability 0.
        count: Number of other ids.

    Returns:
        Log probabilities, float32, and ids, int32, each `[rows, 1 + count]`.
    """
    values, tokens = largest(logits, count)
    values = tf.where(tf.equal(tokens, end_id), -float("inf"), values)
    values = tf.concat([logits[:, end_id, tf.newaxis], values], axis=1)
    log_probabilities = values - tf.reduce_logsumexp(logits, axis=1, keepdims=True)
    return log_probabilities, tf.concat([tf.fill([tf.shape(tokens)[0], 1], end_id), tokens], axis=1)


def _begin(last: tf.Tensor, state: Any, memory: Any, search: Search) -> LoopState:
    """All examples before the first step, none of them done; without totals, lengths and `ended`."""
    examples = tf.shape(last)[0]
    return LoopState(
        number=tf.range(examples),
        done=tf.zeros([examples], tf.bool),
        ids=tf.zeros([examples, *last.shape[1:], search.maximum_length], tf.int32),
        totals=(),
        lengths=(),
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
        # What no step changes is not a variable of this loop, which would pass it on at every step.
        fixed = {"number": loop.number, "memory": loop.memory}
        absent = dict.fromkeys(fixed, ())

        def proceed(time: tf.Tensor, loop: LoopState) -> tf.Tensor:
            done = tf.reduce_sum(tf.cast(loop.done, tf.int32))
            return tf.logical_and(time < search.maximum_length, done < enough)

        def step_once(time: tf.Tensor, loop: LoopState) -> tuple[tf.Tensor, LoopState]:
            return time + 1, advance(time, loop._replace(**fixed))._replace(**absent)

        time, loop = tf.while_loop(proceed, step_once, (time, loop._replace(**absent)))
        return time, loop._replace(**fixed)

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
    state = (start, loop, results)
    _, _, (ids, totals) = tf.while_loop(any_left, store_done, state, (tf.TensorShape([]), shapes, result_shapes))
    return ids, totals


def _write(ids: tf.Tensor, time: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """Writes `[...]` at position `time` of `[..., maximum_length]`."""
    return tf.where(tf.equal(tf.range(ids.shape[-1]), time), last[..., tf.newaxis], ids)


def _flat(tensor: tf.Tensor) -> tf.Tensor:
    """`[examples, beams * vocabulary]` from `[examples, beams, vocabulary]`."""
    return tf.reshape(tensor, [-1, tensor.shape[1] * tensor.shape[2]])


def _as_rows(tensor: tf.Tensor) -> tf.Tensor:
    """`[examples * beams, ...]` from `[examples, beams, ...]`."""
    inner = tensor.shape[2:]
    return tf.reshape(tensor, [-1, *inner] if inner.is_fully_defined() else tf.concat([[-1], tf.shape(tensor)[2:]], 0))


def _as_beams(tensor: tf.Tensor, width: int) -> tf.Tensor:
    """`[examples, beams, ...]` from `[examples * beams, ...]`."""
    inner = tensor.shape[1:]
    known = inner.is_fully_defined()
    return tf.reshape(tensor, [-1, width, *inner] if known else tf.concat([[-1, width], tf.shape(tensor)[1:]], 0))
