"""Helpers on tensors: communication between the replicas of a `tf.distribute` strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from multihead._ground.calls import no_autograph
from multihead._ground.keras import KERAS_3, tensor_variable
from multihead._ground.tensors import all_hold, is_finite, where, with_none
from multihead._ground.types import Function, Layer, Nested, Tensor


def num_replicas() -> int:
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def part_of(value: tf.Tensor) -> tf.Tensor:
    """A replica's share of a value that is the same on all replicas: the sum of the shares is the value."""
    number = num_replicas()
    return value if number == 1 else value / number


def on_any_replica(flags: list[tf.Tensor]) -> list[tf.Tensor]:
    """Where booleans hold on at least one replica; all tensors have one shape, and cross in one exchange."""
    if num_replicas() == 1:
        return flags
    return list(tf.unstack(all_reduce_sum(tf.cast(tf.stack(flags), tf.float32)) > 0))


def all_reduce_sum(value: Nested) -> Nested:
    """The sum over replicas of a tensor or a list of gradients (None stays None); on one replica, the value itself."""
    if num_replicas() == 1:
        return value
    context = tf.distribute.get_replica_context()
    if not isinstance(value, list):
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value)
    present = [gradient for gradient in value if gradient is not None]
    return with_none(context.all_reduce(tf.distribute.ReduceOp.SUM, present) if present else [], like=value)


def local(strategy: tf.distribute.Strategy, value: Tensor) -> tf.Tensor:
    """The first replica's value, in the cross-replica context."""
    return strategy.experimental_local_results(value)[0]


def assign(strategy: tf.distribute.Strategy, variable: tf.Variable, value: Tensor) -> None:
    """Assigns a value to a variable on all replicas, in the cross-replica context."""
    _on_each_replica(strategy, lambda part, new: part.assign(new, read_value=False), variable, value)


def restore_unless_finite(
    strategy: tf.distribute.Strategy, variables: Sequence[tf.Variable], values: Sequence[Tensor], flag: tf.Tensor
) -> None:
    """Assigns values to variables if a flag is true, or one of them is not finite, in the cross-replica context.

    A replica does so for its own parts of the variables, which stay together.
    """

    def restore(first: tf.Variable, others: Sequence[tf.Variable], values: Sequence[Tensor], flag: tf.Tensor) -> None:
        parts = [first, *others]
        flag |= ~all_hold([is_finite(part.value()) for part in parts if part.dtype.is_floating])
        for part, value in zip(parts, values):
            part.assign(where(flag, value, part.value()), read_value=False)

    _on_each_replica(strategy, restore, variables[0], list(variables[1:]), list(values), flag)


def _on_each_replica(strategy: tf.distribute.Strategy, change: Function, variable: tf.Variable, *values: Nested) -> None:
    """Calls a function per replica, with its part of a variable and of values, in the cross-replica context."""
    if tf.distribute.has_strategy():
        strategy.extended.update(variable, no_autograph(change), args=values, group=False)
    else:
        change(variable, *values)


def once(action: Callable[[], None]) -> None:
    """Runs an action that is the same on all replicas once, outside them."""
    if num_replicas() == 1:
        action()
    else:
        tf.distribute.get_replica_context().merge_call(no_autograph(lambda strategy: action()))


def check_scope(strategy: tf.distribute.Strategy, modules: Iterable[Layer]) -> None:
    """Raises a `ValueError` unless the variables of modules were made in the scope of a strategy."""
    built = [module for module in modules if getattr(module, "built", True)]
    for variable in (tensor_variable(variable) for module in built for variable in getattr(module, "variables", ())):
        # Keras 2 lists tables of vocabularies among the variables of its layers.
        if isinstance(variable, tf.Variable) and not strategy.extended.variable_created_in_scope(variable):
            raise ValueError(
                f"`compile` needs variables that were made in the scope of {type(strategy).__name__}, as the trainer. "
                f"Received: {variable.name!r}, made outside of it. Build the model, the heads and the trainer under `with "
                "strategy.scope():`, too."
            )


def is_chief(model: Layer) -> bool:
    """Whether this worker writes the files that all workers share."""
    return bool(model.distribute_strategy.extended.should_checkpoint)


def has_several_workers(strategy: tf.distribute.Strategy) -> bool:
    """Whether a strategy's replicas are in several processes."""
    return bool(getattr(strategy.extended, "_in_multi_worker_mode", lambda: False)())


def over_replicas(results: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Computes results of metrics over all replicas, inside a replica.

    Keras 3 would return the replicas' own results; Keras 2 would add up the results of the replicas.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return results()
    computed: dict[str, Tensor] = context.merge_call(no_autograph(lambda strategy: results()))
    if KERAS_3 and has_several_workers(context.strategy):
        # With several workers, Keras 3 averages the results of a step over their first axis, which must exist.
        return {name: tf.reshape(value, [1]) for name, value in computed.items()}
    return computed
