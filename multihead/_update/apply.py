"""Clips and applies an update once, after all gradients are accumulated, reduced and combined; then tells the methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import tensorflow as tf

from multihead._ground.calls import as_is
from multihead._ground.optimizers import (
    adapted_loss_scale,
    apply_reduced_gradients,
    has_loss_scaling,
    record_finite,
)
from multihead._ground.replicas import assign, local
from multihead._ground.tensors import all_of, any_of, deduplicate, in_xla, is_finite, map_values, where
from multihead._ground.types import Gradient, Nested, Optimizer, Tensor, Variable
from multihead._method import Observation
from multihead._update.evaluate import loss_sums_after
from multihead._update.scale import apply_scaled
from multihead._update.spec import UpdateSpec
from multihead._update.update import Change, RollBack, Update
from multihead.clipping import keeps_finite

AnyChange = TypeVar("AnyChange", bound=Change)
Groups = Sequence[tuple[list[int], list[tf.Variable]]]
"""As in `UpdateSpec.groups`."""


def clip(spec: UpdateSpec, update: AnyChange) -> AnyChange:
    """Clips the gradients of the encoder and the heads; those of a weighting's variables are not clipped."""
    if spec.clip is None:
        return update
    gradients = update.gradients
    clipped = spec.network.variables.like([*spec.clip(gradients.of_losses), *gradients.weighting])
    return replace(update, clipped=clipped)


def apply_update(spec: UpdateSpec, optimizer: Optimizer, update: Change, batch: tf.Tensor | None = None) -> tf.Tensor:
    """Applies a clipped update once, or skips it completely if a loss or gradient is not finite, or there is none.

    The variables and slots of idle heads are restored, because momentum, Adam and weight decay change them even if the
    gradient is zero. Frozen variables and their slots are left out. What was not finite is remembered, with `batch`, the
    position in the epoch of the update's first batch, if it is known.

    Returns:
        Whether the update was applied, a boolean scalar.
    """
    network, gradients = spec.network, update.clipped.all
    places = [i for i, each in enumerate(gradients) if each is not None and i not in network.frozen]
    if not places and network.frozen:  # all that the active heads train: the update counts, and nothing changes
        gradients = [tf.zeros_like(variable) for variable in network.variables.all]
        places = [i for i in range(len(gradients)) if i not in network.frozen]
    variables, groups = [network.variables.all[i] for i in places], _may_stay(spec, update)
    trains_any = update.trains_any if places else tf.constant(False)
    # For a duplicate row, Keras 3's optimizers square its summands instead of their sum, so rows must be unique.
    present = [_as_variable(deduplicate(gradients[i]), variable) for i, variable in zip(places, variables)]
    # What `update.broken` has not looked at: clipped by a user's own class, in another dtype, or summed.
    known = {id(gradient) for gradient in update.gradients.all}
    if keeps_finite(spec.clip):
        known |= {id(gradient) for gradient in gradients if not isinstance(gradient, tf.IndexedSlices)}
    finite = all_of([~update.broken.is_any, *(is_finite(each) for each in present if id(each) not in known)])
    applies = finite & trains_any
    seen = (finite, trains_any, applies, update.step, update.broken, adapted_loss_scale(optimizer), batch)

    @as_is
    def apply_or_skip(
        strategy: tf.distribute.Strategy, gradients: Nested, active: Tensor, seen: Nested, data: Nested, saved: Nested
    ) -> None:
        """Applies the gradients if that is to be done; otherwise restores the saved values."""
        seen = tf.nest.map_structure(lambda each: None if each is None else local(strategy, each), seen)
        finite, trains_any, applies, step, broken, scale, batch = seen

        def apply() -> None:
            of_heads = tf.unstack(local(strategy, active))
            _apply_to_active(strategy, spec, optimizer, gradients, places, groups, of_heads, step)
            record_finite(optimizer, True)

        def skip() -> None:
            update.roll_back.restore_all(strategy, saved)
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


def _may_stay(spec: UpdateSpec, update: Change) -> Groups:
    """The variables that must not change while their heads are idle, and these heads, without those that all heads train."""
    always = {k for k, never in enumerate(update.never_idle) if never}
    num_heads = len(spec.network.heads)
    return [(owners, group) for owners, group in spec.groups if len(owners) < num_heads and not always & set(owners)]


def _as_variable(gradient: Gradient, variable: Variable) -> Gradient:
    """A gradient in the dtype of its variable: balancing half precision, for one, gives float32."""
    return gradient if gradient.dtype == variable.dtype else map_values(lambda v: tf.cast(v, variable.dtype), gradient)


def _apply_to_active(
    strategy: tf.distribute.Strategy,
    spec: UpdateSpec,
    optimizer: Optimizer,
    gradients: Sequence[Gradient],
    places: Sequence[int],
    groups: Groups,
    active: Sequence[tf.Tensor],
    step: tf.Tensor,
) -> None:
    """Applies the gradients of the variables at some places, and restores the groups whose heads are all idle."""
    stay = [variable for _, group in groups for variable in group]
    unless_idle = _always if _are_few(stay) else partial(_if_any_is_idle, active)
    before = unless_idle(lambda: RollBack(stay).values, [variable.dtype for variable in stay])
    variables, rates = [spec.network.variables.all[i] for i in places], spec.rates
    with tf.control_dependencies(before):
        if rates.is_plain:
            apply_reduced_gradients(strategy, optimizer, gradients, variables)
        else:
            factors = [(rates.steps[i], rates.decays[i]) for i in places]
            apply_scaled(strategy, optimizer, gradients, variables, [spec.slots[i] for i in places], factors, step)

    def restore() -> list[tf.Tensor]:
        old_values = iter(before)
        for owners, group in groups:
            is_trained = any_of([active[k] for k in owners])
            for variable in group:
                assign(strategy, variable, where(is_trained, variable.value(), next(old_values)))
        return []

    if stay:
        unless_idle(restore, [])


_FEW = 2**16
"""The number of elements, 256 KiB in single precision, up to which variables are copied without a condition."""


def _are_few(variables: Sequence[tf.Variable]) -> bool:
    """Whether to copy variables costs less than a condition; XLA, too, does without one, whose branches must be alike."""
    sizes = [variable.shape.num_elements() for variable in variables]
    return in_xla() or (None not in sizes and sum(sizes) <= _FEW)


def _always(action: Callable[[], list[tf.Tensor]], dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
    return action()


def _if_any_is_idle(
    active: Sequence[tf.Tensor], action: Callable[[], list[tf.Tensor]], dtypes: Sequence[tf.DType]
) -> list[tf.Tensor]:
    """The tensors of some dtypes that an action returns if a head is idle; otherwise nothing runs: a copy takes long."""
    return list(tf.cond(all_of(active), lambda: [tf.zeros([0], dtype) for dtype in dtypes], action))


def observe(spec: UpdateSpec, update: Update, applied: tf.Tensor) -> None:
    """Calls `observe` of the weighting, the balancer and the schedule."""
    weights, after = update.losses.given, None
    if "losses_after" in spec.uses:
        after = weights.times_means(weights.mean_losses(loss_sums_after(spec, update, applied)))
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
