"""Graphs of TensorFlow: whether XLA compiles them, what they write to, loops in them, and running without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import tensorflow as tf


def in_xla() -> bool:
    """Whether the graph that is traced, or one around it, will be compiled by XLA."""
    graph: Any = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return False


@contextmanager
def functions_run_eagerly(eagerly: bool) -> Iterator[None]:
    """A context in which every `tf.function` runs as plain Python, if asked for."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(eagerly or before)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def written_resources(operations: Sequence[tf.Operation]) -> set[str]:
    """The names of the tensors of resources that some operations of a graph may write to."""
    found = set()
    for operation in operations:
        only_read = range(len(operation.inputs)) if operation.type in _READING else ()
        with suppress(ValueError):  # functions, loops and conditions tell
            only_read = only_read or operation.get_attr("_read_only_resource_inputs")
        resources = [(i, each) for i, each in enumerate(operation.inputs) if each.dtype == tf.resource]
        found |= {each.name for i, each in resources if i not in only_read}
    return found


_READING = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")


def one_after_another(step: Callable[[Any, tf.Tensor], Any], state: Any, orders: tf.Tensor) -> Any:
    """`step(state, others)` for each row of `orders`: unrolled for few heads, which is faster, otherwise a loop."""
    count = int(orders.shape[0])
    if count < 16:
        for others in tf.unstack(orders):
            state = step(state, others)
        return state
    return tf.while_loop(
        lambda index, _: index < count, lambda index, state: (index + 1, step(state, orders[index])), (tf.constant(0), state)
    )[1]
