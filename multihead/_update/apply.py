"""Clips and applies an update once, after all gradients are accumulated, reduced and combined; then tells the methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import tensorflow as tf

from multihead._ground.calls import as_is
from multihead._ground.keras import tensor_variable
from multihead._ground.optimizers import apply_reduced_gradients, has_loss_scaling, loss_scale, record_finite
from multihead._ground.replicas import all_reduce_sum, assign, local
from multihead._ground.tensors import all_of, deduplicate, in_xla, is_finite, map_values, where
from multihead._ground.types import Given, Gradient, Nested, Optimizer, Tensor
from multihead._method import Observation
from multihead._update.evaluate import loss_sums_after
from multihead._update.spec import UpdateSpec
from multihead._update.update import Change, Update
from multihead.rates import values_at

AnyChange = TypeVar("AnyChange", bound=Change)


def clip(spec: UpdateSpec, update: AnyChange) -> AnyChange:
    """Clips the gradients of the encoder and the heads; those of a weighting's variables are not clipped."""
    if spec.clip is None:
        return update
    gradients = update.gradients
    clipped = spec.network.variables.like([*spec.clip(gradients.of_losses), *gradients.weighting])
    return replace(update, clipped=clipped)


def apply_update(spec: UpdateSpec, optimizer: Optimizer, update: Change, batch: tf.Tensor | None = None) -> tf.Tensor:
    """Applies a clipped update, or skips it if a loss or gradient is not finite, or there is none; whether it was applied.

    The variables and slots of idle heads are restored, because momentum, Adam and weight decay change them even if the
    gradient is zero. `batch` is the position in the epoch of the update's first batch.
    """
    network, gradients = spec.network, update.clipped.all
    places = [i for i, each in enumerate(gradients) if each is not None and i not in network.frozen]
    if not places and network.frozen:  # all that the active heads train: the update counts, and nothing changes
        gradients = [tf.zeros_like(variable) for variable in network.variables.all]
        places = [i for i in range(len(gradients)) if i not in network.frozen]
    variables = [network.variables.all[i] for i in places]
    is_active = tf.constant(True) if update.without_heads else tf.reduce_any(update.active)
    trains_any = is_active if places else tf.constant(False)
    # For a duplicate row, Keras 3's optimizers square its summands instead of their sum, so rows must be unique. Gradients
    # have the dtype of their variables, although balancing half precision, for one, gives float32.
    unique = [(deduplicate(gradients[i]), variable.dtype) for i, variable in zip(places, variables)]
    present = [each if each.dtype == dtype else map_values(partial(tf.cast, dtype=dtype), each) for each, dtype in unique]
    # What `update.broken` has not looked at: clipped, in another dtype, or summed.
    known = {id(gradient) for gradient in update.gradients.all}
    finite = all_of([~update.broken.is_any, *(is_finite(each) for each in present if id(each) not in known)])
    applies = finite & trains_any
    adapts = has_loss_scaling(optimizer) and getattr(optimizer, "dynamic", True)  # Keras 3's always does
    scale = loss_scale(optimizer) if adapts else None
    seen = (finite, trains_any, applies, update.step, update.broken, scale, batch)

    @as_is
    def apply_or_skip(
        strategy: tf.distribute.Strategy, gradients: Nested, active: Tensor, seen: Nested, data: Nested, saved: Nested
    ) -> None:
        """Applies the gradients if that is to be done; otherwise restores the saved values."""
        seen = tf.nest.map_structure(lambda each: None if each is None else local(strategy, each), seen)
        finite, trains_any, applies, step, broken, scale, batch = seen

        def apply() -> None:
            of_heads = tf.unstack(local(strategy, active))
            _apply_to_active(strategy, spec, optimizer, gradients, places, update.never_idle, of_heads, step)
            record_finite(optimizer, True)

        def skip() -> None:
            for variable, value in zip(update.roll_back.variables, saved):
                assign(strategy, variable, value)
            if places and has_loss_scaling(optimizer):
                tf.cond(finite, lambda: None, lambda: record_finite(optimizer, False))
            spec.faults.skipped(strategy, broken, trains_any, step, scale, data, batch)

        if places:
            tf.cond(applies, apply, skip)
        else:
            skip()

    # A condition around an optimizer must be outside of the replicas, since branches inside them cannot synchronize.
    args = (present, update.active, seen, update.data, update.roll_back.values)
    tf.distribute.get_replica_context().merge_call(apply_or_skip, args=args)
    return applies


_FEW = 2**16
"""The number of elements, 256 KiB in single precision, up to which variables are copied without a condition."""


def _apply_to_active(
    strategy: tf.distribute.Strategy,
    spec: UpdateSpec,
    optimizer: Optimizer,
    gradients: Sequence[Gradient],
    places: Sequence[int],
    never_idle: Sequence[bool],
    active: Sequence[tf.Tensor],
    step: tf.Tensor,
) -> None:
    """Applies the gradients of the variables at some places, and restores the variables whose heads are all idle."""
    # Those that may have to be restored: none of their heads trains at every step.
    always = {k for k, never in enumerate(never_idle) if never}
    groups = [(heads, own) for heads, own in spec.groups if len(heads) < len(never_idle) and not always & set(heads)]
    stay = [variable for _, group in groups for variable in group]
    # To copy few variables costs less than a condition; XLA, whose branches must be alike, does without one, too.
    sizes = [variable.shape.num_elements() for variable in stay]
    copies = in_xla() or (None not in sizes and sum(sizes) <= _FEW)

    def unless_all_train(action: Callable[[], list[tf.Tensor]], dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
        """The tensors that an action returns if it may be that a head is idle, and else others of the same dtypes."""
        if copies:
            return action()
        return list(tf.cond(all_of(active), lambda: [tf.zeros([0], dtype) for dtype in dtypes], action))

    before = unless_all_train(lambda: [variable.value() for variable in stay], [variable.dtype for variable in stay])
    with tf.control_dependencies(before):
        _apply_scaled(strategy, spec, optimizer, gradients, places, step)

    def restore() -> list[tf.Tensor]:
        old_values = iter(before)
        for heads, group in groups:
            is_trained = tf.reduce_any([active[k] for k in heads]) if len(heads) > 1 else active[heads[0]]
            for variable in group:
                assign(strategy, variable, where(is_trained, variable.value(), next(old_values)))
        return []

    if stay:
        unless_all_train(restore, [])


def _apply_scaled(
    strategy: tf.distribute.Strategy,
    spec: UpdateSpec,
    optimizer: Optimizer,
    gradients: Sequence[Gradient],
    places: Sequence[int],
    step: tf.Tensor,
) -> None:
    """Applies the optimizer, and then moves each variable with a factor other than 1 to `v_old + factor * (v_opt - v_old)`.

    A constraint holds for the result, and moving averages of the variables are of the result. Where a function of the step
    returns 0, the variable and its slots do not change.
    """
    steps, decays = (values_at([of[i] for i in places], step) for of in (spec.rates.steps, spec.rates.decays))
    variables, slots = [spec.network.variables.all[i] for i in places], [spec.slots[i] for i in places]
    tensors = [tensor_variable(variable) for variable in variables]
    scaled = [i for i, factor in enumerate(steps) if not isinstance(factor, float) or factor != 1]
    before = {i: tf.identity(tensors[i].read_value()) for i in scaled}
    # Only a function of the step can be 0 here, since what is 0 by a number is not updated at all.
    kept = {i: [tf.identity(slot.read_value()) for slot in slots[i]] for i in scaled if not isinstance(steps[i], float)}

    def move() -> None:
        for i in scaled:
            old, new, factor = before[i], tensors[i].read_value(), steps[i]
            moved = old + tf.cast(factor, old.dtype) * (new - old)
            new = moved if isinstance(factor, float) else where(factor == 1, new, where(factor == 0, old, moved))
            constraint = getattr(variables[i], "constraint", None)
            new = new if constraint is None else where(tf.equal(steps[i], 0), new, constraint(new))
            assign(strategy, tensors[i], new)

    has_own_decay = any(not isinstance(factor, float) or factor != 1 for factor in decays)
    options: Given = {"decays": decays if has_own_decay else None, "move": move if scaled else None}
    with tf.control_dependencies([*before.values(), *(value for values in kept.values() for value in values)]):
        apply_reduced_gradients(strategy, optimizer, gradients, variables, **options)
    for i, values in kept.items():
        for slot, old in zip(slots[i], values):
            assign(strategy, slot, where(tf.equal(steps[i], 0), old, slot.read_value()))


def observe(spec: UpdateSpec, update: Update, applied: tf.Tensor) -> None:
    """Calls `observe` of the weighting, the balancer and the schedule."""
    weights, after = update.losses.given, None
    if "losses_after" in spec.uses:
        means = tf.math.divide_no_nan(all_reduce_sum(loss_sums_after(spec, update, applied)), weights.counts)
        after = where(weights.active, weights.of_heads * means, 0.0)
    seen = Observation(
        step=update.step,
        active=weights.meeting,
        losses=update.losses.weighted if spec.weighting is not None or "losses" in spec.uses else None,
        norms=update.norms,
        gramian=update.combined.at_representation,
        losses_after=after,
    )
    for method in spec.methods:
        method.observe(seen, applied)
