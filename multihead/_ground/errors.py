"""Errors that only the values of tensors can tell: raised in a graph, shown as a `ValueError` outside of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from multihead._ground.graphs import in_xla

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


def stop_unless(holds: tf.Tensor, message: Callable[[], Sequence[Any]]) -> list[tf.Tensor]:
    """Raises an error unless a condition holds. A graph compiled by XLA continues: XLA has no errors.

    A graph computes the message in any case: one operation that asserts is cheaper than a condition around it.

    Args:
        holds: A boolean scalar.
        message: Gives the parts of the message, strings and tensors of numbers; the first part begins with a backtick.

    Returns:
        Control dependencies for the operations that must not run otherwise.
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
