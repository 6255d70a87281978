"""The differences between the optimizers of Keras 2 and Keras 3."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from multihead._ground import kernels
from multihead._ground.keras import KERAS_3, Gradient, temporarily, tensor_variable
from multihead._ground.replicas import assign
from multihead._ground.where import where

_BUILT_FOR: weakref.WeakKeyDictionary[Any, frozenset[int]] = weakref.WeakKeyDictionary()
"""The variables, by identity, that an optimizer was built for."""


def optimizer_core(optimizer: Any) -> Any:
    """The optimizer itself, without a loss-scaling wrapper."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def optimizer_takes_over(optimizer: Any) -> dict[str, Any]:
    """The options with which the optimizer itself would clip or accumulate, with their values; empty if there are none."""
    core = optimizer_core(optimizer)
    names = ("clipnorm", "clipvalue", "global_clipnorm", "gradient_accumulation_steps")
    return {name: getattr(core, name) for name in names if getattr(core, name, None)}


def get_optimizer(optimizer: Any) -> Any:
    """As `keras.optimizers.get`, which does not know the names of all optimizers that Keras has.

    Raises:
        ValueError: The name is unknown.
    """
    if isinstance(optimizer, str):
        named = {each.__name__.lower(): each for each in _optimizer_classes()}
        if optimizer.lower() in named:
            optimizer = named[optimizer.lower()]()
    return keras.optimizers.get(optimizer)


def optimizer_names() -> list[str]:
    """The names of Keras's optimizers."""
    return sorted({each.__name__.lower() for each in _optimizer_classes()})


def optimizer_arguments() -> list[str]:
    """The arguments of Keras's optimizers."""
    found = [name for each in _optimizer_classes() for name in inspect.signature(each).parameters]
    return [name for name in dict.fromkeys(found) if name not in ("self", "args", "kwargs", "name")]


def _optimizer_classes() -> list[type]:
    """Keras's optimizers that can be created by name, without arguments."""
    base = keras.optimizers.Optimizer
    classes = [each for each in vars(keras.optimizers).values() if isinstance(each, type) and issubclass(each, base)]
    wrappers = ("inner_optimizer", "optimizer_map")
    parameters = {each: inspect.signature(each).parameters for each in classes if each is not base}
    return [each for each, names in parameters.items() if not any(name in names for name in wrappers)]


def is_legacy_optimizer(optimizer: Any) -> bool:
    """Whether this is one of Keras 2's legacy optimizers, which store their slots differently."""
    return not KERAS_3 and not isinstance(optimizer, keras.optimizers.Optimizer)


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> list[list[Any]]:
    """Builds the optimizer on all variables and returns the slots that it creates for each of them.

    Works for any optimizer, by recording which variable each slot is derived from.

    Args:
        optimizer: A Keras optimizer that is not built yet.
        variables: Trainable variables, in the order in which they will be updated.

    Returns:
        One list of slot variables per variable.

    Raises:
        ValueError: The optimizer was built before, for other variables.
    """
    core = optimizer_core(optimizer)
    ids = frozenset(id(tensor_variable(variable)) for variable in variables)
    if len(core.variables) > 2 and not ids <= _BUILT_FOR.get(core, frozenset()):  # two: a counter and the learning rate
        raise ValueError(
            "`optimizer` must not be in use by another model, or for other variables, whose state it holds. "
            f"Received: {type(core).__name__} with {len(core.variables)} variables. Pass a new optimizer to `compile`."
        )
    _BUILT_FOR.setdefault(core, ids)
    slots: dict[int, list[Any]] = {id(tensor_variable(variable)): [] for variable in variables}
    derive = core.add_variable_from_reference

    def derive_and_remember(reference: Any, *args: Any, **kwargs: Any) -> Any:
        slot = derive(reference, *args, **kwargs)
        slots[id(tensor_variable(reference))].append(slot)
        return slot

    # The first argument is `model_variable` in Keras 2 and `reference_variable` in Keras 3; optimizers pass it either way.
    def intercept(*args: Any, **kwargs: Any) -> Any:
        for keyword in ("model_variable", "reference_variable"):
            if keyword in kwargs:
                return derive_and_remember(kwargs.pop(keyword), *args, **kwargs)
        return derive_and_remember(*args, **kwargs)

    object.__setattr__(core, "add_variable_from_reference", intercept)
    try:
        optimizer.build(list(variables))
    finally:
        object.__delattr__(core, "add_variable_from_reference")
    if KERAS_3 and core.use_ema:  # zeros otherwise, which a variable that is first trained later would be averaged with
        for variable, average in zip(variables, core._model_variables_moving_average):
            average.assign(variable)
    return [slots[id(tensor_variable(variable))] for variable in variables]


def has_loss_scaling(optimizer: Any) -> bool:
    """Whether this is a wrapper that scales losses."""
    return optimizer_core(optimizer) is not optimizer


def loss_scale(optimizer: Any) -> tf.Tensor | None:
    """The factor of a loss-scaling optimizer for every loss, float32; None without loss scaling."""
    if not has_loss_scaling(optimizer):
        return None
    if KERAS_3:
        return tf.cast(tensor_variable(optimizer.dynamic_scale), tf.float32)
    return tf.cast(optimizer.loss_scale, tf.float32)


def optimizer_state(optimizer: Any) -> list[Any]:
    """All variables of a built optimizer: slots, counters, the learning rate, and those of loss scaling."""
    core = optimizer_core(optimizer)
    found = [*core.variables]
    if hasattr(core.learning_rate, "assign"):
        found.append(core.learning_rate)
    if core is not optimizer:
        of_scale = vars(optimizer._loss_scale) if not KERAS_3 else {}
        found += [value for _, value in sorted(of_scale.items()) if isinstance(value, tf.Variable)]
        found += list(optimizer.variables)
    return found


def record_finite(optimizer: Any, finite: bool) -> None:
    """Tells a loss-scaling optimizer whether the gradients of an update were finite, so that it adapts its scale.

    Must run in a cross-replica context. Does nothing without loss scaling.
    """
    if not has_loss_scaling(optimizer):
        return
    if not KERAS_3:
        if hasattr(optimizer._loss_scale, "update"):
            optimizer._loss_scale.update([tf.constant(0.0 if finite else float("nan"))])
    elif finite:
        optimizer._stateful_handle_finite_grads([], [])
    else:
        optimizer._stateful_handle_non_finite_grads()


def apply_reduced_gradients(optimizer: Any, gradients: Sequence[Gradient], variables: Sequence[Any]) -> None:
    """Applies gradients that are already reduced over replicas, once.

    Must run in a replica context.

    Args:
        optimizer: The built optimizer; its loss scaling is not applied.
        gradients: One gradient per variable, none of them None, without duplicate rows in sparse ones.
        variables: The variables.
    """
    optimizer = optimizer_core(optimizer)
    with _quick_updates(optimizer):
        if KERAS_3:
            optimizer.apply(list(gradients), list(variables))
        else:
            optimizer.apply_gradients(list(zip(gradients, variables)), skip_gradients_aggregation=True)


@contextmanager
def _quick_updates(optimizer: Any) -> Iterator[None]:
    """A context in which the optimizer reads its counter and learning rate once, and updates large variables at once.

    Keras reads both anew for each variable, and TensorFlow computes what depends on them once only if it knows that they are
    the same: for Adam, ten operations for each variable. Nothing changes with several replicas, of which each has a copy of
    its own, in eager mode, and for an update that is not Keras's: it may change these variables, or be a `tf.function`.
    """
    module = str(getattr(type(optimizer).update_step, "__module__", ""))
    is_known = "update_step" not in vars(optimizer) and module.startswith("keras.")
    if tf.distribute.has_strategy() or tf.executing_eagerly() or not is_known:
        yield
        return
    update_step = optimizer.update_step
    read: dict[tf.Graph, list[tuple[tf.Variable, tf.Tensor]]] = {}  # Keras 2 has a graph for each variable with XLA

    def update_with_values(gradient: Any, variable: Any, *args: Any, **kwargs: Any) -> None:
        graph = tf.compat.v1.get_default_graph()
        rates = [*args, *kwargs.values()] or [optimizer.learning_rate]
        if graph not in read:
            scalars = [tensor_variable(each) for each in (optimizer.iterations, *rates)]
            read[graph] = [(each, each.read_value()) for each in scalars if isinstance(each, tf.Variable)]
        with temporarily("_cached_value", read[graph]):
            if not _updated_at_once(optimizer, gradient, tensor_variable(variable), rates[0]):
                update_step(gradient, variable, *args, **kwargs)

    object.__setattr__(optimizer, "update_step", update_with_values)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "update_step")


def _updated_at_once(optimizer: Any, gradient: Gradient, variable: tf.Variable, rate: Any) -> bool:
    """Updates a large variable by one operation instead of Keras's 3 to 14, if TensorFlow has one; whether it did."""
    if type(optimizer) not in _AT_ONCE or not kernels.is_large(variable):
        return False
    update, names = _AT_ONCE[type(optimizer)]
    lists = [getattr(optimizer, name) for name in names]  # SGD's is empty on Keras 3 without momentum
    averages = [tensor_variable(each[_index_of(optimizer, variable)]) for each in lists if each]
    return update(optimizer, gradient, variable, averages, tf.cast(tensor_variable(rate), variable.dtype))


_AT_ONCE = {
    keras.optimizers.SGD: (kernels.sgd, ("momentums",)),
    keras.optimizers.Adam: (kernels.adam, ("_momentums", "_velocities")),
    keras.optimizers.AdamW: (kernels.adam, ("_momentums", "_velocities")),
}
"""By type the update and the lists of averages: a class derived from one of them may change both."""


def _index_of(optimizer: Any, variable: tf.Variable) -> int:
    """The position of a variable among those that the optimizer was built for."""
    return optimizer._get_variable_index(variable) if KERAS_3 else optimizer._index_dict[optimizer._var_key(variable)]


@contextmanager
def without_reduction(optimizer: Any) -> Iterator[None]:
    """A context in which the optimizer does not add up gradients over replicas, which are reduced already.

    Must be entered in a cross-replica context, for all replicas at once. Keras 2 has an argument for this; Keras 3 would add
    the gradients again, and so exchange all of them twice.
    """
    optimizer = optimizer_core(optimizer)
    if not KERAS_3:
        yield
        return
    object.__setattr__(optimizer, "_all_reduce_sum_gradients", list)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "_all_reduce_sum_gradients")


@contextmanager
def weight_decay_times(optimizer: Any, variables: Sequence[Any], factors: Sequence[Any]) -> Iterator[None]:
    """A context in which the optimizer decays each variable by its weight decay times a factor.

    Must be entered in a cross-replica context, for all replicas at once.

    Args:
        optimizer: The built optimizer.
        variables: The variables that it is going to update.
        factors: One factor per variable, numbers or scalars.
    """
    optimizer = optimizer_core(optimizer)
    rate = optimizer.weight_decay
    if rate is None:
        yield
        return
    decay = optimizer._apply_weight_decay

    def decay_each(_: Any) -> None:
        for variable, factor in zip(variables, factors):
            if not isinstance(factor, float) or factor > 0:
                object.__setattr__(optimizer, "weight_decay", rate * factor)
                decay([variable])
        object.__setattr__(optimizer, "weight_decay", rate)

    object.__setattr__(optimizer, "_apply_weight_decay", decay_each)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "_apply_weight_decay")
        object.__setattr__(optimizer, "weight_decay", rate)


@contextmanager
def without_averages(optimizer: Any) -> Iterator[bool]:
    """A context in which the optimizer does not update its moving averages of variables; whether it has any."""
    optimizer = optimizer_core(optimizer)
    has_averages = bool(optimizer.use_ema)
    with temporarily("use_ema", [(optimizer, False)]):
        yield has_averages


def update_averages(strategy: tf.distribute.Strategy, optimizer: Any, variables: Sequence[Any]) -> None:
    """Updates the optimizer's moving averages of some variables, as it does itself at the end of an update.

    Must run in a cross-replica context, after the optimizer has counted the update.

    Args:
        strategy: The strategy.
        optimizer: The built optimizer, with `use_ema`.
        variables: The variables.
    """
    optimizer = optimizer_core(optimizer)
    number = tf.identity(tensor_variable(optimizer.iterations).read_value())
    # Keras 3's first average is the value after the first update; Keras 2 averages it with the initial value.
    momentum = where(number > 1, optimizer.ema_momentum, 0.0) if KERAS_3 else tf.constant(optimizer.ema_momentum)
    frequency = optimizer.ema_overwrite_frequency
    for variable in variables:
        index = _index_of(optimizer, variable)
        average, variable = tensor_variable(optimizer._model_variables_moving_average[index]), tensor_variable(variable)
        part, value = tf.cast(momentum, variable.dtype), tf.identity(variable.read_value())
        update = part * tf.identity(average.read_value()) + (1 - part) * value
        assign(strategy, average, update)
        if frequency:
            value = where(number % frequency == 0, update, value)
            assign(strategy, variable, value)
