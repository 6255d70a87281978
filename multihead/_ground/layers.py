"""The layers of a module: their order and names, and running them in inference mode."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from multihead._ground.autograph import call_users
from multihead._ground.keras import all_layers, sublayers, tensor_variable, variable_name


def ends_in_scaling(module: Any) -> bool:
    """Whether the last layer of a module changes the scale of numbers: `Rescaling`, or an inverted `Normalization`."""
    while isinstance(module, keras.Model) and getattr(module, "layers", None):
        module = module.layers[-1]
    return isinstance(module, keras.layers.Rescaling) or bool(
        isinstance(module, keras.layers.Normalization) and module.invert
    )


def blocks(module: Any) -> list[keras.layers.Layer]:
    """The layers of a module, from the lowest to the highest; a model among them is replaced by its own layers.

    They are in the order of the computation in a functional or sequential model, otherwise in that of attributes.
    """
    layers = sublayers(module)
    inner = [blocks(layer) if isinstance(layer, keras.Model) else [] for layer in layers]
    return [each for layer, found in zip(layers, inner) for each in found or [layer]]


def owner_names(module: Any, variables: Sequence[Any]) -> list[str]:
    """For each variable of a module, the name of the innermost layer that contains it; its own name if there is none."""
    names: dict[int, str] = {}
    used: dict[str, int] = {}
    for layer in all_layers(module):  # outer layers come before the layers in them
        used[layer.name] = used.get(layer.name, 0) + 1
        name = layer.name if used[layer.name] == 1 else f"{layer.name} ({used[layer.name]})"
        names.update({id(tensor_variable(variable)): name for variable in layer.variables})
    return [names.get(id(tensor_variable(variable)), variable_name(variable)) for variable in variables]


def variable_paths(module: Any) -> dict[int, str]:
    """The paths of a layer's variables by the identity of their tensors: the names of the layers from it on, and their own.

    Keras 2 has no such paths, and those of Keras 3 depend on where a layer was built first.
    """
    found: dict[int, str] = {}

    def visit(layer: Any, prefix: str) -> None:
        prefix, inner = f"{prefix}{layer.name}/", sublayers(layer)
        below = {id(tensor_variable(variable)) for each in inner for variable in each.weights}
        for variable in layer.weights:
            key = id(tensor_variable(variable))
            if key not in below:
                found.setdefault(key, prefix + variable.name.rpartition("/")[2].removesuffix(":0"))
        for each in inner:
            visit(each, prefix)

    if isinstance(module, keras.layers.Layer):
        visit(module, "")
    return found


@contextmanager
def in_inference_mode(layers: Sequence[Any]) -> Iterator[None]:
    """A context in which layers run in inference mode, whatever runs them; the layers in them do not.

    Args:
        layers: Layers, such as batch normalization, that change their own variables when they run in training mode.
    """
    before = [vars(layer).get("call") for layer in layers]
    for layer in layers:
        layer.call = _in_inference_mode(layer.call)
    try:
        yield
    finally:
        for layer, call in zip(layers, before):
            vars(layer).pop("call", None)
            if call is not None:
                layer.call = call


def _in_inference_mode(call: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(call)
    if "training" not in signature.parameters:
        return call

    @functools.wraps(call)  # Keras looks at the signature
    def called(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["training"] = False
        return call_users(call, *bound.args, **bound.kwargs)

    return called
