"""Where the stacks differ: calls of what users wrote, which AutoGraph converts, and what Keras attaches to tensors."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import keras
import tensorflow as tf

from multihead._ground.keras import KERAS_3, LABELS_HAVE_COLUMNS, temporarily
from multihead._ground.types import Function, Layer, Nested, Tensor

Marked = TypeVar("Marked", bound=Function)

_LIBRARIES = {__name__.partition(".")[0], "keras", "tensorflow", "numpy"}

_MARKS = {**vars(tf.autograph.experimental.do_not_convert(lambda: None))}
"""The attributes by which AutoGraph knows what it must not convert."""
del _MARKS["__wrapped__"]


def no_autograph(function: Marked) -> Marked:
    """Marks a function, so that AutoGraph calls it without a conversion.

    Unlike with `tf.autograph.experimental.do_not_convert`, users' functions that it calls are converted.
    """
    vars(function).update(_MARKS)
    return function


def mark_functions(package: str) -> None:
    """Marks the functions and methods of a package, as far as it is imported.

    Functions inside of functions are not among them; they need `no_autograph` where they are passed to TensorFlow.
    """
    for name, module in list(sys.modules.items()):
        if not name.startswith(package):
            continue
        classes = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name]
        for owner in (module, *classes):
            for member in vars(owner).values():
                function = getattr(member, "__func__", member)
                if inspect.isfunction(function) and function.__module__ == name:
                    no_autograph(function)
        for cls in classes:
            if "__call__" in vars(cls):  # AutoGraph asks the object, not its method
                for mark, value in _MARKS.items():
                    setattr(cls, mark, value)


def call_users(function: Function, *args: object, **kwargs: object) -> Nested:
    """Calls a function that a user wrote, converted by AutoGraph if a graph is built and AutoGraph is not switched off.

    A function whose source cannot be read is called without a conversion, and without a warning.
    """
    if not tf.executing_eagerly():
        around = tf.__internal__.autograph.control_status_ctx()
        converts = {"ENABLED": True, "DISABLED": False}.get(around.status.name, not KERAS_3)  # where nothing says so
        if converts and _is_convertible(function):
            function = tf.__internal__.autograph.tf_convert(function, around, user_requested=True)
    return function(*args, **kwargs)


def convert_user_function(function: Function) -> Function:
    """A method that a user wrote, called by `call_users`; one of this package is returned unchanged."""
    if _is_of_library(function):
        return function

    @no_autograph
    @functools.wraps(function, assigned=("__name__", "__qualname__", "__doc__"))
    def called(*args: object, **kwargs: object) -> Nested:
        return call_users(function, *args, **kwargs)

    return called


def graph_function(function: Function, **options: object) -> tf.types.experimental.PolymorphicFunction:
    """A `tf.function` of a function of this package, inside which users' functions are converted if they are outside."""
    around = tf.__internal__.autograph.control_status_ctx()

    def inside(*args: object, **kwargs: object) -> Nested:
        with around:
            return function(*args, **kwargs)

    made = tf.function(inside, autograph=False, **options)
    omit_retracing_warning(made)
    return made


def omit_retracing_warning(function: object) -> None:
    """Keeps the functions of TensorFlow that are in one from warning of retracing.

    TensorFlow adds up the traces of all functions with the same code. Those of Keras, and of this package, are the same code
    for all trainers, which trace their own, so that the third one would cause a warning.
    """
    waiting: list[Any] = [function]
    seen: set[int] = set()
    while waiting:
        candidate = waiting.pop()
        if id(candidate) not in seen:
            seen.add(id(candidate))
            if inspect.isfunction(candidate):
                cells = [cell for cell in candidate.__closure__ or () if cell != types.CellType()]  # not empty
                waiting += [cell.cell_contents for cell in cells]
            elif hasattr(candidate, "_omit_frequent_tracing_warning"):
                candidate._omit_frequent_tracing_warning = True
                waiting.append(candidate.python_function)


def _is_of_library(function: object) -> bool:
    return str(getattr(function, "__module__", None)).partition(".")[0] in _LIBRARIES


def _is_convertible(function: Function) -> bool:
    """Whether a function is a user's and AutoGraph can read it. Its result is kept by AutoGraph, for the call."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    function = getattr(function, "__func__", function)
    if _is_of_library(function):
        return False
    try:
        tf.autograph.to_graph(function)
    except Exception:  # noqa: BLE001 - AutoGraph raises many kinds; it reads the function, and does not call it
        return False
    return True


def created_outside_of_graphs(forward: Callable[[], object]) -> None:
    """Makes modules create their variables as mirrored variables, by a call whose results are discarded.

    Under a strategy, Keras 3 cannot create variables while tracing a function; with a `StatelessScope`, it creates them
    at the end of the scope.
    """
    if KERAS_3 and tf.distribute.get_strategy().num_replicas_in_sync > 1:
        with keras.StatelessScope():
            forward()


def entries_for(module: Layer, representation: Nested) -> Nested:
    """The entries of a dict that a functional model has inputs for, in the structure of its inputs; all for other modules.

    Keras itself ignores the other entries, with a warning.
    """
    symbols = getattr(module, "inputs", None)
    if not symbols or not isinstance(representation, Mapping):
        return representation
    structure = module.input
    names = list(structure) if isinstance(structure, Mapping) else [symbol.name for symbol in symbols]
    if set(names) == set(representation) or not set(names) <= set(representation):
        return representation
    entries = {name: representation[name] for name in names}
    if isinstance(structure, Mapping):
        return entries
    return list(entries.values()) if isinstance(structure, (list, tuple)) else entries[names[0]]


def keras_mask(tensor: Tensor) -> tf.Tensor | None:
    return getattr(tensor, "_keras_mask", None)


def with_keras_mask(tensor: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Attaches a Keras mask (unless None) and returns the tensor."""
    if mask is not None:
        tensor._keras_mask = mask
    return tensor


def keras_logits(tensor: Tensor) -> tf.Tensor | None:
    """The logits that Keras's softmax or sigmoid attached to what it returned, or None."""
    return getattr(tensor, "_keras_logits", None)


def with_keras_logits(tensor: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Attaches logits and returns the tensor."""
    tensor._keras_logits = logits
    return tensor


def with_masks_of_layers(model: keras.Model) -> keras.Model:
    """A functional model that leaves masks to its layers without a warning, as on Keras 2."""
    if KERAS_3:
        model.supports_masking, model.compute_mask = True, lambda inputs, previous_mask: None
    return model


def with_logits(change: Callable[[tf.Tensor], tf.Tensor], predictions: Tensor) -> tf.Tensor:
    """Changes the shape or the dtype of predictions, and of the logits that Keras's activations attach to them.

    Keras's cross-entropies compute from these logits, which is more exact; sigmoids of TensorFlow are recognized, too.
    """
    changed = change(predictions)
    logits = keras_logits(predictions)
    if logits is None and not hasattr(predictions, "numpy") and predictions.op.type == "Sigmoid":
        logits = predictions.op.inputs[0]
    if logits is None or changed is predictions:
        return changed
    return with_keras_logits(changed, change(logits))


def gathered(tensor: Tensor, rows: Tensor) -> tf.Tensor:
    """Some rows of a tensor, with its Keras mask and the logits that it was computed from."""
    kept, mask = with_logits(lambda values: tf.gather(values, rows), tensor), keras_mask(tensor)
    return with_keras_mask(kept, None if mask is None else tf.gather(mask, rows))


def are_probabilities(predictions: Tensor) -> bool:
    """Whether predictions are known to be the result of a softmax or a sigmoid, however reshaped."""
    return keras_logits(predictions) is not None or last_operation(predictions) in ("Softmax", "Sigmoid")


def last_operation(tensor: Tensor) -> str:
    """The type of the operation that computed a tensor in a graph, however it was reshaped then; empty outside of graphs."""
    if hasattr(tensor, "numpy"):
        return ""
    operation = tensor.op
    while operation.type in ("Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "Transpose"):
        operation = operation.inputs[0].op
    return str(operation.type)


def with_columns_of_keras(targets: tf.Tensor) -> tf.Tensor:
    """Targets with the axes in which Keras hands them to what its users wrote: `[batch]` is `[batch, 1]` on Keras 2."""
    return targets[:, tf.newaxis] if LABELS_HAVE_COLUMNS and targets.shape.rank == 1 else targets


def targets_for_loss(targets: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    """Targets in the dtype in which Keras hands them to a loss that its user wrote.

    Keras 3 gives all targets the dtype of the predictions. Keras 2 does so where both are floating or both are integers.
    """
    kinds = [(tensor.dtype.is_floating, tensor.dtype.is_integer) for tensor in (targets, predictions)]
    return tf.cast(targets, predictions.dtype) if KERAS_3 or (kinds[0] == kinds[1] and any(kinds[0])) else targets


class InMode(keras.layers.Layer):
    """Calls a module inside a layer, so that `training` reaches its sub-layers even if it has no such argument.

    The module sees its inputs and variables as if it were called alone: neither the global dtype policy nor that of a layer
    around it casts them.
    """

    def __init__(self, module: Layer, **options: Tensor) -> None:
        # Keras casts variables to the dtype of the layer that is called, unless that is an integer.
        super().__init__(autocast=False, dtype="int32", name=getattr(module, "name", None))
        self.built = True
        self._module = [lambda *args: module(*args, **options)]  # a plain function in a list, which Keras does not track
        self._allow_non_tensor_positional_args = True
        self._convert_input_args = False
        self._compute_output_and_mask_jointly = True  # keeps the module's own masks on its outputs
        self.supports_masking = True  # the module sees the mask of its inputs, and says itself if it does not support it

    def call(self, arguments: Sequence[Nested], training: bool | None = None) -> Nested:
        return self._module[0](*arguments)

    def compute_mask(self, inputs: Nested, mask: Tensor = None) -> None:
        """No other mask than those of the module."""


def call_module(module: Layer, *args: Nested, training: bool, step: Tensor = None) -> Nested:
    """Calls a Keras layer or model, or any callable, in training or inference mode, with a step if it accepts one.

    Modules without an argument `training` get it for their sub-layers. Losses that an earlier call has added are cleared.

    A `ValueError` if the step would be missing in evaluation and prediction, or if an input takes its place.
    """
    if not isinstance(module, keras.layers.Layer):
        return call_users(module, *args)
    module._clear_losses()
    signature = inspect.signature(module.call)
    parameters, accepted = signature.parameters, signature.parameters.get("step")
    if accepted is not None and next(iter(parameters)) == "step":
        accepted = None  # an input of this name
    if accepted is not None:
        is_taken = accepted.kind is not accepted.KEYWORD_ONLY and list(parameters).index("step") < len(args)
        if is_taken or accepted.default is accepted.empty:
            raise ValueError(
                "`step` of a module's `call` must come after its inputs and have a default, as evaluation has no step. "
                f"Received: `call{signature}` of {type(module).__name__}. Write `step=None`, after the inputs."
            )
    options = {} if step is None or accepted is None else {"step": step}
    if "training" in parameters:
        return module(*args, training=training, **options)
    return InMode(module, **options)(args, training=training)


@contextmanager
def in_inference_mode(layers: Sequence[Layer]) -> Iterator[None]:
    """A context in which layers run in inference mode, whatever runs them; the layers in them do not.

    Replicas are threads that wait for one another inside of it, so that the last one to leave it ends it.
    """
    for layer in layers:
        count, stack = _INSIDE.get(id(layer), (0, ExitStack()))
        if not count:
            stack.enter_context(temporarily("call", [(layer, _in_inference_mode(layer.call))]))
        _INSIDE[id(layer)] = count + 1, stack
    try:
        yield
    finally:
        for layer in layers:
            count, stack = _INSIDE.pop(id(layer))
            if count > 1:
                _INSIDE[id(layer)] = count - 1, stack
            else:
                stack.close()


_INSIDE: dict[int, tuple[int, ExitStack]] = {}
"""By the identity of a layer, the number of contexts of `in_inference_mode` that it is in, and what ends them."""


def _in_inference_mode(call: Function) -> Function:
    signature = inspect.signature(call)
    if "training" not in signature.parameters:
        return call

    @functools.wraps(call)  # Keras looks at the signature
    def called(*args: object, **kwargs: object) -> Nested:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["training"] = False
        return call_users(call, *bound.args, **bound.kwargs)

    return called
