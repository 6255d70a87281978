"""A Keras model with several outputs, taken apart into an encoder and heads on the same layers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from multihead._ground.calls import with_masks_of_layers
from multihead._ground.keras import METRICS_OF_A_LIST_ARE_FOR_ALL
from multihead._ground.layers import (
    called_again,
    compiled_with,
    inputs_of,
    is_functional,
    layer_of,
    node_of,
    nodes_in_order,
    outputs_of,
)
from multihead._ground.types import Config, Layer, Metric, MetricIdentifier, Nested, Node, Tensor, Variable
from multihead._ground.validation import quoted
from multihead.heads._metrics import log_name
from multihead.heads._reads import Reads


def parts_of(model: Layer, representation: str | Sequence[str] | None) -> tuple[keras.Model, dict[str, tuple[Layer, Reads]]]:
    """Takes a functional model apart where its outputs' ways part, or at the layers whose outputs are the representation.

    Returns:
        The encoder, from the inputs to the representation, which is one tensor or a dict of several; and by the name of an
        output the layers from the representation to it, with what they read of a dict (None: all).
    """
    outputs = _outputs_of(model)
    last = {id(node_of(tensor)): node_of(tensor) for tensor in outputs.values()}
    (alone,) = last.values() if len(last) == 1 else (None,)
    if alone is not None and len(outputs_of(alone)) > 1:
        name = layer_of(alone).name
        raise ValueError(
            f"`model` must divide into heads outside of nested models. Received: a model all of whose outputs come from "
            f"layer {name!r}. Pass that model: `from_model(model.get_layer({name!r}))`."
        )
    nodes = nodes_in_order(outputs.values())
    behind = {name: {id(node) for node in nodes_in_order([tensor])} for name, tensor in outputs.items()}
    if representation is None:
        in_encoder = {id(node) for node in nodes if sum(id(node) in found for found in behind.values()) > 1}
    else:
        in_encoder = {id(node) for node in nodes_in_order(_named(model, nodes, representation))}
    in_encoder |= {id(node) for node in nodes if not inputs_of(node)}
    layers = [layer_of(node) for node in nodes if id(node) in in_encoder]
    if not any(getattr(layer, "weights", None) for layer in layers):
        raise ValueError(
            "`model` must have layers with weights that at least two outputs depend on; they become the encoder. Received: "
            f"{model.name!r}, whose outputs share only {quoted(layer.name for layer in layers)}. Train such outputs as "
            "separate models, or pass `representation=` with the layers whose outputs the heads read."
        )
    leaving = [tensor for node in nodes if id(node) not in in_encoder for tensor in inputs_of(node)]
    leaving = [tensor for tensor in (*leaving, *outputs.values()) if id(node_of(tensor)) in in_encoder]
    boundary = _keys({id(tensor): tensor for tensor in leaving}.values())
    whole = list(boundary.values())[0] if len(boundary) == 1 else boundary
    encoder = keras.Model(model.input, whole, name="encoder")
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
            "share, and `add_head(name, module, loss)` for each of the others."
        )
    lost = [layer.name for layer in model.layers if type(layer).__name__ in ("AddLoss", "AddMetric")]
    if lost:
        raise ValueError(
            f"`model` must add its losses and metrics in layers. Received: {name}, with {quoted(lost)} from "
            "`model.add_loss` or `model.add_metric`. Call `self.add_loss` in the layer that the loss belongs to, and pass "
            "metrics to `model.compile`."
        )
    structure = model.output
    flat = tf.nest.flatten(structure)
    is_dict = isinstance(structure, Mapping) and len(structure) == len(flat)
    names = sorted(structure) if is_dict else list(_keys(flat))
    if len(flat) < 2:
        raise ValueError(
            f"`model` must have at least two outputs, which become the heads. Received: {name} with one output, "
            f"{names[0]!r}. Write `MultiHeadTrainer(encoder)` and `add_head(name, module, loss)` to add heads to an encoder."
        )
    return dict(zip(names, flat))


def _named(model: Layer, nodes: Sequence[Node], names: str | Sequence[str]) -> list[Tensor]:
    """The symbolic tensors that the layers of some names return."""
    wanted = [names] if isinstance(names, str) else list(names)
    found = {layer_of(node).name: node for node in nodes}
    unknown = [name for name in wanted if name not in found]
    if unknown or not wanted:
        raise ValueError(
            "`representation` must be the name of a layer on the way to the outputs, or a list of names. Received: "
            f"representation={names!r}. The layers of {model.name!r} are {quoted(found)}; for a layer inside of a nested "
            "model, name the nested model."
        )
    return [tensor for name in wanted for tensor in outputs_of(found[name])]


def _keys(tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    """Symbolic tensors by unique names: those of their layers, with a number where a layer returns several."""
    found: dict[str, Tensor] = {}
    for tensor in tensors:
        name = str(layer_of(node_of(tensor)).name).replace("/", "_")
        taken = [key for key in found if key == name or key.rpartition("_")[0] == name]
        found[f"{name}_{len(taken)}" if name in found else name] = tensor
    return found


def _head(name: str, output: Nested, boundary: Mapping[str, Tensor]) -> tuple[Layer, Reads]:
    """The layers from the representation to an output as a model, and what it reads of the representation."""
    nodes = nodes_in_order([output], boundary.values())
    read = {id(tensor) for node in nodes for tensor in inputs_of(node)} or {id(output)}
    keys = [key for key, tensor in boundary.items() if id(tensor) in read]
    reads = None if len(boundary) == 1 else keys if len(keys) > 1 else keys[0]
    if not nodes:  # the output is part of the representation
        return keras.layers.Identity(dtype=output.dtype, name=name), reads
    inputs = [keras.Input(batch_shape=tuple(boundary[key].shape), dtype=boundary[key].dtype) for key in keys]
    tensors = {id(boundary[key]): new for key, new in zip(keys, inputs)}
    for node in nodes:
        tensors.update({id(old): new for old, new in zip(outputs_of(node), called_again(node, tensors))})
    module = keras.Model(inputs[0] if len(inputs) == 1 else inputs, tensors[id(output)], name=name)
    return with_masks_of_layers(module), reads


def compiled_of(model: Layer, names: Sequence[str]) -> dict[str, Config]:
    """What a model was compiled with, by the name of an output: the arguments `loss`, `weight` and `metrics` of a head.

    An output without a loss has None. Metrics are copies, which do not share their state with the model.
    """
    options = compiled_with(model)
    losses = _by_output(model, "loss", options.get("loss"), for_all=True)
    weights = _by_output(model, "loss_weights", options.get("loss_weights"), for_all=False)
    found = {}
    metrics = {argument: _metrics_of(model, argument, options.get(argument)) for argument in ("metrics", "weighted_metrics")}
    for place, (name, output) in enumerate(zip(names, model.output_names)):
        loss, taken = losses[place], set[str]()
        found[name] = {"loss": loss}
        for argument, each in metrics.items():
            found[name][argument] = [_unshared(metric, output, taken) for metric in each[place] if metric is not None]
            taken |= {log_name(metric) for metric in found[name][argument]}
        if loss is not None:
            found[name]["weight"] = 1.0 if weights[place] is None else _number(weights[place], name)
    return found


def _number(weight: float | Variable, name: str) -> float:
    """The weight of an output's loss; a `ValueError` for a variable, whose next values nobody would see."""
    if isinstance(weight, (tf.Variable, getattr(keras, "Variable", tf.Variable))):
        raise ValueError(
            f"`model` must be compiled with numbers as `loss_weights`. Received: {weight!r} for {name!r}. Pass a number; to "
            f"change it while training, call `trainer.set_weight({name!r}, value)` in a callback."
        )
    return float(weight)


def _unshared(metric: Metric, output: str, taken: Collection[str]) -> Metric:
    """A copy of a metric of an output, without the name of the output, which Keras 2 puts in front.

    As on Keras 3, the name of a weighted metric begins with `weighted_` if another one has it already.
    """
    name = log_name(metric).removeprefix(f"{output}_")
    if name in taken:
        name, metric = f"weighted_{name}", keras.metrics.get(metric)
        if not isinstance(metric, keras.metrics.Metric):
            return keras.metrics.MeanMetricWrapper(metric, name=name)
    if not isinstance(metric, keras.metrics.Metric):
        return metric
    return type(metric).from_config({**metric.get_config(), "name": name})


def _by_output(model: Layer, argument: str, given: Any, *, for_all: bool) -> list[Any]:
    """What `compile` was given for each output of a model, in the order of `tf.nest.flatten`; None for no output.

    That is a dict by name, or by key, of an output; a list; or one value, maybe `for_all`.
    """
    count = len(tf.nest.flatten(model.output))
    if given is None:
        return [None] * count
    if isinstance(given, Mapping):
        for names in (_keys(tf.nest.flatten(model.output)), _outputs_of(model)):
            if set(given) <= set(names):
                return [given.get(name) for name in names]
    elif isinstance(given, (list, tuple)):
        if len(given) == count:
            return list(given)
    elif for_all:
        return [given] * count
    remedy = f"Correct `model.compile({argument}=...)`: pass a dict by the name of an output."
    if any(isinstance(each, (Mapping, list, tuple)) for each in _values(model.output)):
        remedy = (
            "The outputs are nested: build `keras.Model(model.inputs, ...)` again with a dict that has no others in it, "
            f"which shares all layers, and pass `{argument}` by its keys."
        )
    raise ValueError(
        f"`model` must be compiled with `{argument}` for its outputs. Received: {argument}={given!r}, and the outputs "
        f"{quoted(_outputs_of(model))}. {remedy}"
    )


def _values(structure: Nested) -> Iterable[Nested]:
    """The values of a dict, or the elements of a list."""
    return structure.values() if isinstance(structure, Mapping) else structure


def _metrics_of(model: Layer, argument: str, given: Any) -> list[list[MetricIdentifier]]:
    """The metrics of each output."""
    count = len(tf.nest.flatten(model.output))
    is_list = isinstance(given, (list, tuple))
    is_nested = is_list and any(isinstance(each, (list, tuple, Mapping)) for each in given)
    is_one_each = is_list and not METRICS_OF_A_LIST_ARE_FOR_ALL and len(given) == count
    if given is None or isinstance(given, Mapping) or is_nested or is_one_each:
        given = _by_output(model, argument, given, for_all=False)
    else:
        given = [given] * count
    return [list(each) if isinstance(each, (list, tuple)) else [] if each is None else [each] for each in given]
