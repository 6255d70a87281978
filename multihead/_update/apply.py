"""Applies an update once, after all gradients are accumulated, reduced and combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from multihead._ground.gradients import deduplicate, is_finite, map_values
from multihead._ground.keras import in_xla
from multihead._ground.optimizers import apply_reduced_gradients, record_finite
from multihead._update.network import Gradients, Ownership
from multihead._update.scale import Scaling, apply_scaled
from multihead._update.spec import UpdateSpec

Saved = Sequence[tuple[tf.Variable, tf.Tensor]]
"""Variables with the values to restore if an update is skipped."""


def snapshot(variables: Sequence[tf.Variable]) -> list[tuple[tf.Variable, tf.Tensor]]:
    """Variables with their current values."""
    return [(variable, tf.identity(variable.read_value())) for variable in variables]


def apply_once(
    spec: UpdateSpec,
    optimizer: Any,
    gradients: Gradients,
    active: tf.Tensor,
    step: tf.Tensor,
    saved: Saved,
    *,
    usable: tf.Tensor,
) -> tf.Tensor:
    """Applies one update, or skips it completely if it is not usable, a gradient is not finite, or no head is active.

    The variables and slots of idle heads are restored, because momentum, Adam and weight decay change them even if the
    gradient is zero. Frozen variables and their slots are left out.

    Args:
        spec: The network and the ownership of its variables.
        optimizer: The built optimizer.
        gradients: The gradients of the network's variables, reduced and clipped, without loss scaling.
        active: Which heads are trained, `[num_heads]` booleans; in a custom loop with one more, for the encoder.
        step: The number of updates applied so far, an int64 scalar.
        saved: The values to restore if the update is skipped.
        usable: Whether all losses, and all gradients before clipping, are finite; a boolean scalar.

    Returns:
        Whether the update was applied, a boolean scalar.
    """
    network, all_gradients = spec.network, gradients.all
    positions = [i for i, each in enumerate(all_gradients) if each is not None and i not in network.frozen]
    if not positions and network.frozen:  # all that the active heads train: the update counts, and nothing changes
        all_gradients = [tf.zeros_like(variable) for variable in network.variables.all]
        positions = [i for i in range(len(all_gradients)) if i not in network.frozen]
    values = [value for _, value in saved]
    targets, state = [network.variables.all[i] for i in positions], [variable for variable, _ in saved]
    once = _Once(optimizer, targets, spec.ownership, state, _scaling(spec, positions))
    if not positions:
        tf.distribute.get_replica_context().merge_call(once.put_back, args=(values,))
        return tf.constant(False)
    # For a duplicate row, Keras 3's optimizers square its summands instead of their sum, so rows must be unique.
    present = [_as_variable(deduplicate(all_gradients[i]), variable) for i, variable in zip(positions, targets)]
    finite = usable & tf.reduce_all(tf.stack([is_finite(gradient) for gradient in present]))
    # A condition around an optimizer must be outside of the replicas, since branches inside them cannot synchronize.
    tf.distribute.get_replica_context().merge_call(once.apply_or_skip, args=(present, finite, active, step, values))
    return finite & tf.reduce_any(active)


def _as_variable(gradient: Any, variable: Any) -> Any:
    """A gradient in the dtype of its variable: balancing half precision, for one, gives float32."""
    return map_values(lambda values: tf.cast(values, variable.dtype), gradient)


def _scaling(spec: UpdateSpec, positions: Sequence[int]) -> Scaling | None:
    """How far the variables at some positions move; None if all move as far as the optimizer moves them."""
    if spec.rates.is_plain:
        return None
    return Scaling(
        [spec.network.variables.all[i] for i in positions],
        [spec.ownership.slots[i] for i in positions],
        [spec.rates.steps[i] for i in positions],
        [spec.rates.decays[i] for i in positions],
    )


class _Once:
    """One application of the optimizer, in the cross-replica context."""

    def __init__(
        self,
        optimizer: Any,
        targets: Sequence[Any],
        ownership: Ownership,
        state: Sequence[tf.Variable],
        scaling: Scaling | None,
    ) -> None:
        self._optimizer = optimizer
        self._targets = targets
        self._ownership = ownership
        self._state = state
        self._scaling = scaling

    def apply_or_skip(
        self, strategy: tf.distribute.Strategy, gradients: Any, finite: Any, active: Any, step: Any, saved: Any
    ) -> None:
        """Applies the gradients if they are finite and a head is active; otherwise restores the saved values."""

        def apply() -> tf.Tensor:
            self._apply_to_active(strategy, gradients, active, step)
            record_finite(self._optimizer, True)
            return tf.constant(True)

        def skip() -> tf.Tensor:
            self.put_back(strategy, saved)
            tf.cond(_local(strategy, finite), lambda: True, lambda: _done(lambda: record_finite(self._optimizer, False)))
            return tf.constant(False)

        tf.cond(_local(strategy, finite) & tf.reduce_any(_local(strategy, active)), apply, skip)

    def put_back(self, strategy: tf.distribute.Strategy, saved: Any) -> None:
        """Gives the state the saved values."""
        put_back(strategy, self._state, saved)

    def _apply(self, strategy: tf.distribute.Strategy, gradients: Any, step: Any) -> None:
        def apply() -> None:
            strategy.extended.call_for_each_replica(
                lambda of_replica: apply_reduced_gradients(self._optimizer, of_replica, self._targets), args=(gradients,)
            )

        if self._scaling is None:
            apply()
        else:
            apply_scaled(strategy, self._optimizer, self._scaling, _local(strategy, step), apply)

    def _apply_to_active(self, strategy: tf.distribute.Strategy, gradients: Any, active: Any, step: Any) -> None:
        of_heads, groups = _local(strategy, active), self._ownership.groups
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
                    _assign(strategy, variable, tf.where(is_trained, variable.read_value(), next(old_values)))

        tf.cond(everyone, lambda: True, lambda: _done(restore))


def _values_unless(condition: tf.Tensor, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Copies of variables, or nothing instead of each if the condition holds, since to copy a large head takes long."""

    def copies() -> list[tf.Tensor]:
        return [value for _, value in snapshot(variables)]

    if not variables or in_xla():  # whose branches must return the same shapes
        return copies()
    return list(tf.cond(condition, lambda: [tf.zeros([0], variable.dtype) for variable in variables], copies))


def put_back(strategy: tf.distribute.Strategy, variables: Sequence[tf.Variable], values: Any) -> None:
    """Gives variables earlier values, in the cross-replica context."""
    for variable, value in zip(variables, values):
        _assign(strategy, variable, value)


def _local(strategy: tf.distribute.Strategy, value: Any) -> tf.Tensor:
    return strategy.experimental_local_results(value)[0]


def _assign(strategy: tf.distribute.Strategy, variable: tf.Variable, value: Any) -> None:
    strategy.extended.update(variable, lambda v, new: v.assign(new), args=(value,), group=False)


def _done(action: Callable[[], None]) -> tf.Tensor:
    action()
    return tf.constant(True)
