"""Checks of arguments. Each error names the argument, the rule, what was received and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf


def check_count(argument: str, value: Any, *, minimum: int = 1) -> int:
    """Returns an integer that is at least `minimum`.

    Raises:
        ValueError: If `value` is not an integer, or is below `minimum`.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < minimum:
        raise ValueError(
            f"`{argument}` must be an integer of at least {minimum}. "
            f"Received: {argument}={value!r}. Pass {argument}={minimum} or more."
        )
    return int(value)


def check_rate(argument: str, value: Any) -> float:
    """Returns a probability in [0, 1).

    Raises:
        ValueError: If `value` is not a number in this range.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < 1.0:
        raise ValueError(
            f"`{argument}` must be a number from 0 up to, not including, 1. "
            f"Received: {argument}={value!r}. Pass 0.0 for none."
        )
    return float(value)


def check_probability(argument: str, value: Any) -> float:
    """Returns a probability in [0, 1].

    Raises:
        ValueError: If `value` is not a number in this range.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ValueError(f"`{argument}` must be a number from 0 to 1. Received: {argument}={value!r}. Pass 0.0 for never.")
    return float(value)


def check_choice(argument: str, value: Any, choices: Sequence[Any]) -> Any:
    """Returns a value that is one of `choices`.

    Raises:
        ValueError: If `value` is not one of `choices`; the message lists them.
    """
    if value not in choices:
        options = ", ".join(repr(choice) for choice in choices)
        hint = did_you_mean(value, choices, "Choose one of the listed values.")
        raise ValueError(f"`{argument}` must be one of {options}. Received: {argument}={value!r}. {hint}")
    return value


def check_heads(units: int, num_heads: Any) -> int:
    """Returns a number of attention heads that divides the units.

    Raises:
        ValueError: If `num_heads` is not a positive integer, or does not divide `units`.
    """
    if units % check_count("num_heads", num_heads):
        raise ValueError(
            f"`num_heads` must divide `units`. Received: num_heads={num_heads}, units={units}. Choose a divisor, such as 1."
        )
    return int(num_heads)


def check_id(argument: str, value: Any, vocabulary_size: int) -> int:
    """Returns a token id that is at least 0 and below `vocabulary_size`.

    Raises:
        ValueError: If `value` is not an integer, or is out of range.
    """
    check_count(argument, value, minimum=0)
    if value >= vocabulary_size:
        raise ValueError(
            f"`{argument}` must be below `vocabulary_size`. "
            f"Received: {argument}={value}, vocabulary_size={vocabulary_size}. Count the special ids in the vocabulary."
        )
    return int(value)


def check_ids(argument: str, value: Any) -> tf.Tensor:
    """Returns integer ids `[batch, time]` as a tensor.

    Raises:
        ValueError: If `value` is not a matrix of integers.
    """
    ids = tf.convert_to_tensor(value)
    if ids.shape.rank != 2 or not ids.dtype.is_integer:
        remedy = "Turn the texts into padded ids first."
        if ids.dtype.is_floating:
            remedy = f"Convert them, say by `{argument}.astype('int32')`; what is missing is padding, not NaN."
        raise ValueError(
            f"`{argument}` must be integer ids of shape [batch, time]. "
            f"Received: dtype {ids.dtype.name}, shape {ids.shape}. {remedy}"
        )
    return ids


def check_tokens(value: Any, vocabulary_size: int, argument: str = "tokens") -> tf.Tensor:
    """Returns token ids `[batch, time]` as a tensor, which is not read if an id is out of range.

    Raises:
        ValueError: If `value` is not a matrix of integers, or an id is out of range; in a graph, when the graph runs.
    """
    tokens = check_ids(argument, value)
    ids = tf.cast(tokens, tf.int64)
    wrong = tf.reduce_any(tf.logical_or(ids < 0, ids >= vocabulary_size), axis=1)
    rows = tf.reduce_sum(tf.cast(wrong, tf.int32))
    rule = f"`{argument}` must be ids from 0 to {vocabulary_size - 1}, below `vocabulary_size`. Received: "
    remedy = " rows with another id. Correct `vocabulary_size`, or what makes the ids; padding has an id, too."
    if tf.executing_eagerly():
        if int(rows):
            raise ValueError(f"{rule}{int(rows)} of {len(tokens)}{remedy}")
        return tokens
    message = [rule, rows, " of ", tf.size(wrong), remedy]
    with tf.control_dependencies([tf.raw_ops.Assert(condition=tf.equal(rows, 0), data=message)]):
        return tf.identity(tokens)


def check_names(argument: str, value: Any) -> tuple[str, ...]:
    """Returns different names as a tuple.

    Raises:
        ValueError: If `value` is not a sequence of different, nonempty strings.
    """
    names = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ValueError(
            f"`{argument}` must be a list of different names. Received: {argument}={value!r}. "
            f"Pass, for example, {argument}=['price', 'size']."
        )
    return tuple(names)


def check_representation(
    argument: str,
    value: Any,
    needed: Sequence[str],
    reader: str,
    source: str = "`Seq2SeqEncoder` or `TransformerEncoder`",
) -> None:
    """Checks that a representation is a dict with the entries that a head reads.

    Raises:
        ValueError: If `value` is not a dict, or lacks an entry.
    """
    if not isinstance(value, dict):
        raise ValueError(
            f"`{argument}` must be a dict with {list(needed)} for {reader}. "
            f"Received: {type(value).__name__}. Pass what {source} returns."
        )
    missing = [key for key in needed if key not in value]
    if missing:
        raise ValueError(
            f"`{argument}` must hold {list(needed)} for {reader}. Received: keys {sorted(value)}, "
            f"without {missing}. Pass what {source} returns."
        )


def did_you_mean(given: Any, known: Iterable[Any], otherwise: str) -> str:
    """The last sentence of a message: the known name nearest to an unknown one, or what to do if none is similar."""
    by_text = {str(name).lower(): name for name in known}
    close = difflib.get_close_matches(str(given).lower(), by_text, n=1)
    return f"Did you mean {by_text[close[0]]!r}?" if close else otherwise
