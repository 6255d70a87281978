"""What the graph of a trace tells: what a result depends on, what is written, and what has a state."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import tensorflow as tf
from tensorflow.python.framework import op_def_registry


def written_resources(operations: Sequence[tf.Operation]) -> set[str]:
    """The names of the tensors of resources that some operations of a graph may write to."""
    names = set()
    for operation in operations:
        only_read = range(len(operation.inputs)) if operation.type in _READING else ()
        with suppress(ValueError):  # functions, loops and conditions tell
            only_read = only_read or operation.get_attr("_read_only_resource_inputs")
        resources = [(i, tensor) for i, tensor in enumerate(operation.inputs) if tensor.dtype == tf.resource]
        names |= {tensor.name for i, tensor in resources if i not in only_read}
    return names


_READING = "ReadVariableOp ResourceGather ResourceGatherNd VariableShape LookupTableFindV2 LookupTableSizeV2".split()
_ON_RESOURCES = (
    "VarHandleOp AssignVariableOp AssignAddVariableOp AssignSubVariableOp RngReadAndSkip ResourceScatterAdd "
    "ResourceScatterUpdate"
).split()
_OF_SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
_SIZED_BY_VALUES = ("Where", "Unique", "ListDiff", "NonMaxSuppression", "Range", "PyFunc", "EagerPyFunc")
_BODIES = {"PartitionedCall": ["f"], "If": ["then_branch", "else_branch"], "Case": ["branches"], "While": ["cond", "body"]}
"""The attributes of operations that call functions, by their kinds without "Stateful" and "Stateless"."""

VALUES, SHAPE, SIZES = "values", "shape", "sizes"
"""What is read of a tensor: its values, its shape, or values that another tensor's shape depends on."""

Read = tuple[tf.Tensor, str]


def operations_behind(result: tf.Tensor, *, with_sizes: bool = False) -> list[tf.Operation]:
    """The operations of a graph that a tensor's values depend on; not those of which only the shape is read.

    Of functions, conditions and loops, only what this result needs is among them. `with_sizes` adds what those shapes depend
    on: the values that select elements, and whole numbers, which may be sizes.
    """
    kinds = (VALUES, SIZES) if with_sizes else (VALUES,)
    return list({tensor.op.name: tensor.op for tensor, what in _read_for(result, VALUES) if what in kinds}.values())


def _read_for(result: tf.Tensor, what: str) -> list[Read]:
    """What a graph reads for a tensor, back to its arguments."""
    found, waiting = dict[tuple[str, str], Read](), [(result, what)]
    while waiting:
        tensor, what = waiting.pop()
        if (tensor.name, what) not in found and not (what == SHAPE and tensor.shape.is_fully_defined()):
            found[tensor.name, what] = tensor, what
            waiting += _inputs_for(tensor, what)
    return list(found.values())


def _inputs_for(result: tf.Tensor, what: str) -> list[Read]:
    """What an operation reads of its inputs for one of its results."""
    operation, inputs, position = result.op, list(result.op.inputs), result.value_index
    kind, deciding = operation.type.removeprefix("Stateful").removeprefix("Stateless"), SIZES if what == SHAPE else what
    if kind in _OF_SHAPES:
        return [(tensor, SHAPE) for tensor in inputs]
    if kind == "IdentityN":  # of a function with a gradient of its own
        return [(inputs[position], what)]
    if kind in _BODIES:
        functions = tf.nest.flatten([operation.get_attr(name) for name in _BODIES[kind]])
        bodies = [operation.graph._get_function(function.name).graph for function in functions]
        read, before = set[tuple[int, str]](), None
        if kind == "While":  # what the next step reads is read, too
            read = {(position, what), *_arguments_for(bodies.pop(0), 0, deciding)}
            while read != before:
                before, read = read, read.union(*(_arguments_for(bodies[0], *one) for one in read))
        else:
            read = read.union(*(_arguments_for(body, position, what) for body in bodies))
        condition = inputs[: len(inputs) - len(bodies[0].inputs)]
        arguments = inputs[len(condition) :]
        return [(tensor, deciding) for tensor in condition] + [(arguments[i], what) for i, what in read]
    if what != SHAPE or kind.startswith(_SIZED_BY_VALUES):
        return [(tensor, deciding) for tensor in inputs]
    sizes = [] if "Gather" in kind else [tensor for tensor in inputs if tensor.dtype.is_integer]
    return [(tensor, SHAPE) for tensor in inputs] + [(tensor, SIZES) for tensor in sizes]


def _arguments_for(body: tf.Graph, position: int, what: str) -> set[tuple[int, str]]:
    """The positions of the arguments that a function reads for one of its results, and what it reads of each."""
    read = {(tensor.name, what) for tensor, what in _read_for(body.outputs[position], what)}
    arguments = [(i, argument.name) for i, argument in enumerate(body.inputs)]
    return {(i, what) for i, name in arguments for what in (VALUES, SHAPE, SIZES) if (name, what) in read}


def kinds_with_state(graph: tf.Graph, behind: Sequence[tf.Operation] | None = None) -> set[str]:
    """The kinds of operations of a graph, and of all functions in it, that have a state other than that of resources.

    With the operations `behind` a result, only those, and functions if there is one among them.
    """
    definition = graph.as_graph_def()
    nodes = list(definition.node) if behind is None else [operation.node_def for operation in behind]
    has_functions = behind is None or any(attribute.HasField("func") for node in nodes for attribute in node.attr.values())
    functions = definition.library.function if has_functions else []
    nodes += [node for function in functions for node in function.node_def]
    names = {function.signature.name for function in functions}
    harmless = {"Assert", "StatefulPartitionedCall", "If", "While", "Case", *names, *_READING, *_ON_RESOURCES}
    known = {node.op: op_def_registry.get(node.op) for node in nodes}
    with_state = {kind for kind, operation in known.items() if operation is None or operation.is_stateful} - harmless
    draw = {node.op for node in nodes if node.op.startswith("CudnnRNN") and node.attr["dropout"].f > 0}
    return {kind for kind in with_state if not kind.startswith("CudnnRNN")} | draw
