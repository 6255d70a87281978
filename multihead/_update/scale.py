"""Scales the step that an optimizer applies to each variable, after the optimizer has applied it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.optimizers import apply_reduced_gradients
from multihead._ground.replicas import assign
from multihead._ground.tensors import where
from multihead._update.rates import values_at
from multihead.rates import Factor


class Scaling(NamedTuple):
    """How far the variables of an update move.

    Attributes:
        variables: The variables that the optimizer updates.
        slots: The optimizer slots of each.
        steps: The factor of the applied step of each.
        decays: The factor of the weight decay of each.
    """

    variables: Sequence[Any]
    slots: Sequence[Sequence[tf.Variable]]
    steps: Sequence[Factor]
    decays: Sequence[Factor]


def apply_scaled(
    strategy: tf.distribute.Strategy, optimizer: Any, scaling: Scaling, gradients: Any, step: tf.Tensor
) -> None:
    """Applies the optimizer, and then moves each variable to `v_old + factor * (v_opt - v_old)`.

    A constraint holds for the result, and moving averages of the variables are of the result. Where a function of the step
    returns 0, the variable and its slots do not change.

    Args:
        strategy: The strategy, in its cross-replica context.
        optimizer: The built optimizer.
        scaling: The variables and their factors.
        gradients: Their gradients, as replicas have them.
        step: The number of updates applied so far.
    """
    factors, decays = values_at(scaling.steps, step), values_at(scaling.decays, step)
    tensors = [tensor_variable(variable) for variable in scaling.variables]
    scaled = [i for i, factor in enumerate(factors) if not isinstance(factor, float) or factor != 1]
    before = {i: tf.identity(tensors[i].read_value()) for i in scaled}
    # Only a function of the step can be 0 here, since what is 0 by a number is not updated at all.
    slots = {
        i: [tf.identity(slot.read_value()) for slot in scaling.slots[i]] for i in scaled if not isinstance(factors[i], float)
    }

    def move() -> None:
        for i in scaled:
            new = _moved(before[i], tensors[i].read_value(), factors[i])
            constraint = getattr(scaling.variables[i], "constraint", None)
            new = new if constraint is None else where(tf.equal(factors[i], 0), new, constraint(new))
            assign(strategy, tensors[i], new)

    has_own_decay = any(not isinstance(factor, float) or factor != 1 for factor in decays)
    reads = [*before.values(), *(value for values in slots.values() for value in values)]
    with tf.control_dependencies(reads):
        apply_reduced_gradients(
            strategy, optimizer, gradients, scaling.variables, decays=decays if has_own_decay else None, move=move
        )
    for i, values in slots.items():
        for slot, old in zip(scaling.slots[i], values):
            assign(strategy, slot, where(tf.equal(factors[i], 0), old, slot.read_value()))


def _moved(old: tf.Tensor, new: tf.Tensor, factor: Any) -> tf.Tensor:
    moved = old + tf.cast(factor, old.dtype) * (new - old)
    return moved if isinstance(factor, float) else where(factor == 1, new, where(factor == 0, old, moved))
