"""A plain functional Keras model of the encoder and heads, on the same layers, that does not need this library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from multihead import scaling
from multihead._ground.layers import called_again, is_functional, layer_of, nodes_in_order, outputs_of
from multihead._ground.types import Layer, Nested, Tensor
from multihead._ground.validation import in_short
from multihead.heads._named import NamedHead


def keras_model(encoder: Layer, heads: Sequence[NamedHead], specs: Nested, name: str, *, alone: bool) -> keras.Model:
    """The model of `MultiHeadTrainer.to_keras`. `specs`: those of the inputs, if known; `alone`: output without a dict."""
    for head in heads:
        if head.teacher_forcing:
            others = [other.name for other in heads if not other.teacher_forcing]
            raise ValueError(
                f"`heads` must predict by one call of their module. Received: {head.name!r}, which generates its output "
                f"step by step (teacher_forcing=True). Export it, `trainer.export(path, {head.name!r})`, and pass the "
                f"others: heads={others!r}."
            )
        if head.scaling is not None and isinstance(head.scaling.scaling, scaling.ByLayer):
            raise ValueError(
                f"`heads` must have a scaling that layers of Keras can undo. Received: {head.name!r}, whose targets are "
                f"scaled by the layer {head.scaling.scaling.layer.name!r}; its `inverse` is no layer. Export the head, "
                f"`trainer.export(path, {head.name!r})`, or use scaling.Standardize or scaling.Log."
            )
    for nested in (False, True):  # one graph of all layers, or nested models if two layers have the same name
        inputs, representation = _encoded(encoder, specs, nested=nested)
        outputs = {head.name: _output(head, representation, nested=nested) for head in heads}
        layers = {id(layer): layer.name for layer in map(layer_of, nodes_in_order(outputs.values()))}
        if len(set(layers.values())) == len(layers):
            break
    return keras.Model(inputs, outputs[heads[0].name] if alone else outputs, name=name)


def _graph_of(module: Layer) -> tuple[Nested, Nested] | None:
    """The symbolic inputs and outputs of a model that is a graph of layers; None for other modules."""
    if not (isinstance(module, keras.Model) and (is_functional(module) or type(module) is keras.Sequential)):
        return None
    if not getattr(module, "inputs", None) or not getattr(module, "outputs", None):
        return None
    if any(spec.shape.rank == 0 or spec.shape[0] is not None for spec in map(_shaped, module.inputs)):
        return None  # a sequence of layers that was built for batches of one size
    if type(module) is keras.Sequential:
        return module.inputs[0], module.outputs[0]
    return module.input, module.output


def _shaped(tensor: Tensor) -> tf.TensorSpec:
    return tf.TensorSpec(tuple(tensor.shape), tensor.dtype)


def _encoded(encoder: Layer, specs: Nested, *, nested: bool) -> tuple[Nested, Nested]:
    """Symbolic inputs of the encoder, and its representation."""
    graph = None if nested else _graph_of(encoder)
    if graph is not None:
        return graph
    own = _graph_of(encoder)
    if own is not None:
        specs = tf.nest.map_structure(_shaped, own[0])
    if not specs and not isinstance(specs, tf.TensorSpec):
        raise ValueError(
            "`to_keras` requires a trainer that knows the shapes of its inputs. Received: a trainer without data so far, "
            "whose encoder is not a functional model. Call `compute_gradients(batch)` or `fit`, or load a saved trainer, "
            "first."
        )
    inputs = tf.nest.map_structure(
        lambda spec: keras.Input(batch_shape=tuple(spec.shape), dtype=spec.dtype.name if nested else spec.dtype), specs
    )
    return inputs, _called("`encoder`", encoder, inputs)


def _called(description: str, module: Layer, arguments: Nested) -> Nested:
    """The outputs of a module for symbolic tensors; the layers of a functional or sequential model join the graph."""
    if type(module) is keras.Sequential:
        for layer in module.layers:
            arguments = _called(description, layer, arguments)
        return arguments
    graph = _graph_of(module)
    if graph is None:
        try:
            return module(arguments)
        except Exception as error:
            raise ValueError(
                f"{description} must be a layer or a model of Keras that can be part of a functional model. Received: "
                f"{type(module).__name__}. Make it a `keras.Model(inputs, outputs)` or a `keras.layers.Layer`, or use "
                f"`trainer.export(path)`. It says: {in_short(error)}"
            ) from error
    names = sorted(graph[0]) if isinstance(graph[0], Mapping) else [tensor.name for tensor in tf.nest.flatten(graph[0])]
    if isinstance(arguments, Mapping) and set(names) <= set(arguments):  # which Keras hands over by name
        arguments = [arguments[name] for name in names]
    inputs, outputs = (tf.nest.flatten(nest) for nest in graph)
    tensors = {id(old): new for old, new in zip(inputs, tf.nest.flatten(arguments))}
    for node in nodes_in_order(outputs, inputs):
        tensors.update({id(old): new for old, new in zip(outputs_of(node), called_again(node, tensors))})
    return tf.nest.map_structure(lambda tensor: tensors[id(tensor)], graph[1])


def _output(head: NamedHead, representation: Nested, *, nested: bool) -> Tensor:
    """The predictions of a head, in the units of its targets."""
    description, head_inputs = f"The module of head {head.name!r}", head.read(representation)
    if nested:
        inputs = tf.nest.map_structure(lambda t: keras.Input(batch_shape=tuple(t.shape), dtype=t.dtype), head_inputs)
        output = keras.Model(inputs, _called(description, head.module, inputs), name=f"{head.name}_module")(head_inputs)
    else:
        output = _called(description, head.module, head_inputs)
    if head.scaling is None:
        return output
    known = head.scaling.current
    dtype = "float64" if "float64" in str(output.dtype) else "float32"
    deviation, mean = (np.asarray(number, "float64").tolist() for number in (known.deviation, known.mean))
    output = keras.layers.Rescaling(deviation, mean, dtype=dtype, name=f"unscaled_{head.name}")(output)
    if isinstance(known, scaling.Log):
        output = keras.layers.Activation("exponential", dtype=dtype, name=f"exponential_{head.name}")(output)
        if known.shift:
            output = keras.layers.Rescaling(1.0, -known.shift, dtype=dtype, name=f"shifted_{head.name}")(output)
    return output
