"""The factors of applied steps and of weight decay, variable by variable: in each period of training, and when applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.optimizers import apply_reduced_gradients
from multihead._ground.replicas import assign
from multihead._ground.where import where
from multihead._update.network import Network
from multihead.rates import Factor, factor_at, factors_at, largest, starts_of


class Rates(NamedTuple):
    """The factors in one period of training, in which the same variables are frozen.

    Attributes:
        start: The step at which the period begins.
        steps: The factor of the applied step of each variable of the network.
        decays: The factor of the optimizer's weight decay of each variable.
        positions: The positions of the encoder's variables, and of each head's own, among these.
    """

    start: int
    steps: tuple[Factor, ...]
    decays: tuple[Factor, ...]
    positions: tuple[tuple[int, ...], ...]

    @property
    def frozen(self) -> frozenset[int]:
        """The positions of frozen variables: those whose factor is the number 0."""
        return frozenset(i for i, factor in enumerate(self.steps) if factor == 0)

    @property
    def is_plain(self) -> bool:
        """Whether every factor is the number 1."""
        return all(factor == 1 for factor in (*self.steps, *self.decays))

    @property
    def may_change(self) -> bool:
        """Whether a factor is a function of the step."""
        return any(callable(factor) for factor in self.steps)

    def at(self, step: tf.Tensor) -> tf.Tensor:
        """`[1 + num_heads]`: the largest factor of the encoder's variables, and of each head's own; 0 without any."""
        values = [largest([self.steps[i] for i in positions]) for positions in self.positions]
        return tf.stack([tf.cast(factor_at(value, step), tf.float32) for value in values])


def periods_of(network: Network, encoder_rate: Any, encoder_decay: Any) -> tuple[Rates, ...]:
    """The factors of all variables, from those of the encoder and of the heads, in the order of the periods.

    The encoder's factors are those of all its variables, whichever head's module also contains them. A variable that only
    heads share has the largest of their factors. A weighting's variables have the factor 1.

    Raises:
        ValueError: In one of the periods, everything is frozen.
    """
    heads = network.heads
    of_heads = [rate for head in heads for rate in (head.learning_rate_multiplier, head.weight_decay_multiplier)]
    num_encoder = len(network.variables.encoder)
    own = (tuple(num_encoder + i for i in positions) for positions in network.own)
    positions = (tuple(range(num_encoder)), *own)
    periods = []
    for start in starts_of([encoder_rate, encoder_decay, *of_heads]):
        steps = _of_variables(network, encoder_rate, [head.learning_rate_multiplier for head in heads], start)
        decays = _of_variables(network, encoder_decay, [head.weight_decay_multiplier for head in heads], start)
        periods.append(Rates(start=start, steps=steps, decays=decays, positions=positions))
        if steps and all(factor == 0 for factor in steps):
            raise ValueError(
                "`learning_rate_multiplier` and `encoder_learning_rate_multiplier` must leave something to train at every "
                "step. "
                "Received: "
                f"everything is frozen from step {start} on. Give the encoder or a head a factor above 0."
            )
    return tuple(periods)


def _of_variables(network: Network, encoder: Any, heads: Sequence[Any], step: int) -> tuple[Factor, ...]:
    variables = network.variables
    of_encoder = factors_at(encoder, step, network.encoder, variables.encoder)
    of_heads: list[list[Factor]] = [[] for _ in variables.heads]
    for head, rate, positions in zip(network.heads, heads, network.own):
        # Its loss may read variables of other modules, too.
        own = {id(tensor_variable(each)) for each in getattr(head.module, "trainable_variables", [])}
        positions = tuple(i for i in positions if id(tensor_variable(variables.heads[i])) in own)
        found = factors_at(rate, step, head.module, [variables.heads[i] for i in positions])
        for i, factor in zip(positions, found):
            of_heads[i].append(factor)
    return (*of_encoder, *(largest(factors) for factors in of_heads), *(1.0 for _ in variables.weighting))


def _values_at(factors: Sequence[Factor], step: tf.Tensor) -> list[Any]:
    """Factors at a step: numbers, and scalars for functions of the step, each of which is called once."""
    known: dict[Callable[[tf.Tensor], Any], Any] = {}
    for factor in factors:
        if callable(factor) and factor not in known:
            known[factor] = factor_at(factor, step)
    return [known[factor] if callable(factor) else factor for factor in factors]


def apply_scaled(
    strategy: tf.distribute.Strategy,
    optimizer: Any,
    gradients: Any,
    variables: Sequence[Any],
    slots: Sequence[Sequence[tf.Variable]],
    factors: Sequence[tuple[Factor, Factor]],
    step: tf.Tensor,
) -> None:
    """Applies the optimizer, and then moves each variable to `v_old + factor * (v_opt - v_old)`.

    A constraint holds for the result, and moving averages of the variables are of the result. Where a function of the step
    returns 0, the variable and its slots do not change.
    """
    steps, decays = (_values_at(each, step) for each in zip(*factors))
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


def _moved(old: tf.Tensor, new: tf.Tensor, factor: Any) -> tf.Tensor:
    moved = old + tf.cast(factor, old.dtype) * (new - old)
    return moved if isinstance(factor, float) else where(factor == 1, new, where(factor == 0, old, moved))
