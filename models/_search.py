"""What a search returns, its options, and the arithmetic that both engines share."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import tensorflow as tf

from ._checks import check_count

_ABSENT = -1e30
"""Lower log probabilities belong to no hypothesis: there are fewer sequences than beams."""


class Decoded(NamedTuple):
    """Decoded sequences, best first.

    Attributes:
        ids: int32 `[batch, num_best, maximum_length]`, up to and including the end id, then the decoder's padding, or 0.
        lengths: int32 `[batch, num_best]`, number of ids, the end id included.
        scores: float32 `[batch, num_best]`: the log probability of the ids, divided by the length penalty.
        attention: `[batch, num_best, maximum_length, source time]`, zero at padding, or None if not requested.
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    scores: tf.Tensor
    attention: tf.Tensor | None


class SearchParts(NamedTuple):
    """What the functions of `search` take, in the order of their arguments.

    Attributes:
        step: A step over a decoder's weights.
        state: The first state of the step, one row per example.
        memory: What the steps read besides their state, one entry per example.
    """

    step: Any
    state: Any
    memory: Any


@dataclasses.dataclass(frozen=True)
class Search:
    """How to search for a sequence; `Seq2SeqDecoder.decode` and the functions of `search` describe each field."""

    maximum_length: int
    end_id: int
    beam_width: int = 1
    num_best: int = 1
    length_penalty: float = 0.0
    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    seed: Any = None
    remove_finished: bool = True

    def __post_init__(self) -> None:
        check_count("maximum_length", self.maximum_length)
        check_count("beam_width", self.beam_width)
        check_count("num_best", self.num_best)
        if self.num_best > self.beam_width:
            raise ValueError(
                "`num_best` must not be above `beam_width`. "
                f"Received: num_best={self.num_best}, beam_width={self.beam_width}. Widen the beam."
            )
        if not self.length_penalty >= 0.0:
            raise ValueError(
                f"`length_penalty` must not be negative. Received: length_penalty={self.length_penalty!r}. "
                "Pass 0.0 to compare log probabilities."
            )
        if self.sample and self.beam_width > 1:
            raise ValueError(
                "`sample` needs `beam_width=1`. "
                f"Received: sample=True, beam_width={self.beam_width}. Choose sampling or beam search."
            )
        if not self.temperature > 0.0:
            raise ValueError(
                f"`temperature` must be above 0. Received: temperature={self.temperature!r}. "
                "For the most probable ids, decode without `sample`."
            )
        if self.top_k is not None:
            check_count("top_k", self.top_k)
        if not self.sample and (self.temperature != 1.0 or self.top_k is not None):
            raise ValueError(
                "`temperature` and `top_k` need `sample=True`. "
                f"Received: temperature={self.temperature!r}, top_k={self.top_k!r}, sample=False. Switch `sample` on."
            )


def shift_right(targets: tf.Tensor, start_id: int) -> tf.Tensor:
    """The inputs for targets `[batch, time]`: the start id, then all targets but the last."""
    starts = tf.fill([tf.shape(targets)[0], 1], tf.cast(start_id, targets.dtype))
    return tf.concat([starts, targets], axis=1)[:, :-1]


def excluded_ids(decoder: Any) -> tf.Tensor:
    """What is added to logits so that padding, and a start id that does not end, are never chosen, float32 `[vocabulary]`.

    Args:
        decoder: An object with the ids and `vocabulary_size` as attributes.
    """
    excluded = {decoder.padding_id, decoder.start_id} - {decoder.end_id}
    return tf.reduce_sum(tf.one_hot(sorted(excluded), decoder.vocabulary_size, tf.float32.min), axis=0)


def padded(ids: tf.Tensor, lengths: tf.Tensor, padding_id: int) -> tf.Tensor:
    """Ids `[..., time]` with padding after their lengths `[...]`."""
    return ids if padding_id == 0 else tf.where(tf.sequence_mask(lengths, ids.shape[-1]), ids, padding_id)


def next_ids(logits: tf.Tensor, time: tf.Tensor, search: Search) -> tf.Tensor:
    """The next ids from logits: the most probable, or samples from the softmax of `logits / temperature`.

    Samples depend on the seed, the step and the row only, so both engines draw the same ones.

    Args:
        logits: float32 `[rows, vocabulary]`.
        time: The step, int32 scalar.
        search: Whether and how to sample.

    Returns:
        int32 `[rows]`.
    """
    if not search.sample:
        return tf.argmax(logits, axis=-1, output_type=tf.int32)
    if search.top_k is not None:
        limit = tf.math.top_k(logits, min(search.top_k, int(logits.shape[-1]))).values[:, -1:]
        logits = tf.where(logits < limit, logits.dtype.min, logits)
    seed = tf.stack([tf.cast(search.seed, tf.int32), tf.cast(time, tf.int32)])
    draws = tf.random.stateless_categorical(logits / search.temperature, 1, seed=seed, dtype=tf.int32)
    return tf.squeeze(draws, axis=1)


def penalty(lengths: tf.Tensor, power: float) -> tf.Tensor:
    """`((5 + length) / 6) ** power`, float32, shaped as `lengths`; 1 for a power of 0. Source: arXiv 1609.08144."""
    return ((5.0 + tf.cast(lengths, tf.float32)) / 6.0) ** power


def lengths_of(ids: tf.Tensor, end_id: int) -> tf.Tensor:
    """Number of ids up to and including the first end id, int32 `[...]`, of ids `[..., time]`."""
    return tf.reduce_sum(tf.cast(_until_end(ids, end_id), tf.int32), axis=-1)


def _until_end(ids: tf.Tensor, end_id: int) -> tf.Tensor:
    """True up to and including each row's first end id."""
    return tf.equal(tf.cumsum(tf.cast(tf.equal(ids, end_id), tf.int32), axis=-1, exclusive=True), 0)


def pad_after_end(ids: tf.Tensor, end_id: int, maximum_length: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Pads ids to a fixed length with 0 after the first end id.

    Args:
        ids: int32 `[..., time]`, `time` being at most `maximum_length`.
        end_id: The id that ends a sequence.
        maximum_length: Number of ids in the result.

    Returns:
        The ids, `[..., maximum_length]`, and their lengths, the end id included, int32 `[...]`.
    """
    lengths = lengths_of(ids, end_id)
    padding = [[0, 0]] * (ids.shape.rank - 1) + [[0, maximum_length - tf.shape(ids)[-1]]]
    ids = tf.pad(tf.where(_until_end(ids, end_id), ids, 0), padding)
    return tf.ensure_shape(ids, ids.shape[:-1] + [maximum_length]), lengths


def rank_beams(ids: tf.Tensor, log_probabilities: tf.Tensor, search: Search) -> Decoded:
    """The best hypotheses of a finished beam search, by log probability divided by length penalty.

    Args:
        ids: int32 `[batch, beam_width, time]`.
        log_probabilities: float32 `[batch, beam_width]`.
        search: Length penalty, end id, number of results, and maximum length.

    Returns:
        The best `num_best`, without attention. If there are fewer sequences, the rest is padding with a score of minus
        infinity.
    """
    ids, lengths = pad_after_end(ids, search.end_id, search.maximum_length)
    present = log_probabilities > _ABSENT
    scores = tf.where(present, log_probabilities / penalty(lengths, search.length_penalty), -float("inf"))
    scores, order = tf.math.top_k(scores, search.num_best)
    ids = tf.gather(tf.where(present[:, :, tf.newaxis], ids, 0), order, batch_dims=1)
    lengths = tf.gather(tf.where(present, lengths, 0), order, batch_dims=1)
    return Decoded(ids, lengths, scores, None)


def score_rows(logits: tf.Tensor, ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Log probability of each row's ids within its length.

    Args:
        logits: float32 `[rows, time, vocabulary]`.
        ids: int32 `[rows, time]`.
        lengths: int32 `[rows]`.

    Returns:
        float32 `[rows]`.
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=ids, logits=logits)
    return -tf.reduce_sum(tf.where(tf.sequence_mask(lengths, tf.shape(ids)[1]), losses, 0.0), axis=1)


_SHORT = 16
"""Rows of fewer numbers than this many times `count` are read at once: the other way has more operations."""


def largest(rows: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """`tf.math.top_k` of a matrix, faster for long rows.

    `top_k` takes several nanoseconds per number. Here it reads the maxima of groups of numbers, then only the `count` groups
    with the largest maxima: no number of another group can be among the `count` largest. Equal numbers have the order of
    `top_k`, the first ones first, since the chosen groups are read in their own order.

    Args:
        rows: `[rows, size]`, without NaN; the size is known.
        count: A number of at least 1 and at most `size`.

    Returns:
        The values, `[rows, count]`, in descending order, and their positions, int32 `[rows, count]`.
    """
    size = int(rows.shape[1])
    if size < _SHORT * count:
        found = tf.math.top_k(rows, count)
        return found.values, found.indices
    length = _group_length(size, count)
    missing = -size % length
    if missing:
        rows = tf.pad(rows, [[0, 0], [0, missing]], constant_values=-float("inf"))
    groups = tf.reshape(rows, [-1, (size + missing) // length, length])
    chosen = tf.math.top_k(tf.reduce_max(groups, axis=2), count).indices
    chosen = tf.sort(chosen, axis=1)
    values, places = tf.math.top_k(tf.reshape(tf.gather(groups, chosen, batch_dims=1), [-1, count * length]), count)
    return values, tf.gather(chosen, places // length, batch_dims=1) * length + places % length


def _group_length(size: int, count: int) -> int:
    """The length of groups, near the one with the fewest numbers to read, that divides the size where one does."""
    best = max(1, round(math.sqrt(size / count)))
    near = range(max(2, best * 3 // 4), best * 3 // 2 + 1)
    return min((length for length in near if size % length == 0), key=lambda length: abs(length - best), default=best)
