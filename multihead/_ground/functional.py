"""The graph of layers of a functional model, in the same terms on Keras 2 and Keras 3."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from multihead._ground.keras import KERAS_3

_OWN_CODE = ("call", "train_step", "test_step", "predict_step", "compute_loss")


def is_functional(model: Any) -> bool:
    """Whether a model is a graph of layers, and does nothing beyond it."""
    has_graph = getattr(model, "_nodes_by_depth", None) is not None
    return has_graph and all(getattr(type(model), name).__module__.startswith("keras.") for name in _OWN_CODE)


def node_of(tensor: Any) -> Any:
    """The call of a layer that returned a symbolic tensor."""
    history = tensor._keras_history
    layer = history.operation if KERAS_3 else history.layer
    return layer._inbound_nodes[history.node_index]


def layer_of(node: Any) -> Any:
    """The layer, or the operation, that was called."""
    return node.operation if KERAS_3 else node.layer


def inputs_of(node: Any) -> list[Any]:
    """The symbolic tensors that a call takes, those of keyword arguments included; none for an input of the model."""
    return [] if node.is_input else list(node.input_tensors if KERAS_3 else node.keras_inputs)


def outputs_of(node: Any) -> list[Any]:
    """The symbolic tensors that a call returns."""
    return list(node.output_tensors) if KERAS_3 else tf.nest.flatten(node.outputs)


def nodes_in_order(outputs: Iterable[Any], known: Iterable[Any] = ()) -> list[Any]:
    """The calls that some symbolic tensors depend on, each after those that it depends on.

    Args:
        outputs: The tensors.
        known: Tensors behind which nothing is followed.
    """
    order: dict[int, Any] = {}
    stop, stack = {id(tensor) for tensor in known}, [(tensor, False) for tensor in reversed(list(outputs))]
    while stack:
        tensor, is_left = stack.pop()
        node = node_of(tensor)
        if id(tensor) in stop or id(node) in order:
            continue
        if is_left:
            order[id(node)] = node
        else:
            stack.append((tensor, True))
            stack.extend((each, False) for each in reversed(inputs_of(node)))
    return list(order.values())


def called_again(node: Any, tensors: Mapping[int, Any]) -> list[Any]:
    """Calls the layer of a node again on other symbolic tensors; what it returns, flat.

    Args:
        node: The call.
        tensors: The new tensors, by the `id` of those that they replace.
    """
    given = (node.arguments.args, node.arguments.kwargs) if KERAS_3 else (node.call_args, node.call_kwargs)
    args, kwargs = tf.nest.map_structure(lambda each: tensors.get(id(each), each), given)
    return tf.nest.flatten(layer_of(node)(*args, **kwargs))


def compiled_with(model: Any) -> dict[str, Any]:
    """The arguments of `compile` that a model was compiled with; none if it was not."""
    found = getattr(model, "_compile_config", None)
    return {} if found is None else dict(found.config)
