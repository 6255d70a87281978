"""Clips and applies an update once, after all gradients are accumulated, reduced and combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import tensorflow as tf

from multihead._ground.gradients import deduplicate, is_finite, map_values
from multihead._ground.keras import in_xla
from multihead._ground.optimizers import apply_reduced_gradients, loss_scale, record_finite, without_reduction
from multihead._ground.replicas import assign, local
from multihead._update.network import Gradients, Ownership
from multihead._update.roll_back import RollBack
from multihead._update.scale import Scaling, apply_scaled
from multihead._update.spec import UpdateSpec
from multihead._update.update import Change

AnyChange = TypeVar("AnyChange", bound=Change)


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
    scale = loss_scale(optimizer)
    applied = apply_once(spec, optimizer, update)
    if all(gradient is None for gradient in update.clipped.all):
        return applied
    with tf.control_dependencies([applied]):
        checks = spec.faults.observe(update, applied, batch, scale)
    with tf.control_dependencies(checks):
        return tf.identity(applied)


def apply_once(spec: UpdateSpec, optimizer: Any, update: Change) -> tf.Tensor:
    """Applies one update, or skips it completely if a loss or gradient is not finite, or there is nothing to train.

    The variables and slots of idle heads are restored, because momentum, Adam and weight decay change them even if the
    gradient is zero. Frozen variables and their slots are left out.

    Args:
        spec: The network and the ownership of its variables.
        optimizer: The built optimizer.
        update: The update, clipped.

    Returns:
        Whether the update was applied, a boolean scalar.
    """
    network, gradients = spec.network, update.clipped.all
    positions = [i for i, each in enumerate(gradients) if each is not None and i not in network.frozen]
    if not positions and network.frozen:  # all that the active heads train: the update counts, and nothing changes
        gradients = [tf.zeros_like(variable) for variable in network.variables.all]
        positions = [i for i in range(len(gradients)) if i not in network.frozen]
    context = tf.distribute.get_replica_context()
    if not positions:
        context.merge_call(update.roll_back.restore_all, args=(update.roll_back.values,))
        return tf.constant(False)
    targets = [network.variables.all[i] for i in positions]
    once = _Once(optimizer, targets, spec.ownership, update.roll_back, _scaling(spec, positions))
    # For a duplicate row, Keras 3's optimizers square its summands instead of their sum, so rows must be unique.
    present = [_as_variable(deduplicate(gradients[i]), variable) for i, variable in zip(positions, targets)]
    # What `update.broken` has not looked at: clipped, in another dtype, or summed.
    known = {id(gradient) for gradient in update.gradients.all}
    flags = [is_finite(gradient) for gradient in present if id(gradient) not in known]
    finite = ~update.broken.is_any & (tf.reduce_all(tf.stack(flags)) if flags else True)
    applies = finite & update.trains_any
    # A condition around an optimizer must be outside of the replicas, since branches inside them cannot synchronize.
    args = (present, finite, applies, update.active, update.step, update.roll_back.values)
    context.merge_call(once.apply_or_skip, args=args)
    return applies


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
    ownership: Ownership
    roll_back: RollBack
    scaling: Scaling | None

    def apply_or_skip(
        self, strategy: tf.distribute.Strategy, gradients: Any, finite: Any, applies: Any, active: Any, step: Any, saved: Any
    ) -> None:
        """Applies the gradients if that is to be done; otherwise restores the saved values."""

        def apply() -> tf.Tensor:
            self._apply_to_active(strategy, gradients, active, step)
            record_finite(self.optimizer, True)
            return tf.constant(True)

        def skip() -> tf.Tensor:
            self.roll_back.restore_all(strategy, saved)
            tf.cond(local(strategy, finite), lambda: True, lambda: _done(lambda: record_finite(self.optimizer, False)))
            return tf.constant(False)

        tf.cond(local(strategy, applies), apply, skip)

    def _apply(self, strategy: tf.distribute.Strategy, gradients: Any, step: Any) -> None:
        def apply() -> None:
            with without_reduction(self.optimizer):
                strategy.extended.call_for_each_replica(
                    lambda of_replica: apply_reduced_gradients(self.optimizer, of_replica, self.targets), args=(gradients,)
                )

        if self.scaling is None:
            apply()
        else:
            apply_scaled(strategy, self.optimizer, self.scaling, local(strategy, step), apply)

    def _apply_to_active(self, strategy: tf.distribute.Strategy, gradients: Any, active: Any, step: Any) -> None:
        of_heads, groups = local(strategy, active), self.ownership.groups
        everyone = tf.reduce_all(of_heads)
        variables = [variable for _, group in groups for variable in group]
        before = _values_unless(everyone, variables)
        with tf.control_dependencies(before):
            self._apply(strategy, gradients, step)

        def restore() -> None:
            old_values = iter(before)
            for owners, group in groups:
                is_trained = tf.reduce_any(tf.gather(of_heads, owners))
                for variable in group:
                    assign(strategy, variable, tf.where(is_trained, variable.value(), next(old_values)))

        tf.cond(everyone, lambda: True, lambda: _done(restore))


_FEW = 2**16
"""The number of elements, 256 KiB in single precision, up to which variables are copied without a condition."""


def _values_unless(condition: tf.Tensor, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Copies of variables, or nothing instead of each if the condition holds, since to copy a large head takes long."""

    def copies() -> list[tf.Tensor]:
        return RollBack(variables).values

    sizes = [variable.shape.num_elements() for variable in variables]
    if in_xla() or (None not in sizes and sum(sizes) <= _FEW):  # branches that XLA compiles must return the same shapes
        return copies()
    return list(tf.cond(condition, lambda: [tf.zeros([0], variable.dtype) for variable in variables], copies))


def _done(action: Callable[[], None]) -> tf.Tensor:
    action()
    return tf.constant(True)
