"""Where the stacks differ: the optimizers of Keras 2 and Keras 3."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from multihead._ground.calls import no_autograph
from multihead._ground.keras import KERAS_3, temporarily, tensor_variable, variable_name
from multihead._ground.replicas import assign
from multihead._ground.tensors import in_dtype, map_values, where
from multihead._ground.types import Function, Gradient, Optimizer, Tensor, Variable
from multihead._ground.validation import check_copied, in_short

# The variables that an optimizer was built for, by identity, with their slots.
_BUILT_FOR: weakref.WeakKeyDictionary[Optimizer, dict[int, tuple[Variable, list[Variable]]]] = weakref.WeakKeyDictionary()


# Every class of optimizers that Keras has had.
ANY_OPTIMIZER = (keras.optimizers.Optimizer, *(() if KERAS_3 else (keras.optimizers.legacy.Optimizer,)))
COUNTS_IN_PYTHON = () if KERAS_3 else (keras.optimizers.Nadam,)
"""Optimizers that keep a number of steps in Python, which only moves while a graph is traced, and is not saved."""


def optimizer_core(optimizer: Optimizer) -> Optimizer:
    """The optimizer itself, without a loss-scaling wrapper."""
    return getattr(optimizer, "inner_optimizer", optimizer)


# The methods by which Keras computes gradients, which updates do not call; those that sum gradients over several replicas,
# which updates do themselves; and those that apply gradients, of which updates call one.
NOT_CALLED = ("scale_loss",) if KERAS_3 else ("compute_gradients", "minimize")
BY_REPLICAS = ("_all_reduce_sum_gradients",) if KERAS_3 else ("aggregate_gradients",)
APPLYING = ("apply", "apply_gradients")


def get_optimizer(optimizer: Optimizer) -> Optimizer:
    """As `keras.optimizers.get`, which does not know the names of all optimizers that Keras has."""
    if isinstance(optimizer, str):
        named = optimizer_classes().get(optimizer.lower())
        optimizer = optimizer if named is None else named()
    if isinstance(optimizer, dict):  # Keras 2 changes it, and takes one without this entry for a legacy optimizer
        version_entry = {} if KERAS_3 else {"is_legacy_optimizer": False}
        optimizer = {**optimizer, "config": {**optimizer.get("config", {}), **version_entry}}
    return keras.optimizers.get(optimizer)


def copied_optimizer(optimizer: Optimizer) -> Optimizer:
    """A new optimizer with the options of another one, those that its configuration does not have included."""
    rate = getattr(optimizer, "_learning_rate", None)
    try:
        config = optimizer.get_config()
        if has_loss_scaling(optimizer):
            known = inspect.signature(type(optimizer).__init__).parameters
            own = {name: value for name, value in config.items() if name in known and name != "inner_optimizer"}
            return type(optimizer)(copied_optimizer(optimizer_core(optimizer)), **own)
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) or inspect.isroutine(rate):
            config["learning_rate"] = rate  # which has no state, and need not be registered
        duplicate = type(optimizer).from_config(config)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ValueError(
            f"`optimizer` must be passed to `compile` if that of the model cannot be copied. Received: "
            f"{type(optimizer).__name__}, whose `from_config` does not take its `get_config`. Pass a new one. It says: "
            f"{in_short(error)}"
        ) from error
    check_copied("optimizer", optimizer, duplicate, "unless one is passed to `compile`")
    for name in ("", "_names", "_pattern"):  # what `exclude_from_weight_decay` has set
        attribute = f"_exclude_from_weight_decay{name}"
        if hasattr(optimizer, attribute):
            setattr(duplicate, attribute, copy.copy(getattr(optimizer, attribute)))
    return duplicate


def optimizer_classes() -> dict[str, type]:
    """Keras's optimizers that can be created by name, without arguments, by this name."""
    base, classes = keras.optimizers.Optimizer, {}
    for cls in vars(keras.optimizers).values():
        if isinstance(cls, type) and issubclass(cls, base) and cls is not base:
            if not {"inner_optimizer", "optimizer_map"} & set(inspect.signature(cls).parameters):  # these wrap others
                classes[cls.__name__.lower()] = cls
    return dict(sorted(classes.items()))


def build_optimizer(optimizer: Optimizer, variables: Sequence[Variable]) -> list[list[Variable]]:
    """Builds the optimizer on all variables and returns the slots that it has created, per variable.

    These are the variables that it derives from a variable, and those in its lists with one per variable. An optimizer
    that was built before, for all of these variables, keeps its slots; for others, or with slots of another kind, it is an
    error.
    """
    core, tensors = optimizer_core(optimizer), [tensor_variable(variable) for variable in variables]
    known = _BUILT_FOR.get(core, {})
    if known and all(id(tensor) in known for tensor in tensors):
        if KERAS_3 and not optimizer.built:  # another wrapper around it
            optimizer.build(list(variables))
        _save_as_built_for(optimizer, tensors)
        if KERAS_3 and core.use_ema:
            object.__setattr__(core, "_overwrite_model_variables_with_average_value", functools.partial(_overwrite, core))
        return [list(known[id(tensor)][1]) for tensor in tensors]
    if known or len(core.variables) > 2:  # two: a counter and the learning rate
        raise ValueError(
            "`optimizer` must not be in use by another model, or for other variables, whose state it holds. "
            f"Received: {type(core).__name__} with {len(core.variables)} variables. Pass a new optimizer to `compile`."
        )
    slots: dict[int, list[Variable]] = {id(tensor): [] for tensor in tensors}
    derive = core.add_variable_from_reference

    # The first argument is `model_variable` in Keras 2 and `reference_variable` in Keras 3; optimizers pass it either way.
    def intercept(*args: Variable, **kwargs: Variable) -> Variable:
        named = [kwargs.pop(name) for name in ("model_variable", "reference_variable") if name in kwargs]
        arguments = [*named, *args]
        slot = derive(*arguments, **kwargs)
        slots[id(tensor_variable(arguments[0]))].append(slot)
        return slot

    before = {id(variable) for variable in core.variables}
    object.__setattr__(core, "add_variable_from_reference", intercept)
    try:
        optimizer.build(list(variables))
    finally:
        object.__delattr__(core, "add_variable_from_reference")
    slot_lists = [slots[id(tensor)] for tensor in tensors]
    created = {id(variable): variable for variable in core.variables if id(variable) not in before}
    lists = [value for value in vars(core).values() if isinstance(value, (list, tuple)) and len(value) == len(variables)]
    new_lists = [candidates for candidates in lists if before.isdisjoint(map(id, candidates))]
    for i, slot in itertools.chain.from_iterable(map(enumerate, new_lists)):
        if id(slot) in created and all(slot is not other for other in slot_lists[i]):
            slot_lists[i].append(slot)
    assigned = {id(slot) for variable_slots in slot_lists for slot in variable_slots}
    unknown = [variable for key, variable in created.items() if key not in assigned and len(variable.shape) > 0]
    if unknown:
        raise ValueError(
            "`optimizer` must create its slots by `add_variable_from_reference`, or keep them in lists with one per "
            f"variable, so that those of idle heads can stay as they are. Received: {type(core).__name__}, with "
            f"{len(unknown)} others, such as {variable_name(unknown[0])!r}. Create them in one of these ways."
        )
    if KERAS_3 and core.use_ema:  # zeros otherwise, which a variable that is first trained later would be averaged with
        for variable, average in zip(variables, core._model_variables_moving_average):
            average.assign(variable)
    _BUILT_FOR[core] = {id(tensor): (tensor, variable_slots) for tensor, variable_slots in zip(tensors, slot_lists)}
    return slot_lists


# What Keras calls to save and to load the state of an optimizer, and the list of the variables that these then take.
_SAVING = ("save_own_variables", "load_own_variables", "_saved_variables")


def _save_as_built_for(optimizer: Optimizer, variables: Sequence[tf.Variable]) -> None:
    """Makes an optimizer save its state as one that is built for some of its variables alone, in their order.

    Keras saves and loads the state by position, and the optimizer of a trainer that is loaded is built for the variables of
    its heads, in their order. This one may be older: of further heads, or of the same ones in another order.
    """
    core = optimizer_core(optimizer)
    known, savers = _BUILT_FOR[core], [core] if core is optimizer else [core, optimizer]
    for saver, name in itertools.product(savers, _SAVING):
        vars(saver).pop(name, None)
    if list(known) == [id(variable) for variable in variables]:
        return
    strategy = tf.distribute.get_strategy()

    @functools.cache
    def core_variables() -> list[Variable]:
        with strategy.scope():
            alone = copied_optimizer(core)
            slots = build_optimizer(alone, variables)
        places = {id(slot): (i, j) for i, variable_slots in enumerate(slots) for j, slot in enumerate(variable_slots)}
        all_slots = {id(slot) for _, variable_slots in known.values() for slot in variable_slots}
        others = iter([variable for variable in core.variables if id(variable) not in all_slots])  # counters and rates
        ordered = []
        for variable in alone.variables:
            i, j = places.get(id(variable), (None, 0))
            ordered.append(next(others) if i is None else known[id(variables[i])][1][j])
        return ordered

    def saved(saver: Optimizer) -> list[Variable]:
        inner = {id(variable) for variable in core.variables}
        return [*(variable for variable in saver.variables if id(variable) not in inner), *core_variables()]

    def save(saver: Optimizer, store: dict[str, Tensor]) -> None:
        for place, variable in enumerate(saved(saver)):
            store[str(place)] = tf.convert_to_tensor(tensor_variable(variable)).numpy()

    def load(saver: Optimizer, store: dict[str, Tensor]) -> None:
        ordered = saved(saver)
        if len(store.keys()) != len(ordered):
            type(saver).load_own_variables(saver, store)  # which says so
            return
        for place, variable in enumerate(ordered):
            variable.assign(store[str(place)])

    methods: list[Function] = [save, load, saved]
    for saver, (name, method) in itertools.product(savers, zip(_SAVING, methods)):
        object.__setattr__(saver, name, functools.partial(method, saver))


def _overwrite(optimizer: Optimizer, variables: Sequence[Variable]) -> None:
    """Gives variables the values of their moving averages, which Keras 3 takes by position."""
    for variable in variables:
        if id(tensor_variable(variable)) in _BUILT_FOR[optimizer]:
            variable.assign(optimizer._model_variables_moving_average[optimizer._get_variable_index(variable)])


def variables_held_by(optimizer: Optimizer) -> list[Variable]:
    """An optimizer's own variables, and those that it was built for, whether they are still in use or not."""
    core = optimizer_core(optimizer)
    return [*optimizer.variables, *core.variables, *(variable for variable, _ in _BUILT_FOR.get(core, {}).values())]


def has_loss_scaling(optimizer: Optimizer) -> bool:
    """Whether this is a wrapper that scales losses by a factor that it may change."""
    return optimizer_core(optimizer) is not optimizer


def loss_scale(optimizer: Optimizer) -> tf.Tensor | None:
    """The factor of every loss that the optimizer asks for, float32; None without loss scaling."""
    if not has_loss_scaling(optimizer):
        constant = getattr(optimizer, "loss_scale_factor", None)  # of Keras 3
        return None if constant is None else tf.constant(constant, tf.float32)
    if KERAS_3:
        return tf.cast(tensor_variable(optimizer.dynamic_scale), tf.float32)
    return tf.cast(optimizer.loss_scale, tf.float32)


def optimizer_state(optimizer: Optimizer) -> list[Variable]:
    """All variables of a built optimizer, as they are saved: slots, counters, the learning rate, those of loss scaling."""
    core = optimizer_core(optimizer)
    state = _saved_variables(core)
    if hasattr(core.learning_rate, "assign"):
        state.append(core.learning_rate)
    if core is not optimizer:
        scale_attributes = vars(optimizer._loss_scale) if not KERAS_3 else {}
        state += [value for _, value in sorted(scale_attributes.items()) if isinstance(value, tf.Variable)]
        state += _saved_variables(optimizer)
    return state


def _saved_variables(optimizer: Optimizer) -> list[Variable]:
    return list(optimizer._saved_variables() if "_saved_variables" in vars(optimizer) else optimizer.variables)


def record_finite(optimizer: Optimizer, finite: bool) -> None:
    """Tells a loss-scaling optimizer, in the cross-replica context, whether an update was finite: it adapts its scale."""
    if not has_loss_scaling(optimizer):
        return
    if not KERAS_3:
        if hasattr(optimizer._loss_scale, "update"):
            optimizer._loss_scale.update([tf.constant(0.0 if finite else float("nan"))])
    elif finite:
        optimizer._stateful_handle_finite_grads([], [])
    else:
        optimizer._stateful_handle_non_finite_grads()


def apply_reduced_gradients(
    strategy: tf.distribute.Strategy,
    optimizer: Optimizer,
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    *,
    decays: Sequence[Tensor] | None = None,
    move: Callable[[], None] | None = None,
) -> None:
    """Lets the optimizer apply gradients that are already reduced over replicas, once, by the method that Keras calls.

    Must run in the cross-replica context. None of the gradients is None, and sparse ones have no duplicate rows. `decays`
    are factors of the weight decay, one per variable. `move` changes the variables before moving averages are updated.
    """
    core = optimizer_core(optimizer)
    applied = core
    if strategy.num_replicas_in_sync > 1:  # of a class that does not add up gradients over replicas once more
        no_sums = dict.fromkeys(BY_REPLICAS, lambda self, pairs: list(pairs))
        applied = object.__new__(type(type(core).__name__, (type(core),), no_sums))
        object.__setattr__(applied, "__dict__", vars(core))
    factor = getattr(core, "loss_scale_factor", None)  # by which Keras 3 divides

    @no_autograph
    def apply(replica_gradients: Sequence[Gradient]) -> None:
        if factor is not None:
            replica_gradients = [map_values(lambda values: values * factor, gradient) for gradient in replica_gradients]
        if KERAS_3 and has_loss_scaling(optimizer):
            applied.apply(list(replica_gradients), list(variables))
        else:
            applied.apply_gradients(list(zip(replica_gradients, variables)))

    weight_decay, use_ema = core.weight_decay, bool(core.use_ema)
    if decays is not None and weight_decay is not None:
        _decay(strategy, core, variables, decays)
        weight_decay = None
    with temporarily("weight_decay", [(core, weight_decay)]), temporarily("use_ema", [(core, use_ema and move is None)]):
        strategy.extended.call_for_each_replica(apply, args=(gradients,))
    if move is not None:
        move()
        if use_ema:
            _update_averages(strategy, core, variables)


def _decay(
    strategy: tf.distribute.Strategy, optimizer: Optimizer, variables: Sequence[Variable], factors: Sequence[Tensor]
) -> None:
    """Decays variables as the optimizer itself does before an update, times a factor."""
    if not KERAS_3:
        optimizer._compute_current_learning_rate()
    rate = tf.convert_to_tensor(tensor_variable(optimizer.learning_rate))
    for variable, factor in zip(map(tensor_variable, variables), factors):
        if optimizer._use_weight_decay(variable) and not (isinstance(factor, float) and factor == 0):
            value = tf.identity(variable.read_value())
            part = in_dtype(optimizer.weight_decay * factor, value.dtype)
            assign(strategy, variable, value - value * part * tf.cast(rate, value.dtype))


def _update_averages(strategy: tf.distribute.Strategy, optimizer: Optimizer, variables: Sequence[Variable]) -> None:
    """Updates the optimizer's moving averages of some variables, as it does itself at the end of an update."""
    number = tf.identity(tensor_variable(optimizer.iterations).read_value())
    frequency = optimizer.ema_overwrite_frequency
    for variable in variables:
        index = optimizer._get_variable_index(variable) if KERAS_3 else optimizer._index_dict[optimizer._var_key(variable)]
        average, variable = tensor_variable(optimizer._model_variables_moving_average[index]), tensor_variable(variable)
        part, value = in_dtype(optimizer.ema_momentum, variable.dtype), tf.identity(variable.read_value())
        # Keras 3's first average is the value after the first update; Keras 2 averages it with the initial value.
        part = where(number > 1, part, 0.0) if KERAS_3 else part
        update = part * tf.identity(average.read_value()) + (1 - part) * value
        assign(strategy, average, update)
        if frequency:
            value = where(number % frequency == 0, update, value)
            assign(strategy, variable, value)
