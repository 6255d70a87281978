"""Linear-chain conditional random fields over tags: log likelihood, marginals and Viterbi decoding, in plain TensorFlow.

The probability of the tags `y_1, ..., y_n` of a sentence is

    p(y) = exp(start[y_1] + sum_t logits[t, y_t]
               + sum_t transitions[y_t, y_{t+1}] + end[y_n]) / Z

where `Z` is the sum over all sequences of tags (Lafferty, McCallum and Pereira, "Conditional Random Fields", ICML 2001).
All functions take

- `logits`: the score of each tag at each word, floating `[batch, time, num_tags]`;
- `transitions`: the score of each tag (row) before each other (column), `[num_tags, num_tags]`;
- `start`, `end`: the scores of the first and of the last tag, `[num_tags]`; None for zeros;
- `mask`: which words are present, booleans `[batch, time]`, or the lengths of the sentences, integers `[batch]`; None for
  all. Absent words (padding) are skipped wherever they are: the words before and after them are neighbors;
- `allowed`: what `allowed_transitions` returns, so that all other sequences have probability 0; None to allow all.

They compute in float64 for float64 logits and otherwise in float32, also for logits in half precision. They work eagerly, in
a `tf.function`, with and without `jit_compile=True`, and in a SavedModel; all but `decode` are differentiable.
`multihead.models.CRFTagger` is a head that trains the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ._checks import check_choice

__all__ = ["Allowed", "allowed_transitions", "decode", "log_likelihood", "marginals", "next_tag_logits"]

SCHEMES = ("IOB", "IOBES")
_FORBIDDEN = -1e9  # finite, so that a sentence without any allowed sequence has finite gradients
_IMPOSSIBLE = -1e30


class Allowed(NamedTuple):
    """The sequences of tags that a scheme allows; booleans.

    Attributes:
        transitions: Whether a tag (row) may precede another (column), `[num_tags, num_tags]`.
        start: Whether a tag may be the first, `[num_tags]`.
        end: Whether a tag may be the last, `[num_tags]`.
    """

    transitions: Any
    start: Any
    end: Any


def allowed_transitions(tags: Sequence[str], scheme: str = "IOB") -> Allowed:
    """The transitions that a scheme of tagging spans allows.

    With `"IOB"` (also called IOB2 and BIO) a span is `B-x I-x I-x`, with `"IOBES"` (BIOES, BILOU) it is `S-x` or
    `B-x I-x E-x`. Words outside of spans are `O`.

    Args:
        tags: The name of each tag, in the order of their ids. An empty name stands for no tag, which is never allowed.
        scheme: `"IOB"` or `"IOBES"`.

    Returns:
        NumPy arrays.

    Raises:
        ValueError: `scheme` is neither `"IOB"` nor `"IOBES"`, or a tag does not belong to the scheme.

    Example:
        >>> allowed_transitions(["O", "B-city", "I-city"]).transitions[0]
        array([ True,  True, False])
    """
    check_choice("scheme", scheme, SCHEMES)
    parts = [_parts_of(tag, scheme) for tag in tags]
    open_after, inside = ("BI", "I") if scheme == "IOB" else ("BI", "IE")
    must_continue = scheme == "IOBES"

    def follows(before: tuple[str, str], after: tuple[str, str]) -> bool:
        if not before[0] or not after[0]:
            return False
        is_open = before[0] in open_after
        if after[0] in inside:
            return is_open and before[1] == after[1]
        return not (is_open and must_continue)

    outside = ("O", "")
    return Allowed(
        np.array([[follows(before, after) for after in parts] for before in parts], bool).reshape([len(parts)] * 2),
        np.array([follows(outside, tag) for tag in parts], bool),
        np.array([follows(tag, outside) for tag in parts], bool),
    )


def _parts_of(tag: str, scheme: str) -> tuple[str, str]:
    """The position in a span and its type."""
    position, dash, kind = tag.partition("-")
    if tag in ("", "O") or (dash and kind and len(position) == 1 and position in scheme.replace("O", "")):
        return position, kind
    options = ", ".join(f"'{each}-x'" for each in scheme.replace("O", ""))
    raise ValueError(
        f"`tags` must be 'O' or, for a type of spans x, one of {options}, or empty for no tag. Received: {tag!r} for the "
        f"scheme {scheme!r}. Rename the tag, leave unknown tags out of the vocabulary, or choose another scheme."
    )


def log_likelihood(
    logits: Any,
    tags: Any,
    transitions: Any,
    start: Any = None,
    end: Any = None,
    *,
    mask: Any = None,
    allowed: Allowed | None = None,
) -> tf.Tensor:
    """The log probability of the tags of each sentence.

    Tags that are not known are summed over: the result is `log Z(known tags) - log Z`, where the first sum is over all
    sequences that agree with the known tags (Tsuboi et al., "Training Conditional Random Fields Using Incomplete
    Annotations", COLING 2008).

    Args:
        logits: See `multihead.models.crf`, as for the other arguments.
        tags: Integers `[batch, time]`, below `num_tags`; a negative number is an unknown tag. The tags of absent words are
            not read.
        transitions: Scores of neighboring tags.
        start: Scores of first tags.
        end: Scores of last tags.
        mask: Which words are present.
        allowed: The allowed sequences; the result for any other has about -1e9 for each forbidden transition.

    Returns:
        Float `[batch]`; 0 for a sentence without words or known tags, NaN for one with a tag of `num_tags` or more.
    """
    tags = tf.cast(tags, tf.int32)
    logits = next_tag_logits(logits, tags, transitions, start, end, mask=mask, allowed=allowed)
    is_known = tf.logical_and(_mask_of(mask, logits), tags >= 0)
    last = logits.shape[-1] - 1
    chosen = tf.one_hot(tf.minimum(tags, last), last + 1, on_value=True, off_value=False)
    values = tf.reduce_sum(tf.where(chosen, logits, 0.0), axis=2)
    return tf.reduce_sum(tf.where(is_known, values, 0.0), axis=1)


def next_tag_logits(
    logits: Any,
    tags: Any,
    transitions: Any,
    start: Any = None,
    end: Any = None,
    *,
    mask: Any = None,
    allowed: Allowed | None = None,
) -> tf.Tensor:
    """The log probabilities of each word's tag, given the known tags of the words before it.

    By the chain rule the log likelihood is the sum of the log probabilities of the known tags,
    `sum_t log p(y_t | y_1, ..., y_{t-1})`. So the cross-entropies of the words, from these logits, add up to the negative
    log likelihood.

    Args:
        logits: See `log_likelihood`, as for the other arguments.
        tags: Integers `[batch, time]`, below `num_tags`; a negative number is an unknown tag.
        transitions: Scores of neighboring tags.
        start: Scores of first tags.
        end: Scores of last tags.
        mask: Which words are present.
        allowed: The allowed sequences.

    Returns:
        Float `[batch, time, num_tags]`; finite also at absent words, where the numbers mean nothing. NaN at a present
        word with a tag of `num_tags` or more, and at all words after it.
    """
    chain = _Chain.of(logits, transitions, start, end, mask, allowed)
    size = chain.logits.shape[2]
    tags = tf.pad(tf.transpose(tf.cast(tags, tf.int32)), [[0, 1], [0, 0]])[:, :, tf.newaxis]
    _, before = chain.run(tf.logical_or(tags < 0, tf.equal(tags, tf.range(size))))
    after, _ = chain.reversed.run()
    wrong = tf.cumsum(tf.cast(tf.logical_and(chain.mask, tags >= size), tf.int32), axis=0) > 0
    # A factor, so that the gradients are NaN, too.
    found = tf.nn.log_softmax(before + after[::-1]) * tf.where(wrong, tf.constant(np.nan, before.dtype), 1.0)
    return tf.transpose(found[:-1], [1, 0, 2])


def marginals(
    logits: Any,
    transitions: Any,
    start: Any = None,
    end: Any = None,
    *,
    mask: Any = None,
    allowed: Allowed | None = None,
) -> tf.Tensor:
    """The probability of each tag at each word, `p(y_t = k)`.

    Args:
        logits: See `multihead.models.crf`, as for the other arguments.
        transitions: Scores of neighboring tags.
        start: Scores of first tags.
        end: Scores of last tags.
        mask: Which words are present.
        allowed: The allowed sequences.

    Returns:
        Float `[batch, time, num_tags]`; 0 at absent words.
    """
    chain = _Chain.of(logits, transitions, start, end, mask, allowed)
    _, before = chain.run()
    after, _ = chain.reversed.run()
    probabilities = tf.where(chain.mask, tf.nn.softmax(before + after[::-1]), 0.0)
    return tf.transpose(probabilities[:-1], [1, 0, 2])


def decode(
    logits: Any,
    transitions: Any,
    start: Any = None,
    end: Any = None,
    *,
    mask: Any = None,
    allowed: Allowed | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The most probable sequence of tags, by the Viterbi algorithm; if there are several, one of them.

    Args:
        logits: See `multihead.models.crf`, as for the other arguments.
        transitions: Scores of neighboring tags.
        start: Scores of first tags.
        end: Scores of last tags.
        mask: Which words are present.
        allowed: The allowed sequences; if there is none, the result has the fewest forbidden transitions.

    Returns:
        The tags, int32 `[batch, time]`, -1 at absent words; and the scores of the sequences, float `[batch]`: the exponent
        in `p(y)` of `multihead.models.crf`, 0 for a sentence without words.
    """
    chain = _Chain.of(logits, transitions, start, end, mask, allowed)
    every = tf.range(chain.logits.shape[2]) + tf.zeros_like(chain.logits[0], tf.int32)

    def step(state: tuple[tf.Tensor, tf.Tensor], each: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, tf.Tensor]:
        logits, mask, is_first = each
        paths = state[0][:, :, tf.newaxis] + chain.transitions
        best = tf.where(is_first, chain.start, tf.reduce_max(paths, axis=1)) + logits
        origins = tf.argmax(paths, axis=1, output_type=tf.int32)
        return tf.where(mask, best, state[0]), tf.where(mask, origins, every)

    def step_back(tags: tf.Tensor, origins: tf.Tensor) -> tf.Tensor:
        return tf.gather(origins, tags, batch_dims=1)

    scores, origins = tf.scan(step, (chain.logits, chain.mask, chain.is_first), (tf.zeros_like(chain.logits[0]), every))
    total = scores[-1] + chain.end
    last = tf.argmax(total, axis=1, output_type=tf.int32)
    tags = tf.scan(step_back, origins, last, reverse=True)[1:]  # each is that of the word before the step
    has_words = tf.reduce_any(chain.mask[:, :, 0], axis=0)
    tags = tf.where(chain.mask[:-1, :, 0], tags, -1)
    return tf.transpose(tags), tf.where(has_words, tf.reduce_max(total, axis=1), 0.0)


class _Chain(NamedTuple):
    """The scores of sentences, with time as the first axis, in the dtype of the computation.

    An absent word is added at the end: a scan needs a step, also in sentences without words.

    Attributes:
        logits: `[time + 1, batch, num_tags]`.
        mask: Which words are present, `[time + 1, batch, 1]`.
        transitions: `[num_tags, num_tags]`.
        start: `[num_tags]`.
        end: `[num_tags]`.
    """

    logits: tf.Tensor
    mask: tf.Tensor
    transitions: tf.Tensor
    start: tf.Tensor
    end: tf.Tensor

    @classmethod
    def of(cls, logits: Any, transitions: Any, start: Any, end: Any, mask: Any, allowed: Allowed | None) -> _Chain:
        """The chain of the arguments of the functions above.

        Raises:
            ValueError: `logits` are not floating-point `[batch, time, num_tags]` with a known `num_tags`, or another
                argument is for another number of tags.
        """
        logits = tf.convert_to_tensor(logits)
        size = logits.shape[-1] if logits.shape.rank == 3 else None
        if size is None or not logits.dtype.is_floating:
            raise ValueError(
                "`logits` must be floating, of shape [batch, time, num_tags], with a known number of tags. Received: dtype "
                f"{logits.dtype.name}, shape {logits.shape}. Pass a score for each tag of each word."
            )
        dtype = tf.float64 if logits.dtype == tf.float64 else tf.float32
        shapes = ((size, size), (size,), (size,))
        scores = []
        for name, each, shape, may in zip(
            ("transitions", "start", "end"), (transitions, start, end), shapes, allowed or (None,) * 3
        ):
            score = tf.zeros(shape, dtype) if each is None else tf.cast(tf.convert_to_tensor(each), dtype)
            for given in (score, *([] if may is None else [np.asarray(may)])):
                if tuple(given.shape) != shape:
                    raise ValueError(
                        f"`{name}` must have shape {shape} for {size} tags. Received: shape {tuple(given.shape)}. Pass one "
                        "entry for each tag, or correct the logits."
                    )
            scores.append(score if may is None else score + tf.where(may, tf.zeros([], dtype), _FORBIDDEN))
        mask = _mask_of(mask, logits)[:, :, tf.newaxis]
        parts = (tf.pad(tf.transpose(each, [1, 0, 2]), [[0, 1], [0, 0], [0, 0]]) for each in (tf.cast(logits, dtype), mask))
        return cls(*parts, *scores)

    @property
    def is_first(self) -> tf.Tensor:
        """Whether a word is the first of its sentence, or stands before it; shaped as the mask."""
        return tf.equal(tf.cumsum(tf.cast(self.mask, tf.int32), axis=0, exclusive=True), 0)

    @property
    def reversed(self) -> _Chain:
        """The same sentences from right to left."""
        return _Chain(self.logits[::-1], self.mask[::-1], tf.transpose(self.transitions), self.end, self.start)

    def run(self, possible: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Sums over the tags before each word.

        Args:
            possible: Which tags the words may have, bool `[time + 1, batch, num_tags]`; None for all.

        Returns:
            Log weights of each word's tag, `[time + 1, batch, num_tags]`, up to a constant for each word: with its own
            logits and possible tags, and without them.
        """

        def step(state: tuple[tf.Tensor, tf.Tensor], each: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, tf.Tensor]:
            logits, mask, is_first, *possible = each
            sums = tf.reduce_logsumexp(state[0][:, :, tf.newaxis] + self.transitions, axis=1)
            before = tf.where(is_first, self.start, sums)
            weights = before + logits
            if possible:
                weights = tf.where(possible[0], weights, _IMPOSSIBLE)
            # Only differences matter: without large sums they stay exact in long sentences.
            weights -= tf.stop_gradient(tf.reduce_max(weights, axis=1, keepdims=True))
            return tf.where(mask, weights, state[0]), before

        zeros = tf.zeros(tf.shape(self.logits)[1:], self.logits.dtype)
        each = (self.logits, self.mask, self.is_first, *([] if possible is None else [possible]))
        forward, before = tf.scan(step, each, (zeros, zeros))
        return forward, before


def _mask_of(mask: Any, logits: tf.Tensor) -> tf.Tensor:
    """Which words are present, bool `[batch, time]`.

    Raises:
        ValueError: The mask is neither booleans `[batch, time]` nor integers `[batch]`.
    """
    sizes = tf.shape(logits)[:2]
    if mask is None:
        return tf.ones(sizes, tf.bool)
    mask = tf.convert_to_tensor(mask)
    if mask.shape.rank == 1 and mask.dtype.is_integer:
        return tf.sequence_mask(mask, sizes[1])
    if mask.shape.rank != 2 or mask.dtype != tf.bool:
        raise ValueError(
            "`mask` must be booleans of shape [batch, time], or lengths, integers of shape [batch]. Received: dtype "
            f"{mask.dtype.name}, shape {mask.shape}. Cast 0 and 1 to booleans."
        )
    return mask
