"""Scales the step that an optimizer applies to each variable, after the optimizer has applied it."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.optimizers import apply_reduced_gradients
from multihead._ground.replicas import assign
from multihead._ground.tensors import where
from multihead._ground.types import Gradient, Optimizer, Tensor, Variable
from multihead.rates import Factor, values_at


def apply_scaled(
    strategy: tf.distribute.Strategy,
    optimizer: Optimizer,
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    slots: Sequence[Sequence[tf.Variable]],
    factors: Sequence[tuple[Factor, Factor]],
    step: tf.Tensor,
) -> None:
    """Applies the optimizer, and then moves each variable to `v_old + factor * (v_opt - v_old)`.

    A constraint holds for the result, and moving averages of the variables are of the result. Where a function of the step
    returns 0, the variable and its slots do not change.
    """
    steps, decays = (values_at(each, step) for each in zip(*factors))
    tensors = [tensor_variable(variable) for variable in variables]
    scaled = [i for i, factor in enumerate(steps) if not isinstance(factor, float) or factor != 1]
    before = {i: tf.identity(tensors[i].read_value()) for i in scaled}
    # Only a function of the step can be 0 here, since what is 0 by a number is not updated at all.
    kept = {i: [tf.identity(slot.read_value()) for slot in slots[i]] for i in scaled if not isinstance(steps[i], float)}

    def move() -> None:
        for i in scaled:
            new = _moved(before[i], tensors[i].read_value(), steps[i])
            constraint = getattr(variables[i], "constraint", None)
            new = new if constraint is None else where(tf.equal(steps[i], 0), new, constraint(new))
            assign(strategy, tensors[i], new)

    has_own_decay = any(not isinstance(factor, float) or factor != 1 for factor in decays)
    with tf.control_dependencies([*before.values(), *(value for values in kept.values() for value in values)]):
        apply_reduced_gradients(
            strategy, optimizer, gradients, variables, decays=decays if has_own_decay else None, move=move
        )
    for i, values in kept.items():
        for slot, old in zip(slots[i], values):
            assign(strategy, slot, where(tf.equal(steps[i], 0), old, slot.read_value()))


def _moved(old: tf.Tensor, new: tf.Tensor, factor: Tensor) -> tf.Tensor:
    moved = old + tf.cast(factor, old.dtype) * (new - old)
    return moved if isinstance(factor, float) else where(factor == 1, new, where(factor == 0, old, moved))
