"""Checks of arguments, each with a message that names the argument, the rule and what came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def check_count(value: Any, name: str, *, minimum: int = 1) -> int:
    """Returns an integer that is at least `minimum`.

    Raises:
        ValueError: If it is no integer or too small.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < minimum:
        raise ValueError(
            f"`{name}` must be an integer of at least {minimum}. Received: {name}={value!r}. Pass {name}={minimum} or more."
        )
    return int(value)


def check_rate(value: Any, name: str) -> float:
    """Returns a probability in [0, 1).

    Raises:
        ValueError: If it is no number in that range.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < 1.0:
        raise ValueError(
            f"`{name}` must be a number from 0 up to, not including, 1. Received: {name}={value!r}. Pass 0.0 for none."
        )
    return float(value)


def check_share(value: Any, name: str) -> float:
    """Returns a probability in [0, 1].

    Raises:
        ValueError: If it is no number in that range.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ValueError(f"`{name}` must be a number from 0 to 1. Received: {name}={value!r}. Pass 0.0 for never.")
    return float(value)


def check_choice(value: Any, name: str, choices: Sequence[Any]) -> Any:
    """Returns a value that is one of `choices`.

    Raises:
        ValueError: If it is none of them; the message lists them.
    """
    if value not in choices:
        options = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"`{name}` must be one of {options}. Received: {name}={value!r}. Choose one of the listed values.")
    return value


def check_id(value: Any, name: str, vocabulary_size: int) -> int:
    """Returns a token id that is at least 1 and below `vocabulary_size`.

    Raises:
        ValueError: If it is no integer or out of range.
    """
    check_count(value, name)
    if value >= vocabulary_size:
        raise ValueError(
            f"`{name}` must be below `vocabulary_size`. "
            f"Received: {name}={value}, vocabulary_size={vocabulary_size}. Count the special ids in the vocabulary."
        )
    return int(value)


def check_ids(value: Any, name: str) -> tf.Tensor:
    """Returns integer ids `[batch, time]` as a tensor.

    Raises:
        ValueError: If it is no matrix of integers.
    """
    ids = tf.convert_to_tensor(value)
    if ids.shape.rank != 2 or not ids.dtype.is_integer:
        raise ValueError(
            f"`{name}` must be integer ids of shape [batch, time]. "
            f"Received: dtype {ids.dtype.name}, shape {ids.shape}. Turn the texts into padded ids first."
        )
    return ids


def check_representation(representation: Any, needed: Sequence[str], reader: str) -> None:
    """Checks that a representation is a dict that holds the needed entries.

    Raises:
        ValueError: If it is no dict or lacks an entry.
    """
    if not isinstance(representation, dict):
        raise ValueError(
            f"`representation` must be a dict with {list(needed)} for {reader}. "
            f"Received: {type(representation).__name__}. Pass what `Seq2SeqEncoder` returns."
        )
    missing = [key for key in needed if key not in representation]
    if missing:
        raise ValueError(
            f"`representation` must hold {list(needed)} for {reader}. Received: keys {sorted(representation)}, "
            f"without {missing}. Pass what `Seq2SeqEncoder` returns."
        )
