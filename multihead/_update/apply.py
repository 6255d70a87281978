"""Clips and applies an update once, after all gradients are accumulated, reduced and combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf

from multihead._ground.optimizers import (
    adapted_loss_scale,
    apply_reduced_gradients,
    has_loss_scaling,
    record_finite,
)
from multihead._ground.replicas import assign, local
from multihead._ground.tensors import all_of, any_of, deduplicate, in_xla, is_finite, map_values, where
from multihead._update.faults import Faults, Seen
from multihead._update.network import Gradients
from multihead._update.roll_back import RollBack
from multihead._update.scale import Scaling, apply_scaled
from multihead._update.spec import UpdateSpec
from multihead._update.update import Change
from multihead.clipping import keeps_finite

AnyChange = TypeVar("AnyChange", bound=Change)
Groups = Sequence[tuple[list[int], list[tf.Variable]]]
"""As in `Ownership`."""


def clip(spec: UpdateSpec, update: AnyChange) -> AnyChange:
    """Clips the gradients of the encoder and the heads; those of a weighting's variables are not clipped."""
    if spec.clip is None:
        return update
    gradients = update.gradients
    clipped = Gradients.of([*spec.clip(gradients.of_losses), *gradients.weighting], spec.network.variables)
    return replace(update, clipped=clipped)


def apply_update(spec: UpdateSpec, optimizer: Any, update: Change, batch: tf.Tensor | None = None) -> tf.Tensor:
    """Applies a clipped update once, or skips it completely, and remembers what was not finite; see `apply_once`.

    Args:
        spec: How updates are applied.
        optimizer: The built optimizer.
        update: The update.
        batch: The position of the update's first batch in the epoch, if it is known.

    Returns:
        Whether the update was applied, a boolean scalar.
    """
    return apply_once(spec, optimizer, update, Observed(spec.faults, batch, adapted_loss_scale(optimizer)))


class Observed(NamedTuple):
    """Who remembers updates that are not finite.

    Attributes:
        faults: Remembers them.
        batch: The position of the update's first batch in the epoch, if it is known.
        loss_scale: The factor of loss scaling if the optimizer adapts it, or None.
    """

    faults: Faults
    batch: tf.Tensor | None
    loss_scale: tf.Tensor | None


def apply_once(spec: UpdateSpec, optimizer: Any, update: Change, observed: Observed | None = None) -> tf.Tensor:
    """Applies one update, or skips it completely if a loss or gradient is not finite, or there is nothing to train.

    The variables and slots of idle heads are restored, because momentum, Adam and weight decay change them even if the
    gradient is zero. Frozen variables and their slots are left out.

    Args:
        spec: The network and the ownership of its variables.
        optimizer: The built optimizer.
        update: The update, clipped.
        observed: Who remembers updates that are not finite, if anyone does.

    Returns:
        Whether the update was applied, a boolean scalar.
    """
    network, gradients = spec.network, update.clipped.all
    positions = [i for i, each in enumerate(gradients) if each is not None and i not in network.frozen]
    if not positions and network.frozen:  # all that the active heads train: the update counts, and nothing changes
        gradients = [tf.zeros_like(variable) for variable in network.variables.all]
        positions = [i for i in range(len(gradients)) if i not in network.frozen]
    context, targets = tf.distribute.get_replica_context(), [network.variables.all[i] for i in positions]
    once = _Once(optimizer, targets, _may_stay(spec, update), update.roll_back, _scaling(spec, positions), observed)
    given = {} if observed is None else {"loss_scale": observed.loss_scale, "batch": observed.batch}
    seen = Seen(update.broken, update.trains_any, update.step, **given)
    if not positions:
        context.merge_call(once.leave, args=(seen, update.roll_back.values))
        return tf.constant(False)
    # For a duplicate row, Keras 3's optimizers square its summands instead of their sum, so rows must be unique.
    present = [_as_variable(deduplicate(gradients[i]), variable) for i, variable in zip(positions, targets)]
    # What `update.broken` has not looked at: clipped by a user's own class, in another dtype, or summed.
    known = {id(gradient) for gradient in update.gradients.all}
    if keeps_finite(spec.clip):
        known |= {id(gradient) for gradient in gradients if not isinstance(gradient, tf.IndexedSlices)}
    flags = [is_finite(gradient) for gradient in present if id(gradient) not in known]
    finite = all_of([~update.broken.is_any, *flags])
    applies = finite & seen.trains_any
    # A condition around an optimizer must be outside of the replicas, since branches inside them cannot synchronize.
    args = (present, finite, applies, update.active, seen, update.data, update.roll_back.values)
    context.merge_call(once.apply_or_skip, args=args)
    return applies


def _may_stay(spec: UpdateSpec, update: Change) -> Groups:
    """The variables that must not change while their heads are idle, and these heads, without those that all heads train."""
    always = {k for k, never in enumerate(update.never_idle) if never}
    num_heads = len(spec.network.heads)
    groups = spec.ownership.groups
    return [(owners, group) for owners, group in groups if len(owners) < num_heads and not always & set(owners)]


def _as_variable(gradient: Any, variable: Any) -> Any:
    """A gradient in the dtype of its variable: balancing half precision, for one, gives float32."""
    return gradient if gradient.dtype == variable.dtype else map_values(lambda v: tf.cast(v, variable.dtype), gradient)


def _scaling(spec: UpdateSpec, positions: Sequence[int]) -> Scaling | None:
    """How far the variables at some positions move; None if all move as far as the optimizer moves them."""
    if spec.rates.is_plain:
        return None
    return Scaling(
        variables=[spec.network.variables.all[i] for i in positions],
        slots=[spec.ownership.slots[i] for i in positions],
        steps=[spec.rates.steps[i] for i in positions],
        decays=[spec.rates.decays[i] for i in positions],
    )


@dataclass(frozen=True)
class _Once:
    """One application of the optimizer, in the cross-replica context."""

    optimizer: Any
    targets: Sequence[Any]
    groups: Groups
    roll_back: RollBack
    scaling: Scaling | None
    observed: Observed | None

    def apply_or_skip(
        self,
        strategy: tf.distribute.Strategy,
        gradients: Any,
        finite: Any,
        applies: Any,
        active: Any,
        seen: Any,
        data: Any,
        saved: Any,
    ) -> None:
        """Applies the gradients if that is to be done; otherwise restores the saved values."""
        finite, local_seen = local(strategy, finite), _local(strategy, seen)

        def apply() -> None:
            self._apply_to_active(strategy, gradients, active, local_seen.step)
            record_finite(self.optimizer, True)

        def skip() -> None:
            self.roll_back.restore_all(strategy, saved)
            if has_loss_scaling(self.optimizer):
                tf.cond(finite, lambda: None, lambda: record_finite(self.optimizer, False))
            if self.observed is not None:
                self.observed.faults.skipped(strategy, local_seen, data)

        tf.cond(local(strategy, applies), apply, skip)

    def leave(self, strategy: tf.distribute.Strategy, seen: Any, saved: Any) -> None:
        """Restores the saved values after an update that has no gradients."""
        self.roll_back.restore_all(strategy, saved)
        if self.observed is not None:
            self.observed.faults.count_skipped(strategy, _local(strategy, seen))

    def _apply_to_active(self, strategy: tf.distribute.Strategy, gradients: Any, active: Any, step: tf.Tensor) -> None:
        of_heads = tf.unstack(local(strategy, active))
        variables = [variable for _, group in self.groups for variable in group]
        unless_idle = _always if _are_few(variables) else partial(_if_any_is_idle, of_heads)
        before = unless_idle(lambda: RollBack(variables).values, [variable.dtype for variable in variables])
        with tf.control_dependencies(before):
            if self.scaling is None:
                apply_reduced_gradients(strategy, self.optimizer, gradients, self.targets)
            else:
                apply_scaled(strategy, self.optimizer, self.scaling, gradients, step)

        def restore() -> list[tf.Tensor]:
            old_values = iter(before)
            for owners, group in self.groups:
                is_trained = any_of([of_heads[k] for k in owners])
                for variable in group:
                    assign(strategy, variable, where(is_trained, variable.value(), next(old_values)))
            return []

        if variables:
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
    """The result of an action if a head is idle; otherwise nothing runs, since to copy a large head takes long.

    Args:
        active: For each head, whether it is active.
        action: Returns tensors.
        dtypes: Their dtypes.
    """
    return list(tf.cond(all_of(active), lambda: [tf.zeros([0], dtype) for dtype in dtypes], action))


def _local(strategy: tf.distribute.Strategy, seen: Seen) -> Seen:
    """What is known of an update, as the first replica knows it."""
    return tf.nest.map_structure(lambda each: None if each is None else local(strategy, each), seen)
