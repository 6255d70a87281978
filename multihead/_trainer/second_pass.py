"""Whether the encoder's forward pass can be repeated exactly within an update, and whether that pays.

It is traced once in training mode, and its operations are looked at: what changes variables or draws random numbers would
happen twice. Random numbers from seeds that are variables of the encoder are drawn again after the seeds are set back.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from multihead._ground.calls import graph_function, in_inference_mode, written_resources
from multihead._ground.layers import module_variables, seed_variables, state_variables
from multihead._ground.random import random_numbers
from multihead._trainer.trace import handles
from multihead._update.encode import call_encoder
from multihead._update.labels import Predictions
from multihead._update.network import Network
from multihead._update.representation import DetachedRepresentation
from multihead._update.two_passes import Repeatable

FEWEST_HEADS = 2
"""From so many heads on, a second forward pass takes less time than the backward passes that it saves."""

_HARMLESS = {
    *("Assert", "VarHandleOp", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "Placeholder"),
    *("StatefulPartitionedCall", "If", "While", "Case"),
}
"""Operations with the mark of state that may run twice; functions, conditions and loops are looked into."""

_OF_SEEDS = {"AssignVariableOp", "AssignAddVariableOp", "RngReadAndSkip"}
"""Operations that may run twice on seeds, and on nothing else."""


def repeatable(network: Network, predictions: Sequence[Predictions], inputs: Any) -> Repeatable | None:
    """What it takes to repeat the encoder's forward pass in an update of several micro-batches; None if that is not done.

    It is done if at least two heads train the encoder, at least half of its weights are trained, the forward pass is
    exactly repeatable, and the representation gradients that are kept are small: the representation is one vector per
    example, or the encoder has an embedding, whose gradient in the other way is kept per head and is as large.

    Args:
        network: The built encoder and heads.
        predictions: What is known of the heads' predictions.
        inputs: The specs of a batch's inputs.
    """
    if sum(any(each.leaves) for each in predictions) < FEWEST_HEADS or not _is_mostly_trained(network):
        return None
    if _changed_by_heads(network):
        return None
    before = random_numbers()
    leaves: list[tf.TensorShape] = []

    def forward(inputs: Any) -> list[tf.Tensor]:
        with in_inference_mode(network.frozen_layers):
            found = DetachedRepresentation(call_encoder(network.encoder, inputs, training=True))
        leaves[:] = [leaf.shape for leaf in found.attached]
        return found.attached

    try:
        graph = graph_function(forward).get_concrete_function(inputs).graph
    except Exception:  # noqa: BLE001 - the step itself says what is wrong with the encoder
        return None
    seeds = _seeds(graph, network.encoder)
    if seeds is None or random_numbers() != before or not _is_repeatable(graph):
        return None
    is_small = all(shape.rank is not None and shape.rank <= 2 for shape in leaves) or _has_embedding(graph, network)
    return Repeatable(seeds=tuple(seeds), leaves=tuple(leaves)) if is_small else None


def _is_mostly_trained(network: Network) -> bool:
    """Whether at least half of the encoder's weights are trained; otherwise its backward pass may be cheap."""
    seeds = {id(each) for each in seed_variables(network.encoder)}
    sizes = [each.shape.num_elements() or 0 for each in module_variables(network.encoder) if id(each) not in seeds]
    trained = sum(tensor.shape.num_elements() or 0 for tensor in network.encoder_tensors)
    return trained > 0 and 2 * trained >= sum(sizes)


def _changed_by_heads(network: Network) -> bool:
    """Whether the heads, which run between the two passes, may change variables of the encoder, other than seeds."""
    of_heads = {id(each) for head in network.heads for each in state_variables(head.module)}
    seeds = {id(each) for each in seed_variables(network.encoder)}
    return any(id(each) in of_heads - seeds for each in module_variables(network.encoder))


def _seeds(graph: Any, encoder: Any) -> list[tf.Variable] | None:
    """The seeds of an encoder that a graph of its forward pass writes to; None if it writes to anything else."""
    written = written_resources(graph.get_operations())
    if not written:
        return []
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        return None
    names = {id(outside): inside.name for outside, inside in graph.captures}
    seeds = {names.get(id(seed.handle)): seed for seed in seed_variables(encoder)}
    return [seeds[name] for name in sorted(written)] if written <= seeds.keys() else None


def _is_repeatable(graph: Any) -> bool:
    """Whether no operation of a graph, and of the functions that it calls, has a state other than the variables."""
    try:
        registry = importlib.import_module("tensorflow.python.framework.op_def_registry")
    except ImportError:
        return False
    definition = graph.as_graph_def()
    library = {function.signature.name for function in definition.library.function}
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    allowed = library | _HARMLESS | _OF_SEEDS
    return all(node.op in allowed or _has_no_state(registry, node) for node in nodes)


def _has_no_state(registry: Any, node: Any) -> bool:
    if node.op.startswith("CudnnRNN"):
        return node.attr["dropout"].f == 0
    known = registry.get(node.op)
    return known is not None and not known.is_stateful


def _has_embedding(graph: Any, network: Network) -> bool:
    """Whether a graph reads rows of a trained variable of the encoder."""
    trained = {key for tensor in network.encoder_tensors for key in handles(tensor)}
    names = {inside.name for outside, inside in graph.captures if id(outside) in trained}
    gathers = [each for each in graph.get_operations() if each.type in ("ResourceGather", "GatherV2")]
    return any(_origin(each.inputs[0]).name in names for each in gathers)


def _origin(tensor: tf.Tensor) -> tf.Tensor:
    """The variable's handle that a tensor is read from, or the tensor itself."""
    while tensor.op.type in ("Identity", "Cast", "ReadVariableOp"):
        tensor = tensor.op.inputs[0]
    return tensor
