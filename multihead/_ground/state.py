"""The state of a module: its variables that running it may change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from multihead._ground.graphs import written_resources
from multihead._ground.keras import all_layers, random_states, seed_variables, sublayers, tensor_variable


def module_variables(module: Any) -> list[tf.Variable]:
    """The TensorFlow variables of a module; the lookup tables that Keras 2 lists among them are none."""
    found = [tensor_variable(variable) for variable in getattr(module, "variables", [])]
    return [variable for variable in found if hasattr(variable, "trainable")]


def recurrent_states(module: Any) -> list[tf.Variable]:
    """The states that stateful recurrent layers carry from batch to batch, in training and in inference."""
    layers = [layer for layer in all_layers(module) if getattr(layer, "stateful", False)]
    states = [state for layer in layers for state in tf.nest.flatten(getattr(layer, "states", None)) if state is not None]
    return [tensor_variable(state) for state in states]


def state_variables(module: Any) -> list[tf.Variable]:
    """The variables that running a module in training mode may change, each once.

    These are moving averages, seeds and recurrent states, and the kernels that spectral normalization rescales itself.
    """
    # A frozen layer's weights are not among them: only its own flag says so, not the TensorFlow variable's.
    found = [
        *(variable for variable in module_variables(module) if not variable.trainable),
        *recurrent_states(module),
        *(kernel for layer in all_layers(module) for kernel in _rescaled(layer)),
        # Keras 3 lists seeds among a layer's variables. As in `use_seed_variables`, those of several replicas are left out.
        *(random_states(module) if tf.distribute.get_strategy().num_replicas_in_sync == 1 else []),
    ]
    return list({id(variable): variable for variable in found}.values())


def own_state(layer: Any) -> list[tf.Variable]:
    """The variables that a layer itself, without the layers in it, may change when it runs in training mode.

    Seeds, the states of recurrent layers, and metrics are not among them.
    """
    parts = [*sublayers(layer), *getattr(layer, "metrics", [])]
    others = {id(variable) for each in parts for variable in module_variables(each)}
    others |= {id(variable) for variable in (*seed_variables(layer), *recurrent_states(layer))}
    found = [variable for variable in module_variables(layer) if not variable.trainable and id(variable) not in others]
    return [*found, *_rescaled(layer)]


def _rescaled(layer: Any) -> list[tf.Variable]:
    """The kernel of another layer that spectral normalization rescales itself."""
    is_spectral = isinstance(layer, keras.layers.SpectralNormalization) and layer.built
    return [tensor_variable(layer.kernel)] if is_spectral else []


@contextmanager
def state_kept(modules: Sequence[Any]) -> Iterator[None]:
    """A context after which the state of modules, whatever they do in it, is what it was before."""
    variables = list({id(each): each for module in modules for each in state_variables(module)}.values())
    before = [tf.identity(variable.read_value()) for variable in variables]
    graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    start = 0 if graph is None else len(graph.get_operations())
    yield
    written = set() if graph is None else written_resources(graph.get_operations()[start:])
    for variable, value in zip(variables, before):
        # Only what has been assigned: a replica may not assign a variable whose layer does not.
        changed = tf.reduce_any(variable != value) if graph is None else graph.capture(variable.handle).name in written
        if changed:
            variable.assign(value)
