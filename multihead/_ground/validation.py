"""Argument checks. All error messages have the same form: argument, rule, received value, remedy."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from multihead._ground.names import did_you_mean


def quoted(names: Iterable[Any], most: int | None = None) -> str:
    """Formats names as a list: `'a', 'b'`, or `none`.

    Args:
        names: The names.
        most: How many of them to show; None for all.
    """
    shown = [repr(name) for name in names]
    hidden = 0 if most is None else max(len(shown) - most, 0)
    return ", ".join(shown[:most]) + (f" and {hidden} others" if hidden else "") or "none"


def check_positive_whole(argument: str, value: Any) -> int:
    """Returns `value` if it is a whole number of at least 1, else raises `ValueError`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < 1:
        raise ValueError(
            f"`{argument}` must be a whole number of at least 1. Received: {argument}={value!r}. Pass, for example, 1."
        )
    return int(value)


def check_positive(argument: str, value: Any) -> float:
    """Returns `value` as a float if it is a finite number above 0, else raises `ValueError`."""
    if not is_number(value) or value <= 0:
        raise ValueError(
            f"`{argument}` must be a finite number above 0. Received: {argument}={value!r}. Pass a positive number."
        )
    return float(value)


def check_whole(argument: str, value: Any) -> int:
    """Returns `value` if it is a whole number, else raises `ValueError`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"`{argument}` must be a whole number. Received: {argument}={value!r}. Pass, for example, 0.")
    return int(value)


def is_number(value: Any) -> bool:
    """Whether `value` is a finite real number and not a boolean."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(float(value))


def as_python(value: Any) -> Any:
    """A scalar of NumPy as a Python number; other values are returned unchanged."""
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def check_choice(argument: str, value: Any, choices: Sequence[Any]) -> Any:
    """Returns `value` if it is one of `choices`; otherwise raises a `ValueError` that lists them."""
    if value not in choices:
        hint = did_you_mean([value], choices, "Pass one of these.")
        raise ValueError(f"`{argument}` must be one of {quoted(choices)}. Received: {argument}={value!r}. {hint}")
    return value


def check_head_names(argument: str, names: Iterable[str], heads: Sequence[str], *, complete: bool = False) -> None:
    """Checks names against the registered heads, in both directions if `complete`.

    Raises:
        ValueError: A name is not that of a head or, with `complete`, a head is missing. The message lists both sets.
    """
    given = list(names)
    unknown = [name for name in given if name not in heads]
    absent = [head for head in heads if head not in given] if complete else []
    if unknown or absent:
        problems = []
        if unknown:
            problems.append(f"{quoted(unknown)} is not a head")
        if absent:
            problems.append(f"the head {quoted(absent)} is missing")
        rule = "must name every head, and nothing else" if complete else "must name only heads"
        raise ValueError(
            f"`{argument}` {rule}: {'; '.join(problems)}. Received: {quoted(given)}; the heads are {quoted(heads)}. "
            f"{did_you_mean(unknown, heads, 'Correct the names, or add the head with `add_head`.')}"
        )


def check_between(
    argument: str, value: Any, low: float, high: float, *, with_low: bool = True, with_high: bool = True
) -> float:
    """Returns `value` as a float if it is a number between two others, else raises `ValueError`."""
    number = float(value) if is_number(value) else float("nan")
    is_high_enough = number >= low if with_low else number > low
    is_low_enough = number <= high if with_high else number < high
    if not (is_high_enough and is_low_enough):
        above = f"at least {low:g}" if with_low else f"above {low:g}"
        below = f"at most {high:g}" if with_high else f"below {high:g}"
        rule = above if high == float("inf") else f"{above} and {below}"
        raise ValueError(
            f"`{argument}` must be a finite number {rule}. Received: {argument}={value!r}. Omit it to use the default."
        )
    return number


def check_dense(argument: str, value: Any) -> None:
    """Checks that targets or weights, or their spec, are a dense tensor of numbers of a known rank.

    Raises:
        TypeError: They are ragged, sparse, or no numbers.
        ValueError: Their rank is unknown.
    """
    if not isinstance(value, (tf.Tensor, tf.TensorSpec, tf.Variable)):
        kind = type(value).__name__.removesuffix("Spec")
        remedy = "Pad it, say with `.to_tensor(-1)`, and pass `ignore_label=-1`."
        if "Sparse" in kind:
            remedy = "Pass `tf.sparse.to_dense(...)` of it."
        raise TypeError(f"{argument} must be a dense tensor. Received: a {kind}. {remedy}")
    if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool):
        raise TypeError(
            f"{argument} must be numbers or booleans. Received: dtype {value.dtype.name}. Number the classes from 0, for "
            "example with `keras.layers.StringLookup`."
        )
    if value.shape.rank is None:
        raise ValueError(
            f"{argument} must have a known number of axes. Received: a shape that is unknown until it runs. Set it in the "
            "data set: `dataset.map(...)` with `tf.ensure_shape`, or `output_signature` of `from_generator`."
        )
