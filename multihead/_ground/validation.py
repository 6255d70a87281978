"""Checks and errors. All messages have the same form: argument, rule, received value, remedy."""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeGuard, TypeVar

import numpy as np
import tensorflow as tf

from multihead._ground.tensors import in_xla
from multihead._ground.types import Function, Layer, Nested

Key = TypeVar("Key")
Choice = TypeVar("Choice")


def nearest(name: object, known: Iterable[Key]) -> Key | None:
    """The known name that a misspelt one was meant to be, whatever its capitals, hyphens and underscores; or None."""
    by_text = {normalized(choice): choice for choice in known}
    close = difflib.get_close_matches(normalized(name), by_text, n=1)
    return by_text[close[0]] if close else None


def normalized(name: object) -> str:
    """A name without capitals, hyphens and underscores."""
    return str(name).replace("_", "").replace("-", "").lower()


def did_you_mean(names: Iterable[object], known: Iterable[object], otherwise: str) -> str:
    """The last sentence of a message: the known name nearest to one of some unknown names, or else what to do instead."""
    known = list(known)
    suggestions = [near for near in (nearest(name, known) for name in names) if near is not None]
    return f"Did you mean {suggestions[0]!r}?" if suggestions else otherwise


def names_known_to(get: Function, module: Layer, more: Iterable[str] = ()) -> list[str]:
    """The public names of `keras.losses` or `keras.metrics` that its `get` knows, in one spelling, and `more` names."""
    names = {normalized(name): name for name in more}
    for name in ["accuracy", "acc", "mae", "mape", "mse", "msle", *sorted(vars(module), key=str.swapcase)]:
        with suppress(ValueError, TypeError, KeyError):
            is_other = name.startswith("_") or name in ("get", "serialize", "deserialize", "Loss", "Metric")
            if not is_other and callable(get(name)):
                names.setdefault(normalized(name), name)
    return list(names.values())


def quoted(names: Iterable[object], most: int | None = None) -> str:
    """Formats names as a list: `'a', 'b'`, or `none`."""
    shown = [repr(name) for name in names]
    hidden = 0 if most is None else max(len(shown) - most, 0)
    return ", ".join(shown[:most]) + (f" and {hidden} others" if hidden else "") or "none"


def described(representation: Nested) -> str:
    """A nest of tensors or specs as text: its keys, and the shapes of its tensors."""
    if isinstance(representation, Mapping):
        return "{" + ", ".join(f"{key!r}: {described(value)}" for key, value in representation.items()) + "}"
    if isinstance(representation, (tuple, list)):
        names = getattr(representation, "_fields", range(len(representation)))
        inner = ", ".join(f"{name}: {described(value)}" for name, value in zip(names, representation))
        return f"a {'tuple' if isinstance(representation, tuple) else 'list'} ({inner})"
    if tf.is_tensor(representation) or isinstance(representation, tf.TypeSpec):
        return f"a {representation.dtype.name} tensor of shape {representation.shape}"
    return type(representation).__name__


def check_positive_whole(argument: str, value: object) -> int:
    """Returns `value` if it is a whole number of at least 1, else raises `ValueError`."""
    return check_whole(argument, value, least=1)


def check_positive(argument: str, value: object) -> float:
    """Returns `value` as a float if it is a finite number above 0, else raises `ValueError`."""
    return check_between(argument, value, 0, math.inf, with_low=False)


def check_whole(argument: str, value: object, *, least: int | None = None) -> int:
    """Returns `value` if it is a whole number, and not too small, else raises `ValueError`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or (least is not None and int(value) < least):
        rule = "a whole number" if least is None else f"a whole number of at least {least}"
        raise ValueError(f"`{argument}` must be {rule}. Received: {argument}={value!r}. Pass, for example, {least or 0}.")
    return int(value)


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a finite real number and not a boolean."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(float(value))


def as_python(value: Any) -> Any:
    """A scalar of NumPy as a Python number; other values are returned unchanged."""
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def check_choice(argument: str, value: Choice, choices: Sequence[Choice]) -> Choice:
    """Returns `value` if it is one of `choices`; otherwise raises a `ValueError` that lists them."""
    if value not in choices:
        hint = did_you_mean([value], choices, "Pass one of these.")
        raise ValueError(f"`{argument}` must be one of {quoted(choices)}. Received: {argument}={value!r}. {hint}")
    return value


def check_head_names(argument: str, names: Iterable[str], heads: Sequence[str], *, complete: bool = False) -> None:
    """Checks names against the registered heads, in both directions if `complete`; a `ValueError` lists both sets."""
    received = list(names)
    unknown = [name for name in received if name not in heads]
    absent = [head for head in heads if head not in received] if complete else []
    if unknown or absent:
        problems = []
        if unknown:
            problems.append(f"{quoted(unknown)} is not a head")
        if absent:
            problems.append(f"the head {quoted(absent)} is missing")
        rule = "must name every head, and nothing else" if complete else "must name only heads"
        raise ValueError(
            f"`{argument}` {rule}: {'; '.join(problems)}. Received: {quoted(received)}; the heads are {quoted(heads)}. "
            f"{did_you_mean(unknown, heads, 'Correct the names, or add the head with `add_head`.')}"
        )


def check_between(
    argument: str, value: object, low: float, high: float, *, with_low: bool = True, with_high: bool = True
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
            f"`{argument}` must be a finite number {rule}. Received: {argument}={value!r}. Pass a number in this range."
        )
    return number


def check_dense(argument: str, value: object) -> None:
    """Raises unless targets or weights, or their spec, are a dense tensor of numbers of a known rank."""
    if not isinstance(value, (tf.Tensor, tf.TensorSpec, tf.Variable)):
        kind = type(value).__name__.removesuffix("Spec")
        remedy = "Pad targets, say with `.to_tensor(-1)`, and pass `ignore_label=-1`; pad sample weights with 0."
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


# What TensorFlow makes of an assertion: its data, in brackets, then the name of the operation.
_IN_GRAPH = re.compile(r"assertion failed: \[(`.*?)\]\s*\n\s*\[\[", re.DOTALL)

# TensorFlow's report of a worker that no longer answers.
_OF_A_WORKER = re.compile(r"Collective ops is aborted by: (.*?)\n?(?:The error could be from|$)", re.DOTALL)

# AutoGraph's report of an error: lines of source code before it.
_WHILE_TRACED = re.compile(r"in user code:.*\n {4}(?:Value|Type)Error: (.*Received: .*)", re.DOTALL)


def stop_unless(holds: tf.Tensor, message: Callable[[], Sequence[str | tf.Tensor]]) -> list[tf.Tensor]:
    """Raises an error unless a condition holds. A graph compiled by XLA continues: XLA has no errors.

    A graph computes the message in any case: one operation that asserts is cheaper than a condition around it. Its parts are
    strings and tensors of numbers; the first begins with a backtick. Returns control dependencies for what must not run
    unless the condition holds.
    """
    if not tf.executing_eagerly():
        return [] if in_xla() else [tf.raw_ops.Assert(condition=holds, data=message(), summarize=10)]
    if not bool(holds):
        parts = [[part] if isinstance(part, str) else np.ravel(part) for part in message()]
        text = [
            " ".join(f"{value:.9g}" if isinstance(value, np.floating) else str(value) for value in part) for part in parts
        ]
        raise ValueError("".join(text))
    return []


def check_copied(argument: str, original: Any, duplicate: Any, why: str) -> None:
    """Raises a `ValueError` if an option is lost in a copy by `get_config` and `from_config`; warns where none can tell."""
    kinds = [kind for kind in type(original).__mro__ if kind.__module__.partition(".")[0] not in ("builtins", "keras")]
    signatures = [inspect.signature(vars(kind)["__init__"]) for kind in kinds if "__init__" in vars(kind)]
    parameters = [one for signature in signatures for one in [*signature.parameters.values()][1:]]  # without the object
    omitted = {one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    omitted -= {"name", "dtype", *original.get_config()}
    shown = {name: key for name in omitted for key in (f"_{name}", name) if key in vars(original)}
    lost = sorted(name for name, key in shown.items() if not _is_same(vars(original)[key], vars(duplicate).get(key)))
    received = f"Received: {type(original).__name__}, whose `get_config` lacks"
    if lost:
        raise ValueError(
            f"`{argument}` must have all of their options in `get_config`, {why}. {received} {quoted(lost)}. Add them."
        )
    if unknown := sorted(omitted - shown.keys()):
        warnings.warn(
            f"`{argument}` should have all of their options in `get_config`, {why}. {received} {quoted(unknown)}: the copy "
            "has the defaults. Add them.",
            stacklevel=2,
        )


def _is_same(one: object, other: object) -> bool:
    """Whether two options are the same; of what is no number and no text, that they are of one class is enough."""
    return one == other if isinstance(one, (bool, int, float, str)) else type(one) is type(other)


def in_short(error: Exception) -> str:
    """The message of an error of TensorFlow or Keras in one line: without the traces and arguments around it."""
    text = re.sub(r"\x1b\[\d+m|\{\{[^}]*\}\} ?", "", str(error))
    text = re.split(r"\n\s*(?:Call arguments|Arguments) received by", text)[0]
    text = re.split(r"\n\s*(?:\w+\.)*\w*Error: |Exception encountered when calling [^\n]*\n", text)[-1]
    return " ".join(text.split())


@contextmanager
def readable_errors() -> Iterator[None]:
    """A context in which errors of `stop_unless` in graphs, and errors in tracing, are raised with their message alone."""
    try:
        yield
    except tf.errors.OpError as error:
        assertion, aborted = _IN_GRAPH.search(error.message), _OF_A_WORKER.search(error.message)
        if assertion is not None:
            raise ValueError(assertion.group(1).replace("] [", "").replace("\\'", "'")) from None
        if aborted is not None:
            raise RuntimeError(
                "The other workers must run until `fit` ends, but one of them has stopped. Received: "
                f"{' '.join(aborted.group(1).split())} Start the program again on all workers; with "
                "`multihead.callbacks.Checkpoint`, in a folder that they share, training continues where it stopped."
            ) from None
        raise
    except (ValueError, TypeError) as error:
        while_traced = _WHILE_TRACED.search(str(error))
        if while_traced is not None:
            raise with_message(error, while_traced.group(1).rstrip()) from None
        raise


def with_message(error: ValueError | TypeError, text: str) -> ValueError | TypeError:
    """An error with another message, of Python's own class: a subclass may take other arguments than a text."""
    return ValueError(text) if isinstance(error, ValueError) else TypeError(text)
