"""A Keras model with several outputs, split into an encoder and heads on the same layers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from multihead._ground.calls import InMode, graph_function, with_masks_of_layers
from multihead._ground.graphs import kinds_with_state, written_resources
from multihead._ground.keras import METRICS_OF_A_LIST_ARE_FOR_ALL, losses_beside_layers
from multihead._ground.layers import (
    called_again,
    clear_losses,
    compiled_with,
    inputs_of,
    is_functional,
    layer_of,
    losses_of_call,
    node_of,
    nodes_in_order,
    outputs_of,
    run_in_graphs,
)
from multihead._ground.random import random_numbers, restore_random_numbers
from multihead._ground.types import Config, Layer, Metric, MetricIdentifier, Nested, Node, Tensor
from multihead._ground.validation import in_short, quoted
from multihead.heads._metric_names import copied_metric, log_name, metric_named
from multihead.heads._named import can_name_a_head
from multihead.heads._reads import Reads
from multihead.losses._elements import reduction_of


def split_model(
    model: Layer, representation: str | Sequence[str] | None
) -> tuple[keras.Model, dict[str, tuple[Layer, Reads]]]:
    """Splits a functional model where the paths to its outputs diverge, or after the layers that form the representation.

    Returns:
        The encoder, from the inputs to the representation, which is one tensor or a dict of several; and, by output name,
        the layers from the representation to the output, with the entries of the representation that they read (None: all).
    """
    outputs = _outputs_of(model)
    output_nodes = {id(node_of(tensor)): node_of(tensor) for tensor in outputs.values()}
    (only_node,) = output_nodes.values() if len(output_nodes) == 1 else (None,)
    if only_node is not None and isinstance(layer_of(only_node), keras.Model):
        name = layer_of(only_node).name
        raise ValueError(
            f"`model` must divide into heads outside of nested models. Received: a model all of whose outputs come from "
            f"layer {name!r}. Pass that model: `from_model(model.get_layer({name!r}))`."
        )
    nodes = nodes_in_order(outputs.values())
    nodes_before = {name: {id(node) for node in nodes_in_order([tensor])} for name, tensor in outputs.items()}
    if representation is None:
        in_encoder = {id(node) for node in nodes if sum(id(node) in ancestors for ancestors in nodes_before.values()) > 1}
        if not _have_weights(node for node in nodes if id(node) in in_encoder):
            # Outputs may still share layers, which are called on different inputs.
            in_encoder |= {id(node) for node in nodes_in_order(_of_shared_layers(nodes, nodes_before.values()))}
    else:
        named = _named(model, nodes, representation)
        in_encoder = {id(node) for node in nodes_in_order(named)}
        behind = [node for node in nodes if id(node) not in in_encoder and inputs_of(node)]
        _check_called_again(representation, named, behind, nodes_before)
    in_encoder |= {id(node) for node in nodes if not inputs_of(node)}
    encoder_nodes = [node for node in nodes if id(node) in in_encoder]
    if not _have_weights(encoder_nodes):
        names = quoted(layer_of(node).name for node in encoder_nodes)
        raise ValueError(
            "`model` must have layers with weights that at least two outputs depend on; they become the encoder. Received: "
            f"{model.name!r}, whose outputs share only {names}. Train such outputs as "
            "separate models, or pass `representation=` with the layers whose outputs the heads read."
        )
    leaving = [tensor for node in nodes if id(node) not in in_encoder for tensor in inputs_of(node)]
    leaving = [tensor for tensor in (*leaving, *outputs.values()) if id(node_of(tensor)) in in_encoder]
    boundary = _keys({id(tensor): tensor for tensor in leaving}.values())
    representation_output = list(boundary.values())[0] if len(boundary) == 1 else boundary
    encoder = keras.Model(model.input, representation_output, name="encoder")
    return encoder, {name: _head(name, tensor, boundary) for name, tensor in outputs.items()}


def _outputs_of(model: Layer) -> dict[str, Tensor]:
    """The outputs of a model by name: the keys of a dict, otherwise Keras's names."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`model` must be a Keras model with several outputs. Received: model={model!r}. Pass a functional model."
        )
    name = f"{type(model).__name__} {model.name!r}"
    if not is_functional(model):
        raise ValueError(
            f"`model` must be a functional model, `keras.Model(inputs, outputs)`, whose graph of layers can be taken apart. "
            f"Received: {name}, which has code of its own. Write `MultiHeadTrainer(encoder)` with the part that all outputs "
            "share, and `add_head(name, module, loss)` once per output."
        )
    lost = [layer.name for layer in model.layers if type(layer).__name__ in ("AddLoss", "AddMetric")]
    if lost or losses_beside_layers(model):
        what = quoted(lost) if lost else "a function"
        raise ValueError(
            f"`model` must add its losses and metrics in layers. Received: {name}, with {what} from "
            "`model.add_loss` or `model.add_metric`. Call `self.add_loss` in the layer that the loss belongs to, and pass "
            "metrics to `model.compile`."
        )
    structure = model.output
    flat = tf.nest.flatten(structure)
    is_dict = isinstance(structure, Mapping) and not _is_nested(structure)
    odd = [key for key in structure if not can_name_a_head(key)] if is_dict else []
    if odd:
        raise ValueError(
            f"`model` must have keys of outputs that can be names of heads: strings, not empty or '.', without '/'. "
            f"Received: {name} with the keys {odd}. Build `keras.Model(model.inputs, ...)` again with other keys."
        )
    names = sorted(structure) if is_dict else list(_keys(flat))
    if len(flat) < 2:
        raise ValueError(
            f"`model` must have at least two outputs, which become the heads. Received: {name} with one output, "
            f"{names[0]!r}. Write `MultiHeadTrainer(encoder)` and `add_head(name, module, loss)` to add heads to an encoder."
        )
    return dict(zip(names, flat))


def _named(model: Layer, nodes: Sequence[Node], names: str | Sequence[str]) -> list[Tensor]:
    """The symbolic tensors that the layers with these names return."""
    wanted = [names] if isinstance(names, str) else list(names)
    nodes_by_name: dict[str, list[Node]] = {}
    for node in nodes:  # a layer may be called several times
        nodes_by_name.setdefault(layer_of(node).name, []).append(node)
    unknown = [name for name in wanted if name not in nodes_by_name]
    if unknown or not wanted:
        raise ValueError(
            "`representation` must be the name of a layer on the way to the outputs, or a list of names. Received: "
            f"representation={names!r}. The layers of {model.name!r} are {quoted(nodes_by_name)}; for a layer inside of a "
            "nested model, name the nested model."
        )
    return [tensor for name in wanted for node in nodes_by_name[name] for tensor in outputs_of(node)]


def _check_called_again(
    names: str | Sequence[str], named: Sequence[Tensor], behind: Sequence[Node], nodes_before: Mapping[str, Collection[int]]
) -> None:
    """Raises a `ValueError` if several heads would call a layer behind the representation whose calls are not all alike."""
    found = []
    for node in behind:
        dependent = [name for name, ancestors in nodes_before.items() if id(node) in ancestors]
        effect = _effect(node) if len(dependent) > 1 else None
        if effect is not None:
            found.append((node, effect, dependent))
    if found:
        wanted = [*map(node_of, named), *(node for node, _, _ in found)]
        others = [{id(earlier) for earlier in nodes_in_order(outputs_of(node))} - {id(node)} for node in wanted]
        last = [layer_of(node).name for node in wanted if not any(id(node) in before for before in others)]
        node, effect, dependent = found[0]
        raise ValueError(
            "`representation` must lie behind layers that several outputs depend on and that add a loss, have a state or "
            "draw random numbers, since all heads call what lies behind it. Received: "
            f"representation={names!r}, before layer {layer_of(node).name!r} of {quoted(dependent)}, which {effect}. Pass "
            f"`representation={list(dict.fromkeys(last))!r}`, or leave it out: heads then begin where the outputs part."
        )


def _effect(node: Node) -> str | None:
    """What the layer of a node does in training mode besides returning something, from a trace; None for nothing."""
    layer, inputs, numbers, losses = layer_of(node), inputs_of(node), random_numbers(), list[Any]()
    if not isinstance(layer, keras.layers.Layer):
        return None
    run_in_graphs(layer)
    clear_losses(layer)

    def forward(*tensors: tf.Tensor) -> None:
        by_id = {id(old): new for old, new in zip(inputs, tensors)}
        InMode(lambda: called_again(node, by_id, training=True))((), training=True)
        losses[:] = losses_of_call(layer)

    specs = [getattr(tensor, "type_spec", None) or tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    try:
        graph = graph_function(forward).get_concrete_function(*specs).graph
    except Exception as error:  # noqa: BLE001 - what cannot be traced may do anything
        return f"cannot be traced, so that it may do any of this. It says: {in_short(error).rstrip('.')}"
    finally:
        clear_losses(layer)
    draws = bool(kinds_with_state(graph)) or random_numbers() != numbers
    restore_random_numbers(numbers)
    if losses:
        return "adds a loss"
    return "has a state or draws random numbers" if draws or written_resources(graph.get_operations()) else None


def _have_weights(nodes: Iterable[Node]) -> bool:
    return any(getattr(layer_of(node), "weights", None) for node in nodes)


def _of_shared_layers(nodes: Sequence[Node], nodes_before: Collection[Collection[int]]) -> list[Tensor]:
    """The outputs of nodes whose layers have weights and are called for several outputs of the model."""
    outputs_by_layer: dict[int, set[int]] = {}
    for node in nodes:
        needing = {place for place, ancestors in enumerate(nodes_before) if id(node) in ancestors}
        outputs_by_layer.setdefault(id(layer_of(node)), set()).update(needing)
    shared = [node for node in nodes if len(outputs_by_layer[id(layer_of(node))]) > 1 and _have_weights([node])]
    return [tensor for node in shared for tensor in outputs_of(node)]


def _keys(tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    """Symbolic tensors by unique names: their layers', with a number if a layer returns several."""
    named: dict[str, Tensor] = {}
    for tensor in tensors:
        name = str(layer_of(node_of(tensor)).name).replace("/", "_")
        taken = [key for key in named if key == name or key.rpartition("_")[0] == name]
        named[f"{name}_{len(taken)}" if name in named else name] = tensor
    return named


def _head(name: str, output: Nested, boundary: Mapping[str, Tensor]) -> tuple[Layer, Reads]:
    """The layers from the representation to an output, as a model, and the part of the representation that it reads."""
    nodes = nodes_in_order([output], boundary.values())
    read = {id(tensor) for node in nodes for tensor in inputs_of(node)} or {id(output)}
    keys = [key for key, tensor in boundary.items() if id(tensor) in read]
    reads = None if len(boundary) == 1 else keys if len(keys) > 1 else keys[0]
    # A key may have characters that the name of a module must not have.
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    name = name if name[:1].isalnum() else f"head{name}"
    if not nodes:  # the output is part of the representation
        return keras.layers.Activation("linear", dtype=output.dtype, name=name), reads
    inputs = [keras.Input(batch_shape=tuple(boundary[key].shape), dtype=boundary[key].dtype) for key in keys]
    tensors = {id(boundary[key]): new for key, new in zip(keys, inputs)}
    for node in nodes:
        tensors.update({id(old): new for old, new in zip(outputs_of(node), called_again(node, tensors))})
    module = keras.Model(inputs[0] if len(inputs) == 1 else inputs, tensors[id(output)], name=name)
    return with_masks_of_layers(module), reads


def compiled_arguments(model: Layer, names: Sequence[str]) -> dict[str, Config]:
    """By output name, a head's `loss`, `weight`, `metrics` and `weighted_metrics` from the arguments of `model.compile`.

    The loss is None for an output without one. Metrics are copies, which do not share their state with the model's.
    """
    options = compiled_with(model)
    losses = _by_output(model, "loss", options.get("loss"), for_all=True)
    weights = _by_output(model, "loss_weights", options.get("loss_weights"), for_all=False)
    arguments = {}
    metrics = {argument: _metrics_of(model, argument, options.get(argument)) for argument in ("metrics", "weighted_metrics")}
    for i, (name, output) in enumerate(zip(names, model.output_names)):
        loss, taken = losses[i], set[str]()
        arguments[name] = {"loss": loss}
        for argument, metrics_by_output in metrics.items():
            specs = [spec for spec in metrics_by_output[i] if spec is not None]
            arguments[name][argument] = [_unshared(spec, output, taken) for spec in specs]
            taken |= {log_name(metric) for metric in arguments[name][argument]}
        if loss is None:
            continue
        if isinstance(loss, keras.losses.Loss) and (reduction := reduction_of(loss)) in ("sum", "none"):
            raise ValueError(
                f"`model` must be compiled with losses that are means over the batch. Received: {loss.name!r} for {name!r} "
                f"with reduction={reduction!r}; Keras then trains on the sum. Leave `reduction` out; for a head that counts "
                "as much as with the sum, multiply its weight in `loss_weights` by the number of losses in a batch."
            )
        weight = 1.0 if weights[i] is None else weights[i]
        if isinstance(weight, (tf.Variable, getattr(keras, "Variable", tf.Variable))):  # later values would be ignored
            raise ValueError(
                f"`model` must be compiled with numbers as `loss_weights`. Received: {weight!r} for {name!r}. Pass a "
                f"number; to change it while training, call `trainer.set_weight({name!r}, value)` in a callback."
            )
        arguments[name]["weight"] = float(weight)
    return arguments


def _unshared(metric: Metric, output: str, taken: Collection[str]) -> Metric:
    """A copy of an output's metric, whose name has no prefix with the name of the output, as Keras 2 adds.

    As on Keras 3, the name of a weighted metric begins with `weighted_` if another metric has its name already.
    """
    name = log_name(metric).removeprefix(f"{output}_")
    if name in taken:
        return metric_named(metric, f"weighted_{name}")
    return copied_metric(metric, name) if isinstance(metric, keras.metrics.Metric) else metric


def _by_output(model: Layer, argument: str, value: Any, *, for_all: bool) -> list[Any]:
    """An argument of `compile` by output of a model, in the order of `tf.nest.flatten`; None for an output without it.

    The argument is a dict by name, or by key, of an output; a list; or one value, which may be `for_all` outputs.
    """
    outputs, is_nested = tf.nest.flatten(model.output), _is_nested(model.output)
    if isinstance(value, Mapping):
        others = (Mapping,) if "metrics" in argument else (Mapping, list, tuple)  # in place of one for an output
        holds_others = is_nested and any(isinstance(own, others) for own in value.values())
        # As in Keras, the keys come first: one output's key may be the name of another's layer.
        for names in (_outputs_of(model), _keys(outputs)):
            if set(value) <= set(names) and not holds_others:
                return [value.get(name) for name in names]
    elif isinstance(value, (list, tuple)):
        if len(value) == len(outputs):
            return list(value)
    elif for_all or value is None:
        return [value] * len(outputs)
    remedy = f"Correct `model.compile({argument}=...)`: pass a dict by the name of an output."
    if is_nested:
        remedy = (
            "The outputs are nested: build `keras.Model(model.inputs, ...)` again with a dict that has no others in it, "
            f"which shares all layers, and pass `{argument}` by its keys."
        )
    raise ValueError(
        f"`model` must be compiled with `{argument}` for its outputs. Received: {argument}={value!r}, and the outputs "
        f"{quoted(_outputs_of(model))}. {remedy}"
    )


def _is_nested(structure: Nested) -> bool:
    """Whether a value of a dict, or an element of a list, is itself a dict or a list."""
    values = structure.values() if isinstance(structure, Mapping) else structure
    return any(isinstance(value, (Mapping, list, tuple)) for value in values)


def _metrics_of(model: Layer, argument: str, metrics: Any) -> list[list[MetricIdentifier]]:
    count, is_list = len(tf.nest.flatten(model.output)), isinstance(metrics, (list, tuple))
    is_nested = is_list and any(isinstance(spec, (list, tuple, Mapping)) for spec in metrics)
    is_for_all = is_list and not is_nested and (METRICS_OF_A_LIST_ARE_FOR_ALL or len(metrics) != count)
    metrics = [metrics] * count if is_for_all else _by_output(model, argument, metrics, for_all=True)
    return [list(specs) if isinstance(specs, (list, tuple)) else [] if specs is None else [specs] for specs in metrics]
