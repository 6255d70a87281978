"""Checks and errors. All messages have the same form: argument, rule, received value, remedy."""

from __future__ import annotations

import difflib
import math
import numbers
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard, TypeVar

import numpy as np
import tensorflow as tf

from multihead._ground.tensors import in_xla
from multihead._ground.types import Function, Layer, Nested

Key = TypeVar("Key")
Choice = TypeVar("Choice")


def nearest(given: object, known: Iterable[Key]) -> Key | None:
    """The known name that a misspelt one was meant to be, whatever its capitals, hyphens and underscores; or None."""
    by_text = {plain(name): name for name in known}
    close = difflib.get_close_matches(plain(given), by_text, n=1)
    return by_text[close[0]] if close else None


def plain(name: object) -> str:
    """A name without capitals, hyphens and underscores."""
    return str(name).replace("_", "").replace("-", "").lower()


def did_you_mean(given: Iterable[object], known: Iterable[object], otherwise: str) -> str:
    """The last sentence of a message: the known name nearest to a given, unknown one, or else what to do instead."""
    known = list(known)
    found = [near for near in (nearest(name, known) for name in given) if near is not None]
    return f"Did you mean {found[0]!r}?" if found else otherwise


def names_known_to(get: Function, module: Layer) -> list[str]:
    """The names that `keras.losses.get` or `keras.metrics.get` knows, each function and class once."""

    def is_known(name: str) -> bool:
        try:
            return callable(get(name))
        except (ValueError, TypeError, KeyError):
            return False

    found: dict[str, None] = {}
    for name, each in vars(module).items():
        if callable(each) and not name.startswith("_") and name not in ("get", "serialize", "deserialize", "Loss", "Metric"):
            names = (snake_case(name), name.lower(), name)
            known = next((each for each in names if is_known(each)), None)
            found.update({} if known is None else {known: None})
    abbreviations = [name for name in ("accuracy", "acc", "mae", "mape", "mse", "msle") if is_known(name)]
    return [*sorted(found), *(name for name in abbreviations if name not in found)]


def snake_case(name: str) -> str:
    """The name that Keras derives from the name of a class: `"auc"` from `"AUC"`."""
    apart = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", apart).lower()


def quoted(names: Iterable[object], most: int | None = None) -> str:
    """Formats names as a list: `'a', 'b'`, or `none`."""
    shown = [repr(name) for name in names]
    hidden = 0 if most is None else max(len(shown) - most, 0)
    return ", ".join(shown[:most]) + (f" and {hidden} others" if hidden else "") or "none"


def described(representation: Nested) -> str:
    """A nest of tensors or specs as text: its keys, and the shape of each tensor."""
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
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < 1:
        raise ValueError(
            f"`{argument}` must be a whole number of at least 1. Received: {argument}={value!r}. Pass, for example, 1."
        )
    return int(value)


def check_positive(argument: str, value: object) -> float:
    """Returns `value` as a float if it is a finite number above 0, else raises `ValueError`."""
    if not is_number(value) or value <= 0:
        raise ValueError(
            f"`{argument}` must be a finite number above 0. Received: {argument}={value!r}. Pass a positive number."
        )
    return float(value)


def check_whole(argument: str, value: object) -> int:
    """Returns `value` if it is a whole number, else raises `ValueError`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"`{argument}` must be a whole number. Received: {argument}={value!r}. Pass, for example, 0.")
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
            f"`{argument}` must be a finite number {rule}. Received: {argument}={value!r}. Omit it to use the default."
        )
    return number


def check_dense(argument: str, value: object) -> None:
    """Raises unless targets or weights, or their spec, are a dense tensor of numbers of a known rank."""
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


def check_found(argument: str, values: Mapping[str, object], paths: Sequence[str]) -> None:
    """Checks that each pattern is found in a path; warns of one that decides nothing, because others come before it."""
    found = {pattern: [path for path in paths if re.search(pattern, path)] for pattern in values}
    absent = [pattern for pattern in found if not found[pattern]]
    if absent:
        raise ValueError(
            f"`{argument}` must have regular expressions that are found in the path of a variable. Received: "
            f"{quoted(absent)}; the paths are {quoted(paths, most=20)}. "
            f"{did_you_mean(absent, dict.fromkeys(_parts(paths)), 'Correct it, or leave it out.')}"
        )
    for pattern in found:
        first = {next(each for each in found if path in found[each]) for path in found[pattern]}
        if pattern not in first and any(values[each] != values[pattern] for each in first):
            warnings.warn(
                f"`{argument}` has a key without effect: {pattern!r}. The first key that is found in a path decides, and "
                f"{quoted(sorted(first))} comes before it. Put {pattern!r} first, or leave it out.",
                UserWarning,
                stacklevel=2,
            )


def _parts(paths: Iterable[str]) -> Iterable[str]:
    """The names in paths, then all that lies between two slashes."""
    names = [path.split("/") for path in paths]
    for length in range(1, 1 + max(map(len, names), default=0)):
        for each in names:
            yield from ("/".join(each[start : start + length]) for start in range(len(each) - length + 1))


# What TensorFlow makes of an assertion: its data, each in brackets, then the name of the operation.
_IN_GRAPH = re.compile(r"assertion failed: \[(`.*?)\]\s*\n\s*\[\[", re.DOTALL)

# TensorFlow's report of an error in a Python generator: its class and message, a trace, and who asked for the batch.
_IN_GENERATOR = re.compile(
    r"^(?:[^\n]*\}\} )?(\w+: [^\n]*)\nTraceback \(most recent call last\):.*IteratorGetNext", re.MULTILINE | re.DOTALL
)

# TensorFlow's report of a worker that no longer answers.
_OF_A_WORKER = re.compile(r"Collective ops is aborted by: (.*?)\n?(?:The error could be from|$)", re.DOTALL)

# AutoGraph's report of an error: lines of source code before it.
_WHILE_TRACED = re.compile(r"in user code:.*\n {4}(?:Value|Type)Error: (.*Received: .*)", re.DOTALL)


def stop_unless(holds: tf.Tensor, message: Callable[[], Sequence[str | tf.Tensor]]) -> list[tf.Tensor]:
    """Raises an error unless a condition holds. A graph compiled by XLA continues: XLA has no errors.

    A graph computes the message in any case: one operation that asserts is cheaper than a condition around it. Its parts are
    strings and tensors of numbers; the first begins with a backtick. Returns control dependencies for what must not run
    then.
    """
    if tf.executing_eagerly():
        if not bool(holds):
            raise ValueError("".join(part if isinstance(part, str) else _as_words(part) for part in message()))
        return []
    return [] if in_xla() else [tf.raw_ops.Assert(condition=holds, data=message(), summarize=10)]


def _as_words(values: tf.Tensor) -> str:
    return " ".join(f"{value:.9g}" if values.dtype.is_floating else str(value) for value in np.ravel(values))


def in_short(error: Exception) -> str:
    """The message of an error of TensorFlow or Keras in one line: without the traces and arguments around it."""
    text = re.sub(r"\x1b\[\d+m|\{\{[^}]*\}\} ?", "", str(error))
    text = re.split(r"\n\s*(?:Call arguments|Arguments) received by", text)[0]
    text = re.split(r"\n\s*(?:\w+\.)*\w*Error: |Exception encountered when calling [^\n]*\n", text)[-1]
    return " ".join(text.split())


@contextmanager
def errors_in_words() -> Iterator[None]:
    """Within, errors of `stop_unless` from a graph, and errors while it is traced, are raised with their message alone."""
    try:
        yield
    except tf.errors.OpError as error:
        of_generator, of_worker = _IN_GENERATOR.search(error.message), _OF_A_WORKER.search(error.message)
        in_graph = _IN_GRAPH.search(error.message)
        if in_graph is not None:
            plain: Exception = ValueError(in_graph.group(1).replace("] [", "").replace("\\'", "'"))
        elif of_worker is not None:
            plain = RuntimeError(
                "The other workers must run until `fit` ends, but one of them has stopped. Received: "
                f"{' '.join(of_worker.group(1).split())} Start the program again on all workers; with "
                "`multihead.callbacks.Checkpoint`, in a folder that they share, training continues where it stopped."
            )
        elif of_generator is not None:
            plain = RuntimeError(
                f"`x` raised an error while it made a batch. Received: {of_generator.group(1)}. The updates made so "
                "far are kept; correct the generator, or continue from a checkpoint (`multihead.callbacks.Checkpoint`)."
            )
        else:
            raise
    except (ValueError, TypeError) as error:
        found = _WHILE_TRACED.search(str(error))
        if found is None:
            raise
        plain = type(error)(found.group(1).rstrip())
    else:
        return
    raise plain
