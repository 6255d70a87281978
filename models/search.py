"""Greedy search, beam search and sampling over any step function, in plain TensorFlow.

A step is a function `step(ids, state)`, or `step(ids, state, memory)` if a memory is passed:

- `ids`: the last ids, int32 `[rows]`, first `start_id`;
- `state`: a tensor, or a nested structure of tensors (tuples, lists, dicts), each `[rows, ...]`; at the first step the state
  that the caller passes, then the state that the previous step returned;
- `memory`: what does not change from step to step, such as an encoder's outputs, a nested structure of tensors
  `[batch, ...]`.

The function returns the logits of the next ids, floating-point `[rows, vocabulary]`, with a static vocabulary size, and the
new state, with the structure, dtypes and shapes of the old one. Log probabilities are the log-softmax of the logits; an id
with a logit of minus infinity, or of the lowest float32, is never part of a result. A step that needs the position keeps it
in the state, as one integer per row, and returns `position + 1`.

`greedy` and `sample` pass one row per example. `beam` passes `beam_width` rows per example, those of an example one after
another, and reorders the state's rows from step to step; the memory keeps one entry per example, and a step that reads it
repeats it (`tf.repeat(entries, beam_width, axis=0)`) or reshapes its rows to `[batch, beam_width, ...]`.

All three work eagerly, in a `tf.function`, with and without `jit_compile=True`, and in a SavedModel. `Seq2SeqDecoder` and
`TransformerDecoder` search with the same loops; their `begin_search` returns step, state and memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ._checks import check_count
from ._loops import Step, search_beams, search_rows
from ._search import Decoded, Search

__all__ = ["beam", "greedy", "sample"]


def greedy(
    step: Callable[..., tuple[tf.Tensor, Any]],
    state: Any,
    memory: Any = None,
    *,
    start_id: int | tf.Tensor,
    end_id: int,
    maximum_length: int,
    remove_finished: bool = False,
) -> Decoded:
    """The most probable id at every step.

    Args:
        step: The step; see `multihead.models.search`.
        state: The first state, tensors `[batch, ...]`.
        memory: What does not change, tensors `[batch, ...]`; None for a step without the third argument.
        start_id: The id before the first, an integer, or integers `[batch]`.
        end_id: The id that ends a sequence.
        maximum_length: Number of ids in the result.
        remove_finished: Whether finished examples leave the loop once they are a sixteenth of its rows. It saves time in
            large batches whose sequences end at different steps. Not with `jit_compile=True`, since shapes then change.

    Returns:
        See `Decoded`, with `num_best` 1: ids, int32 `[batch, 1, maximum_length]`, lengths, int32 `[batch, 1]`, and scores,
        float32 `[batch, 1]`, the ids' log probabilities.

    Raises:
        ValueError: If an argument is out of its range, or `step` does not return such logits and such a state.

    Example:
        >>> table = tf.math.log([[.1, .2, .7], [.5, .1, .4], [.1, .8, .1]])
        >>> step = lambda ids, state: (tf.gather(table, ids), state)
        >>> first = tf.zeros([1, 1])
        >>> found = greedy(step, first, start_id=0, end_id=1, maximum_length=4)
        >>> found.ids.numpy().tolist(), found.scores.numpy().tolist()
        ([[[2, 1, 0, 0]]], [[-0.580]])
    """
    search = Search(maximum_length, _end(end_id), remove_finished=remove_finished)
    return _rows(step, state, memory, start_id, search)


def sample(
    step: Callable[..., tuple[tf.Tensor, Any]],
    state: Any,
    memory: Any = None,
    *,
    start_id: int | tf.Tensor,
    end_id: int,
    maximum_length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int | tf.Tensor | None = None,
) -> Decoded:
    """An id drawn at every step from the softmax of `logits / temperature`.

    Several samples per example: repeat the rows of the state and of the memory.

    Args:
        step: The step; see `multihead.models.search`.
        state: The first state, tensors `[batch, ...]`.
        memory: What does not change, tensors `[batch, ...]`; None for a step without the third argument.
        start_id: The id before the first, an integer, or integers `[batch]`.
        end_id: The id that ends a sequence.
        maximum_length: Number of ids in the result.
        temperature: Above 0. Below 1 it sharpens the distribution, above 1 it flattens it.
        top_k: Draws from this many most probable ids only; None for all.
        seed: An integer. The same seed returns the same sequences (but other sequences with `jit_compile=True`, since XLA
            draws other numbers); None returns new sequences at each call.

    Returns:
        See `Decoded`, with `num_best` 1. Scores are the ids' log probabilities under the unchanged logits: with temperature
        1 and without `top_k`.

    Raises:
        ValueError: If an argument is out of its range, or `step` does not return such logits and such a state.

    Example:
        >>> table = tf.math.log([[.1, .2, .7], [.5, .1, .4], [.1, .8, .1]])
        >>> step = lambda ids, state: (tf.gather(table, ids), state)
        >>> ends = dict(start_id=0, end_id=1, maximum_length=4)
        >>> found = sample(step, tf.zeros([1000, 1]), seed=1, **ends)
        >>> first = tf.cast(found.ids[:, 0, 0] == 2, tf.float32)
        >>> bool(abs(tf.reduce_mean(first) - 0.7) < 0.05)
        True
    """
    if seed is None:
        seed = tf.random.uniform([], maxval=tf.int32.max, dtype=tf.int32)
    search = Search(maximum_length, _end(end_id), sample=True, temperature=temperature, top_k=top_k, seed=seed)
    return _rows(step, state, memory, start_id, search)


def beam(
    step: Callable[..., tuple[tf.Tensor, Any]],
    state: Any,
    memory: Any = None,
    *,
    start_id: int | tf.Tensor,
    end_id: int,
    maximum_length: int,
    beam_width: int,
    num_best: int = 1,
    length_penalty: float = 0.0,
    remove_finished: bool = False,
) -> Decoded:
    """The best sequences that beam search finds.

    Every step keeps the `beam_width` continuations with the highest score, `log p(ids) / ((5 + length) / 6) ** a`, where `a`
    is `length_penalty`. A beam that has written `end_id` keeps its place until better ones take it. The search of an example
    stops when its `num_best` best beams have ended and no other can overtake them. If the beam is at least as wide as the
    number of sequences, the result is that of exhaustive search.

    Args:
        step: The step; see `multihead.models.search`.
        state: The first state, tensors `[batch, ...]`, one row per example, from which the beams are made.
        memory: What does not change, tensors `[batch, ...]`; None for a step without the third argument.
        start_id: The id before the first, an integer, or integers `[batch]`.
        end_id: The id that ends a sequence.
        maximum_length: Number of ids in the result.
        beam_width: Number of hypotheses per example.
        num_best: Number of sequences per example in the result, at most `beam_width`.
        length_penalty: 0 compares log probabilities; larger values favor longer sequences.
        remove_finished: Whether finished examples leave the loop once they are a sixteenth of it. It saves time in large
            batches whose sequences end at different steps. Not with `jit_compile=True`, since shapes then change.

    Returns:
        See `Decoded`: ids, int32 `[batch, num_best, maximum_length]`, lengths, int32 `[batch, num_best]`, and scores,
        float32 `[batch, num_best]`, best first. If there are fewer sequences, the rest is padding with a score of minus
        infinity.

    Raises:
        ValueError: If an argument is out of its range, or `step` does not return such logits and such a state.

    Source: Wu et al. (2016), arXiv 1609.08144, for the length penalty.

    Example:
        >>> table = tf.math.log([[.1, .4, .5], [.5, .1, .4], [.4, .3, .3]])
        >>> step = lambda ids, state: (tf.gather(table, ids), state)
        >>> ends = dict(start_id=0, end_id=1, maximum_length=4)
        >>> found = beam(step, tf.zeros([1, 1]), beam_width=3, num_best=2, **ends)
        >>> found.ids.numpy().tolist()
        [[[1, 0, 0, 0], [2, 1, 0, 0]]]
    """
    search = Search(
        maximum_length,
        _end(end_id),
        check_count("beam_width", beam_width),
        num_best,
        length_penalty,
        remove_finished=remove_finished,
    )
    start, state, memory, checked = _prepared(step, state, memory, start_id, search)
    return search_beams(checked, start, state, memory, search)


def _rows(step: Any, state: Any, memory: Any, start_id: Any, search: Search) -> Decoded:
    start, state, memory, checked = _prepared(step, state, memory, start_id, search)
    ids, lengths, scores = search_rows(checked, start, state, memory, search, scored=True)
    return Decoded(ids[:, tf.newaxis], lengths[:, tf.newaxis], scores[:, tf.newaxis], None)


def _end(end_id: Any) -> int:
    return check_count("end_id", end_id, minimum=0)


def _prepared(step: Any, state: Any, memory: Any, start_id: Any, search: Search) -> tuple[tf.Tensor, Any, Any, Step]:
    """The first ids `[batch]`, state and memory as tensors, and the step with checks of what it returns."""
    if not callable(step):
        raise ValueError(
            f"`step` must be a function of the last ids and the state. Received: step={step!r}. Pass a function that "
            "returns the logits of the next ids and the new state."
        )
    has_memory = memory is not None
    state, memory = _tensors("state", state), _tensors("memory", memory) if has_memory else ()
    if isinstance(start_id, (bool, float)) or not tf.convert_to_tensor(start_id).dtype.is_integer:
        raise ValueError(f"`start_id` must be an integer, or integers [batch]. Received: start_id={start_id!r}. Pass an id.")
    start = tf.cast(start_id, tf.int32)
    leaves = tf.nest.flatten((state, memory))
    if start.shape.rank == 0:
        if not leaves:
            raise ValueError(
                "`state` must hold a tensor with one row per example, unless `start_id` or `memory` does. Received: "
                f"state={state!r}. Pass `start_id` as integers [batch]."
            )
        start = tf.fill([tf.shape(leaves[0])[0]], start)
    elif start.shape.rank != 1:
        raise ValueError(
            f"`start_id` must be an integer, or integers [batch]. Received: shape {start.shape}. Pass one id per example."
        )
    sizes = {size for size in (tensor.shape[0] for tensor in (start, *leaves)) if size is not None}
    if len(sizes) > 1:
        raise ValueError(
            "`state`, `memory` and `start_id` must have one row per example. Received: "
            f"{sorted(sizes)} rows. Repeat none of them for the beams."
        )

    def checked(last: tf.Tensor, rows: Any, entries: Any) -> tuple[tf.Tensor, Any]:
        returned = step(last, rows, entries) if has_memory else step(last, rows)
        if not isinstance(returned, (tuple, list)) or len(returned) != 2:
            raise ValueError(
                "`step` must return the logits of the next ids and the new state. Received: "
                f"{type(returned).__name__}. Return a pair."
            )
        return _logits(returned[0], search.end_id), _same_state(returned[1], rows)

    return start, state, memory, checked


def _tensors(argument: str, value: Any) -> Any:
    """The structure with a tensor for each leaf."""
    tensors = tf.nest.map_structure(tf.convert_to_tensor, value)
    for tensor in tf.nest.flatten(tensors):
        if tensor.shape.rank == 0:
            raise ValueError(
                f"`{argument}` must hold tensors with one row per example, [batch, ...]. Received: a scalar. Repeat it for "
                "each example: `tf.fill([batch], value)`."
            )
    return tensors


def _logits(value: Any, end_id: int) -> tf.Tensor:
    """The logits as float32 `[rows, vocabulary]`."""
    logits = tf.convert_to_tensor(value)
    if logits.shape.rank != 2 or not logits.dtype.is_floating or logits.shape[1] is None:
        raise ValueError(
            "`step` must return logits, floating [rows, vocabulary], with a known vocabulary. Received: dtype "
            f"{logits.dtype.name}, shape {logits.shape}. Reshape them, or set their shape."
        )
    if end_id >= logits.shape[1]:
        raise ValueError(
            f"`end_id` must be one of the ids that `step` returns logits of. Received: end_id={end_id}, logits of "
            f"{logits.shape[1]} ids. Correct the id, or the size of the vocabulary."
        )
    return tf.cast(logits, tf.float32)


def _same_state(new: Any, old: Any) -> Any:
    """The new state in the structure of the old one: a list and a tuple of the same tensors are the same here."""
    leaves, before = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(new)], tf.nest.flatten(old)
    same = len(leaves) == len(before) and all(
        leaf.dtype == other.dtype and leaf.shape[1:].is_compatible_with(other.shape[1:])
        for leaf, other in zip(leaves, before)
    )
    if not same:
        raise ValueError(
            "`step` must return a state with the tensors, dtypes and shapes of the state that it reads. Received: "
            f"{_described(leaves)} after {_described(before)}. Make the first state as the step returns it; a cache of "
            "keys and values has its full length from the start."
        )
    return tf.nest.pack_sequence_as(old, leaves)


def _described(tensors: Any) -> list[str]:
    return [f"{tensor.dtype.name}{list(tensor.shape[1:])}" for tensor in tensors]
