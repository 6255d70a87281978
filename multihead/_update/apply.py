"""Clips and applies an update once, after all gradients are accumulated, reduced and combined; then tells the methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import tensorflow as tf

from multihead._ground.calls import no_autograph
from multihead._ground.keras import tensor_variable
from multihead._ground.optimizers import apply_reduced_gradients, has_loss_scaling, loss_scale, record_finite
from multihead._ground.replicas import all_reduce_sum, assign, local, restore_unless_finite
from multihead._ground.tensors import all_hold, deduplicate, in_dtype, in_xla, is_finite, map_values, where
from multihead._ground.types import Config, Gradient, Nested, Optimizer
from multihead._method import Observation
from multihead._update.evaluate import loss_sums_after
from multihead._update.spec import UpdateSpec
from multihead._update.update import Change, Update
from multihead.rates import values_at

AnyChange = TypeVar("AnyChange", bound=Change)


def clip(spec: UpdateSpec, update: AnyChange) -> AnyChange:
    """Clips the gradients of the encoder and the heads; those of a weighting's variables are not clipped."""
    if spec.methods.clip is None:
        return update
    gradients = update.gradients
    clipped = spec.network.variables.like([*spec.methods.clip(gradients.of_losses), *gradients.weighting])
    return replace(update, clipped=clipped)


def apply_update(spec: UpdateSpec, optimizer: Optimizer, update: Change, batch: tf.Tensor | None = None) -> tf.Tensor:
    """Applies a clipped update, or skips it if a loss or gradient is not finite, or there is none; whether it was applied.

    The groups of variables that do not take part are restored with their slots, because momentum, Adam and weight decay
    change them even if the gradient is zero. `batch` is the position in the epoch of the update's first batch. Methods
    then observe the update, if it was computed from batches.
    """
    network, gradients, groups = spec.network, update.clipped.all, update.participation.groups
    places = [i for i, gradient in enumerate(gradients) if gradient is not None and i not in network.frozen]
    if not places:  # all that the active heads train is frozen: the update counts, and nothing changes
        gradients = [tf.zeros_like(variable) for variable in network.variables.all]
        places = [i for i in range(len(gradients)) if i not in network.frozen]
        groups = tuple(group._replace(trained=tf.constant(False)) for group in groups)
    variables, trains_any = [network.variables.all[i] for i in places], update.participation.any
    # For a duplicate row, Keras 3's optimizers square its summands instead of their sum, so rows must be unique. Gradients
    # have the dtype of their variables, although balancing half precision, for one, gives float32.
    present = [map_values(partial(tf.cast, dtype=var.dtype), deduplicate(gradients[i])) for i, var in zip(places, variables)]
    # What `update.broken` has not looked at: clipped, in another dtype, or summed.
    known = {id(gradient) for gradient in update.gradients.all}
    finite = all_hold([~update.broken.is_any, *(is_finite(gradient) for gradient in present if id(gradient) not in known)])
    applies = finite & trains_any
    adapts = has_loss_scaling(optimizer) and getattr(optimizer, "dynamic", True)  # Keras 3's always does
    scale = loss_scale(optimizer) if adapts else None
    seen = (finite, trains_any, applies, update.step, update.broken, scale, batch)

    state = {id(variable): value for variable, value in zip(update.roll_back.variables, update.roll_back.values)}
    in_doubt = [group for group in groups if group.trained is not None]
    kept = [(group.trained, group.state) for group in in_doubt] + network.state_at(spec.running.rates.steps, update.step)
    moves = [(flag, variable) for flag, variables in kept for variable in variables if id(variable) in state]

    @no_autograph
    def apply_or_skip(
        strategy: tf.distribute.Strategy, gradients: Nested, flags: Nested, seen: Nested, data: Nested, saved: Nested
    ) -> None:
        """Applies the gradients if that is to be done; otherwise restores what computing the update has changed."""
        seen, flags = tf.nest.map_structure(lambda value: None if value is None else local(strategy, value), (seen, flags))
        finite, trains_any, applies, step, broken, scale, batch = seen
        trained, moving = flags

        def apply() -> None:
            with ExitStack() as stack:
                parts = [(group is groups[0], flag, group.variables) for flag, group in zip(trained, in_doubt)]
                for copies_encoder in (True, False):  # which may be large, and is copied apart from the heads
                    part = [(flag, variables) for is_encoder, flag, variables in parts if is_encoder == copies_encoder]
                    stack.enter_context(_restored(strategy, part))
                _apply_scaled(strategy, spec, optimizer, gradients, places, step)
            for (_, variable), flag, value in zip(moves, moving, saved[1]):
                assign(strategy, variable, where(flag, variable.read_value(), value))
            record_finite(optimizer, True)

        def skip() -> None:
            old = dict(zip(map(id, update.roll_back.variables), saved[0]))
            for judges, variables in spec.measuring:  # predictions were made, whether gradients can be applied or not
                variables = [variable for variable in variables if id(variable) in old]
                if variables:
                    spoiled = ~trains_any | tf.reduce_any(tf.gather(broken.losses, judges))
                    values = [old.pop(id(variable)) for variable in variables]
                    restore_unless_finite(strategy, variables, values, spoiled)
            for variable in update.roll_back.variables:
                if id(variable) in old:
                    assign(strategy, variable, old[id(variable)])
            if has_loss_scaling(optimizer):
                tf.cond(finite, lambda: None, lambda: record_finite(optimizer, False))
            spec.running.faults.skipped(strategy, broken, trains_any, step, scale, data, batch)

        tf.cond(applies, apply, skip)

    # A condition around an optimizer must be outside of the replicas, since branches inside them cannot synchronize.
    saved = update.roll_back.values, [state[id(variable)] for _, variable in moves]
    flags = [group.trained for group in in_doubt], [flag for flag, _ in moves]
    args = (present, flags, seen, update.data, saved)
    tf.distribute.get_replica_context().merge_call(apply_or_skip, args=args)
    if isinstance(update, Update):
        _observe(spec, update, applies)
    return applies


_FEW = 2**16
"""The number of elements, 256 KiB in single precision, up to which variables are copied without a condition."""


@contextmanager
def _restored(strategy: tf.distribute.Strategy, groups: Sequence[tuple[tf.Tensor, Sequence[tf.Variable]]]) -> Iterator[None]:
    """A context after which the groups of variables whose flag is false have their values from before it."""
    variables, flags = [variable for _, group in groups for variable in group], [flag for flag, group in groups if group]
    # To copy few variables costs less than a condition; XLA, whose branches must be alike, does without one, too.
    sizes = [variable.shape.num_elements() for variable in variables]
    copies = in_xla() or (None not in sizes and sum(sizes) <= _FEW)

    def unless_all_take_part(action: Callable[[], list[tf.Tensor]], dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
        """The tensors that an action returns if it may be that a group is left out, and else others of the same dtypes."""
        if copies:
            return action()
        return list(tf.cond(all_hold(flags), lambda: [tf.zeros([0], dtype) for dtype in dtypes], action))

    def read() -> list[tf.Tensor]:
        return [variable.value() for variable in variables]

    before = unless_all_take_part(read, [variable.dtype for variable in variables])
    with tf.control_dependencies(before):
        yield

    def restore() -> list[tf.Tensor]:
        old_values = iter(before)
        for flag, group in groups:
            for variable in group:
                assign(strategy, variable, where(flag, variable.value(), next(old_values)))
        return []

    unless_all_take_part(restore, [])


def _apply_scaled(
    strategy: tf.distribute.Strategy,
    spec: UpdateSpec,
    optimizer: Optimizer,
    gradients: Sequence[Gradient],
    places: Sequence[int],
    step: tf.Tensor,
) -> None:
    """Applies the optimizer, and then moves the variables with a factor other than 1 to `v_old + factor * (v_opt - v_old)`.

    A constraint holds for the result, and moving averages of the variables are of the result. Where a function of the step
    returns 0, the variable and its slots do not change.
    """
    rates = spec.running.rates
    steps, decays = (values_at([factors[i] for i in places], step) for factors in (rates.steps, rates.decays))
    variables, slots = [spec.network.variables.all[i] for i in places], [spec.running.slots[i] for i in places]
    tensors = [tensor_variable(variable) for variable in variables]
    scaled = [i for i, factor in enumerate(steps) if not isinstance(factor, float) or factor != 1]
    before = {i: tf.identity(tensors[i].read_value()) for i in scaled}
    # Only a function of the step can be 0 here, since what is 0 by a number is not updated at all.
    kept = {i: [tf.identity(slot.read_value()) for slot in slots[i]] for i in scaled if not isinstance(steps[i], float)}

    def move() -> None:
        for i in scaled:
            old, new, factor = before[i], tensors[i].read_value(), steps[i]
            moved = old + in_dtype(factor, old.dtype) * (new - old)
            new = moved if isinstance(factor, float) else where(factor == 1, new, where(factor == 0, old, moved))
            constraint = getattr(variables[i], "constraint", None)
            new = new if constraint is None else where(tf.equal(steps[i], 0), new, constraint(new))
            assign(strategy, tensors[i], new)

    has_own_decay = any(not isinstance(factor, float) or factor != 1 for factor in decays)
    options: Config = {"decays": decays if has_own_decay else None, "move": move if scaled else None}
    with tf.control_dependencies([*before.values(), *(value for values in kept.values() for value in values)]):
        apply_reduced_gradients(strategy, optimizer, gradients, variables, **options)
    for i, values in kept.items():
        for slot, old in zip(slots[i], values):
            assign(strategy, slot, where(tf.equal(steps[i], 0), old, slot.read_value()))


def _observe(spec: UpdateSpec, update: Update, applied: tf.Tensor) -> None:
    """Calls `observe` of the weighting, the balancer and the schedule."""
    methods, weights, after = spec.methods, update.losses.loss_weights, None
    sees_losses = methods.weighting is not None or "losses" in methods.uses
    if "losses_after" in methods.uses:
        means = tf.math.divide_no_nan(all_reduce_sum(loss_sums_after(spec, update, applied)), weights.counts)
        after = tf.cast(where(update.participation.active, weights.head_weights * means, 0.0), tf.float32)
    applied = update.participation.methods_see(applied)
    seen = Observation(
        step=update.step,
        active=update.participation.trains_encoder,
        losses=tf.cast(update.losses.weighted, tf.float32) if sees_losses else None,
        norms=update.norms,
        gramian=update.combined.at_representation,
        losses_after=after,
    )
    for method in methods.all:
        method.observe(seen, applied)
