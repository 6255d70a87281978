"""Where the stacks differ: the layers of a module, their names, losses and state; the graph of a functional model."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeGuard, TypeVar

import keras
import tensorflow as tf

from multihead._ground.graphs import written_resources
from multihead._ground.keras import KERAS_3, metric_variables, temporarily, tensor_variable, variable_name
from multihead._ground.types import Config, Layer, Metric, Node, Tensor, Variable

Item = TypeVar("Item")


def distinct(items: Iterable[Item]) -> list[Item]:
    """Some objects without repetitions, in order."""
    return list({id(item): item for item in items}.values())


def all_layers(module: Layer) -> list[keras.layers.Layer]:
    """A layer and all its sub-layers; empty for other objects."""
    return list(module._flatten_layers()) if isinstance(module, keras.layers.Layer) else []


def check_initialized(argument: str, value: object) -> None:
    """Raises unless the class of a layer, a metric or a loss has called the `__init__` of Keras."""
    is_layer = isinstance(value, (keras.layers.Layer, keras.metrics.Metric)) and "_dtype_policy" not in vars(value)
    is_loss = isinstance(value, keras.losses.Loss) and not hasattr(value, "reduction")
    if is_layer or is_loss:
        raise ValueError(
            f"`{argument}` must be initialized by Keras. Received: a {type(value).__name__}, whose `__init__` does not call "
            "that of its base class. Begin it with `super().__init__()`."
        )


def sublayers(module: Layer) -> list[keras.layers.Layer]:
    """The layers directly below a layer or model; empty for other objects."""
    if not isinstance(module, keras.layers.Layer):
        return []
    return list(module.layers if isinstance(module, keras.Model) else module._flatten_layers(False, False))


def blocks(module: Layer) -> list[keras.layers.Layer]:
    """The layers of a module, from the lowest to the highest; a model among them is replaced by its own layers."""
    layers = sublayers(module)
    inner = [blocks(layer) if isinstance(layer, keras.Model) else [] for layer in layers]
    return [block for layer, inner_blocks in zip(layers, inner) for block in inner_blocks or [layer]]


def computes_as(layer: object, kind: type[keras.layers.Layer]) -> TypeGuard[Layer]:
    """Whether a layer computes what a class of Keras does: it is of this class, or of a subclass that keeps its methods."""
    methods = ("__call__", "build", "call", "finalize_state")
    is_kept = all(getattr(type(layer), method, None) is getattr(kind, method, None) for method in methods)
    return isinstance(layer, kind) and is_kept and "call" not in vars(layer)


def ends_in_scaling(module: Layer) -> bool:
    """Whether the last layer of a module changes the scale of numbers: `Rescaling`, or an inverted `Normalization`."""
    while isinstance(module, keras.Model) and getattr(module, "layers", None):
        module = module.layers[-1]
    return computes_as(module, keras.layers.Rescaling) or bool(
        computes_as(module, keras.layers.Normalization) and module.invert
    )


def owner_names(module: Layer, variables: Sequence[Variable]) -> list[str]:
    """For each variable of a module, the name of the innermost layer that contains it; its own name if there is none."""
    names: dict[int, str] = {}
    used: dict[str, int] = {}
    for layer in all_layers(module):  # outer layers come before the layers in them
        used[layer.name] = used.get(layer.name, 0) + 1
        name = layer.name if used[layer.name] == 1 else f"{layer.name} ({used[layer.name]})"
        names.update({id(tensor_variable(variable)): name for variable in layer.variables})
    return [names.get(id(tensor_variable(variable)), variable_name(variable)) for variable in variables]


def variable_paths(layer: Layer, prefix: str = "") -> dict[int, str]:
    """The paths of a layer's variables by the identity of their tensors: the names of the layers from it on, and their own.

    Keras 2 has no such paths, and those of Keras 3 depend on where a layer was built first.
    """
    if not isinstance(layer, keras.layers.Layer):
        return {}
    prefix, inner = f"{prefix}{layer.name}/", sublayers(layer)
    below: dict[int, str] = {}
    for sublayer in reversed(inner):  # the first layer that has a variable decides
        below.update(variable_paths(sublayer, prefix))
    own_names = [weight.name.rpartition("/")[2].removesuffix(":0") for weight in layer.weights]
    own = {id(tensor_variable(weight)): prefix + name for weight, name in zip(layer.weights, own_names)}
    return {**own, **below}


def renamed(layers: Sequence[tuple[str, Layer]]) -> AbstractContextManager[None]:
    """A context in which layers have other names, pairs of name and layer."""
    return temporarily("name" if KERAS_3 else "_name", [(layer, name) for name, layer in layers])


def unlock(layer: keras.layers.Layer) -> None:
    """Allows new sub-layers and state in a built layer (Keras 3 locks a layer when it is built)."""
    if KERAS_3:
        layer._tracker.unlock()


def replace_layers(owner: keras.layers.Layer, **layers: Layer) -> None:
    """Sets attributes of a layer to other layers or None; layers that are no longer an attribute are not saved with it."""
    unlock(owner)
    for name, layer in layers.items():
        old = getattr(owner, name, None)
        setattr(owner, name, layer)
        is_held = any(other is old for other in vars(owner).values())
        if KERAS_3 and isinstance(old, keras.layers.Layer) and not is_held:  # the first layer of an attribute stays tracked
            owner._tracker.untrack(old)


def run_in_graphs(module: Layer) -> None:
    """Makes layers of Keras 2 run in graphs whose Python depends on tensors: AutoGraph leaves out what belongs to Keras."""
    for layer in [] if KERAS_3 else all_layers(module):
        if isinstance(layer, keras.layers.SpectralNormalization):
            converted = tf.autograph.to_graph(type(layer).normalize_weights)
            layer.normalize_weights = types.MethodType(converted, layer)


def losses_of_call(module: Layer) -> list[tuple[str, tf.Tensor]]:
    """The losses that the latest call of a module has added, with the names of their layers."""
    if not isinstance(module, keras.layers.Layer):
        return [(type(module).__name__, loss) for loss in getattr(module, "losses", [])]
    by_layer = [(layer.name, layer._losses if KERAS_3 else layer._eager_losses) for layer in all_layers(module)]
    return [(name, loss) for name, losses in by_layer for loss in losses if tf.is_tensor(loss)]


def clear_losses(layer: keras.layers.Layer) -> None:
    """Forgets the losses that calls of a layer have added."""
    layer._clear_losses()


def losses_of_weights(module: Layer) -> dict[int, tuple[str, Callable[[], tf.Tensor]]]:
    """The regularizers of weights and, on Keras 2, losses added as functions, by identity, with the name of the owner."""
    if not isinstance(module, keras.layers.Layer):
        return {}
    if KERAS_3:
        regularized = [variable for variable in module.trainable_weights if variable.regularizer is not None]
        return {id(variable): (variable.path, functools.partial(variable.regularizer, variable)) for variable in regularized}
    return {id(loss): (layer.name, loss) for layer in all_layers(module) for loss in layer._callable_losses}


def own_losses(layer: Layer) -> dict[int, tuple[str, Callable[[], tf.Tensor]]]:
    """The functions that a layer itself has as losses on Keras 2, as in `losses_of_weights`; for None, none."""
    return {} if KERAS_3 or layer is None else {id(loss): (layer.name, loss) for loss in layer._callable_losses}


def metrics_of_layers(module: Layer) -> list[Metric]:
    """The metrics that a layer and its sub-layers keep, without duplicates."""
    return distinct(metric for layer in all_layers(module) for metric in layer._metrics)


def use_seed_variables(module: Layer) -> bool:
    """Makes layers draw random numbers from a variable that can be saved; whether a layer did not before.

    Layers of Keras 2, such as `Dropout`, draw from a counter inside of the operation, which nobody can read.
    """
    changed = False
    for layer in all_layers(module) if tf.distribute.get_strategy().num_replicas_in_sync == 1 else []:
        generator: Layer = getattr(layer, "_random_generator", None)
        if not KERAS_3 and getattr(generator, "_rng_type", None) == "legacy_stateful":
            generator._rng_type, generator._built, changed = "stateful", False, True
            generator._maybe_init()
    return changed


def seed_variables(module: Layer) -> list[tf.Variable]:
    """The variables from which layers draw random numbers; on Keras 2, those of `use_seed_variables`."""
    if KERAS_3:
        variables = [v for v in getattr(module, "variables", []) if getattr(v, "path", "").endswith("seed_generator_state")]
        return [tensor_variable(variable) for variable in variables]
    generators = [getattr(layer, "_random_generator", None) for layer in all_layers(module)]
    inner = [getattr(generator, "_generator", None) for generator in generators]
    return [generator.state for generator in inner if isinstance(generator, tf.random.Generator)]


def module_variables(module: Layer) -> list[tf.Variable]:
    """The TensorFlow variables of a module; the lookup tables that Keras 2 lists among them are none."""
    variables = [tensor_variable(variable) for variable in getattr(module, "variables", [])]
    return [variable for variable in variables if hasattr(variable, "trainable")]


def recurrent_states(module: Layer) -> list[tf.Variable]:
    """The states that stateful recurrent layers carry from batch to batch, in training and in inference."""
    layers = [layer for layer in all_layers(module) if getattr(layer, "stateful", False)]
    states = [state for layer in layers for state in tf.nest.flatten(getattr(layer, "states", None)) if state is not None]
    return [tensor_variable(state) for state in states]


def state_variables(module: Layer) -> list[tf.Variable]:
    """The distinct variables that a module may change in training mode: averages, seeds, recurrent states, metrics."""
    # A frozen layer's weights are not among them: only its own flag says so, not the TensorFlow variable's.
    variables = [
        *(variable for variable in module_variables(module) if not variable.trainable),
        *recurrent_states(module),
        *metric_variables(metrics_of_layers(module)),
        *(kernel for layer in all_layers(module) for kernel in _rescaled(layer)),
        # Keras 3 lists seeds among a layer's variables. As in `use_seed_variables`, those of several replicas are left out.
        *(seed_variables(module) if tf.distribute.get_strategy().num_replicas_in_sync == 1 else []),
    ]
    return distinct(variables)


def own_state(layer: Layer) -> list[tf.Variable]:
    """The variables that a layer itself, without the layers in it, may change when it runs in training mode.

    Seeds, the states of recurrent layers, and metrics are not among them.
    """
    parts = [*sublayers(layer), *getattr(layer, "metrics", [])]
    others = {id(variable) for part in parts for variable in module_variables(part)}
    others |= {id(variable) for variable in (*seed_variables(layer), *recurrent_states(layer))}
    variables = [variable for variable in module_variables(layer) if not variable.trainable and id(variable) not in others]
    return [*variables, *_rescaled(layer)]


def _rescaled(layer: Layer) -> list[tf.Variable]:
    """The kernel of another layer that spectral normalization rescales itself."""
    is_spectral = isinstance(layer, keras.layers.SpectralNormalization) and layer.built
    return [tensor_variable(layer.kernel)] if is_spectral else []


@contextmanager
def state_kept(modules: Sequence[Layer]) -> Iterator[None]:
    """A context after which the state of modules, whatever they do in it, is what it was before."""
    variables = distinct(variable for module in modules for variable in state_variables(module))
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


_OWN_CODE = ("__call__", "call", "train_step", "test_step", "predict_step", "compute_loss", "compute_metrics")


def is_functional(model: Layer) -> bool:
    """Whether a model is a graph of layers, and does nothing beyond it."""
    has_graph = getattr(model, "_nodes_by_depth", None) is not None
    return has_graph and all(getattr(type(model), name).__module__.startswith("keras.") for name in _OWN_CODE)


def node_of(tensor: Tensor) -> Node:
    """The call of a layer that returned a symbolic tensor."""
    history = tensor._keras_history
    layer = history.operation if KERAS_3 else history.layer
    return layer._inbound_nodes[history.node_index]


def layer_of(node: Node) -> Layer:
    """The layer, or the operation, that was called."""
    return node.operation if KERAS_3 else node.layer


def inputs_of(node: Node) -> list[Tensor]:
    """The symbolic tensors that a call takes, those of keyword arguments included; none for an input of the model."""
    return [] if node.is_input else list(node.input_tensors if KERAS_3 else node.keras_inputs)


def outputs_of(node: Node) -> list[Tensor]:
    return list(node.output_tensors) if KERAS_3 else tf.nest.flatten(node.outputs)


def nodes_in_order(outputs: Iterable[Tensor], known: Iterable[Tensor] = ()) -> list[Node]:
    """The calls that some symbolic tensors depend on, in topological order; none behind `known` tensors."""
    order: dict[int, Node] = {}
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
            stack.extend((input_tensor, False) for input_tensor in reversed(inputs_of(node)))
    return list(order.values())


def restored_apart(restore: Callable[[], Config], modules: Iterable[Layer]) -> Config:
    """What `restore` returns, whose `module` may be a functional model that shares layers with some modules.

    Keras 3 looks for the calls of a layer in a model by their numbers among all calls of the layer.
    """
    if not KERAS_3:
        return restore()
    layers = {id(layer): layer for module in modules for layer in all_layers(module)}
    before = [(layer, list(layer._inbound_nodes)) for layer in layers.values()]
    for layer, _ in before:
        layer._inbound_nodes.clear()
    try:
        restored = restore()
    finally:
        for layer, nodes in before:
            for tensor in (tensor for node in layer._inbound_nodes for tensor in node.outputs):
                history = tensor._keras_history
                tensor._keras_history = history._replace(node_index=history.node_index + len(nodes))
            layer._inbound_nodes[:0] = nodes
    for layer in all_layers(restored.get("module")):
        if id(layer) not in layers and is_functional(layer):  # which knows its calls by their numbers, too
            object.__setattr__(layer, "_nodes", keras.Model(layer.inputs, layer.outputs)._nodes)
    return restored


def called_again(node: Node, tensors: Mapping[int, Tensor], training: bool | None = None) -> list[Tensor]:
    """What the layer of a node returns, flat, when called again on other tensors, by `id` of those they replace.

    With `training`, a layer of Keras 3 runs in this mode: there, that of a model replaces the one that it was called with.
    """
    arguments = (node.arguments.args, node.arguments.kwargs) if KERAS_3 else (node.call_args, node.call_kwargs)
    args, kwargs = tf.nest.map_structure(lambda argument: tensors.get(id(argument), argument), arguments)
    if training is not None and KERAS_3 and getattr(layer_of(node), "_call_has_training_arg", False):
        kwargs = {**kwargs, "training": training}
    return list(tf.nest.flatten(layer_of(node)(*args, **kwargs)))


def compiled_with(model: Layer) -> Config:
    """The arguments of `compile` that a model was compiled with; none if it was not."""
    compile_config = getattr(model, "_compile_config", None)
    return {} if compile_config is None else dict(compile_config.config)
