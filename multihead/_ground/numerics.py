"""Values that are NaN on purpose: `tf.debugging.enable_check_numerics` must not stop them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tensorflow.python.eager import context


@contextmanager
def unchecked() -> Iterator[None]:
    """A context, or a decorator, for operations whose results may be NaN, such as values of nothing.

    `tf.debugging.enable_check_numerics` checks the results of all other operations, constants included.
    """
    with _callbacks(lambda before: []):
        yield


@contextmanager
def results_unchecked() -> Iterator[None]:
    """A context for calls of a `tf.function` whose results may be NaN; what it computes is checked as before."""
    with _callbacks(lambda before: [_in_functions_only(callback) for callback in before]):
        yield


@contextmanager
def _callbacks(change: Callable[[list[Any]], list[Any]]) -> Iterator[None]:
    """A context in which TensorFlow calls other functions for each operation of this thread."""
    present = context.context().op_callbacks
    before = list(present)
    present[:] = change(before)
    try:
        yield
    finally:
        present[:] = before


def _in_functions_only(callback: Callable[..., Any]) -> Callable[..., Any]:
    def called(op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> Any:
        name = op_type.decode() if isinstance(op_type, bytes) else op_type
        if graph is None and (name.startswith("__inference_") or name == "OptionalGetValue"):
            return None
        return callback(op_type, inputs, attrs, outputs, op_name=op_name, graph=graph)

    return called
