"""What users change in a trainer: its heads, their weights, which of them are idle, and the options of `compile`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.keras import HEAD, SCALING, add_state, tensor_variable
from multihead._ground.layers import replace_layers, unlock
from multihead._ground.optimizers import copied_optimizer
from multihead._ground.replicas import check_scope
from multihead._ground.types import Config, Optimizer, Tensor, Trainer
from multihead._ground.validation import check_choice, check_head_names
from multihead._trainer.options import CompileOptions, check_compile
from multihead._trainer.state import Setup, TrainerState
from multihead._trainer.step_functions import TrainFunction
from multihead._update.scaling import scale_targets, warn_of_model, warn_of_trained_modules
from multihead._update.spec import Idle
from multihead.balancing._kinds import Every
from multihead.heads._metric_names import check_distinct
from multihead.heads._named import NamedHead
from multihead.heads._value import check_weight, is_zero


class HeadWeights(keras.layers.Layer):
    """One float64 variable per head, which holds the user's number as it is, saved and loaded by the head's name."""

    def __init__(self, values: Mapping[str, float]) -> None:
        super().__init__(name="head_weights", dtype="float64", trainable=False)
        initial = {name: keras.initializers.Constant(np.asarray(value, "float64")) for name, value in values.items()}
        self.by_head = {name: add_state(self, f"of_{name}", (), value, "float64") for name, value in initial.items()}
        self.built = True

    def save_own_variables(self, store: dict[str, Tensor]) -> None:
        for name, variable in self.by_head.items():
            store[name] = tf.convert_to_tensor(variable).numpy()

    def load_own_variables(self, store: dict[str, Tensor]) -> None:
        for name, variable in self.by_head.items():
            if name in store:
                variable.assign(store[name][()])


def set_heads(trainer: Trainer, state: TrainerState, heads: tuple[NamedHead, ...]) -> None:
    """Replaces the heads; Keras then saves their modules, scalings and weights, and no longer those of earlier ones."""
    check_distinct([(head.name, head.metric_specs) for head in heads])
    before, after = _saved_parts(state.setup.heads), _saved_parts(heads)
    changed = [name for name in {**before, **after} if after.get(name) is not before.get(name)]
    replace_layers(trainer, **{name: after.get(name) for name in changed})
    with_number = [head for head in heads if head.is_trained and not head.has_weight_function]
    numbers = {head.name: head.weight for head in with_number if not callable(head.weight)}
    with trainer.distribute_strategy.scope():
        replace_layers(trainer, head_weights=HeadWeights(numbers))
    for head in with_number:
        head.weight_variable = trainer.head_weights.by_head[head.name]
    state.shapes = state.shapes.restricted_to([head.name for head in heads])
    _forget(trainer, state)
    state.setup = Setup(heads)
    state.added = {head.name: state.added.get(head.name, trainer.num_updates) for head in heads}
    trainer.predict_function = None  # the compiled function has the heads of before


def _saved_parts(heads: tuple[NamedHead, ...]) -> Config:
    """The modules and scalings of heads by the attributes under which Keras saves them."""
    modules = {HEAD + head.name: head.module for head in heads if isinstance(head.module, (keras.layers.Layer, tf.Module))}
    return {**modules, **{SCALING + head.name: head.scaling for head in heads if head.scaling is not None}}


def _forget(trainer: Trainer, state: TrainerState) -> None:
    """Drops everything that depends on the heads and on `compile`, except the heads' variables."""
    unlock(trainer)
    trainer.updates_before.assign(trainer.update_count)
    state.setup, state.built, state.idle = Setup(state.setup.heads), None, ()


def set_weight(trainer: Trainer, state: TrainerState, name: str, value: float) -> None:
    """Sets the weight of a head's loss, in a variable that steps read."""
    check_choice("name", name, state.setup.names)
    if state.setup.head(name).has_weight_function:
        raise ValueError(
            f"`name` must be a head whose weight is a number. Received: name={name!r}, whose weight is a function of "
            "the step. Add the head with `weight=1.0`, and set its weight from then on."
        )
    if callable(value):
        raise ValueError(f"`value` must be a number. Received: value={value!r}. Pass a function to `add_head(weight=)`.")
    checked = check_weight(value)
    if is_zero(checked):
        replan(trainer, idle=Idle.EXPECTED)
    elif state.phase is not None and name in (trainer.make_train_function().plan.absent or ()):
        raise ValueError(
            f"`value` must be 0 for a head without targets in the data of the running `fit`, which cannot train it. "
            f"Received: name={name!r}, value={value!r}. Add its targets to the data, missing labels as NaN or "
            "`ignore_label` where there are none yet."
        )
    trainer.head_weights.by_head[name].assign(checked)


def set_idle(trainer: Trainer, state: TrainerState, heads: Sequence[str]) -> None:
    """Makes some of the heads idle, and no others."""
    check_head_names("heads", heads, state.setup.names)
    replan(trainer, idle=Idle.EXPECTED)
    state.set_idle(heads)
    state.idle_until_fit = state.idle if state.phase is None else ()


def replan(trainer: Trainer, **changes: Any) -> None:
    """Changes the plan of the next steps of `fit`."""
    if isinstance(trainer.train_function, TrainFunction):
        trainer.train_function.plan = replace(trainer.train_function.plan, **changes)


def begin_compile(
    trainer: Trainer,
    state: TrainerState,
    optimizer: Optimizer | Config | str | None,
    requested: CompileOptions,
    target_scaling: Config | None,
) -> tuple[Optimizer, CompileOptions]:
    """Checks the arguments of `compile`; only then, the heads get their scalings, and what was built before is dropped."""
    check_scope(trainer.distribute_strategy, [trainer.encoder, *(head.module for head in state.setup.heads)])
    heads = scale_targets(state.setup.heads, target_scaling)
    if optimizer is None:
        optimizer = "rmsprop" if state.origin.optimizer is None else copied_optimizer(state.origin.optimizer)
    if requested.run_eagerly is None and state.origin.runs_eagerly:
        requested = replace(requested, run_eagerly=requested.jit_compile is not True)
    trained = [head for head in heads if head.is_trained]
    optimizer, options = check_compile(optimizer, requested, trained, trainer.distribute_strategy)
    if heads != state.setup.heads:
        changed = [head for head, earlier in zip(heads, state.setup.heads) if head != earlier]
        warn_of_trained_modules([head for head in changed if state.added[head.name] < trainer.num_updates])
        set_heads(trainer, state, heads)
        if state.origin.name:
            warn_of_model(state.origin.name, heads)
    _forget(trainer, state)
    return optimizer, options


def end_compile(trainer: Trainer, state: TrainerState, options: CompileOptions) -> None:
    """Takes over the options, once Keras has compiled with the optimizer."""
    # The optimizer may have made updates before.
    trainer.updates_before.assign_sub(tf.cast(tensor_variable(trainer.optimizer.iterations), tf.int64))
    balancer, every = options.balancer, options.balance_every
    balancer = balancer if balancer is None or every == 1 else Every(balancer, every)
    replace_layers(trainer, weighting=options.weighting, balancer=balancer, head_schedule=options.head_schedule)
    state.setup = Setup(state.setup.heads, options, trainer.optimizer)
