"""A wrapper that recomputes a balancer's coefficients only at every n-th step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multihead._ground.autograph import as_is
from multihead._ground.keras import keras, tensor_variable
from multihead._ground.replicas import local, num_replicas
from multihead.balancing._base import Balancer


class Every(Balancer):
    """Recomputes a balancer's coefficients at every `steps`-th step and reuses them in between.

    A head that is active but was idle at the last recomputation has no coefficient to reuse: the coefficients are then
    recomputed early. In between, the balancer is not computed at all.

    State: `cached`, `[num_heads]` float32, the last computed coefficients; `solved`, `[num_heads]` float32, 1 for the heads
    that were active then. The balancer also keeps its own state.

    Args:
        balancer: A balancer that needs only inner products.
        steps: A whole number of at least 1.
    """

    def __init__(self, balancer: Balancer, steps: int) -> None:
        super().__init__(name=f"{balancer.name}_every_{steps}")
        self.balancer = balancer
        self.steps = steps
        self.uses = tuple(dict.fromkeys([*balancer.uses, "step"]))
        self.levels, self.max_heads = balancer.levels, balancer.max_heads
        self.head_names = balancer.head_names

    def build(self, input_shape: Any) -> None:
        self.balancer.build(input_shape)
        super().build(input_shape)

    def create_state(self, num_heads: int) -> None:
        self.cached = self.add_state("cached", (num_heads,), "ones")
        self.solved = self.add_state("solved", (num_heads,))

    def coefficients(self, gramian: tf.Tensor, *, step: Any = 0, **known: Any) -> tf.Tensor:
        names = list(known)
        given = [gramian, tf.cast(step, tf.int64), *known.values()]

        def solve_if_due(gramian: tf.Tensor, step: tf.Tensor, *values: Any) -> tf.Tensor:
            active, cached = tf.linalg.diag_part(gramian) > 0, tensor_variable(self.cached)

            def solve() -> tf.Tensor:
                used = self.balancer.used(step=step, **dict(zip(names, values)))
                fresh = tf.cast(self.balancer.coefficients(gramian, **used), tf.float32)
                cached.assign(fresh)
                tensor_variable(self.solved).assign(tf.cast(active, tf.float32))
                return fresh

            return tf.cond(self._is_due(step, active), solve, lambda: tf.identity(cached.read_value()))

        return tf.cast(_outside_of_replicas(solve_if_due, given), gramian.dtype)

    def reused(self, step: tf.Tensor, active: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self._is_due(step, active), tensor_variable(self.cached).read_value()

    def _is_due(self, step: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        solved = tensor_variable(self.solved).read_value()
        return tf.equal(step % self.steps, 0) | tf.reduce_any(tf.cast(active, tf.float32) > solved)

    def observe(self, update: Any, applied: tf.Tensor) -> None:
        self.balancer.observe(update, applied)

    def get_config(self) -> dict[str, Any]:
        return {"balancer": keras.saving.serialize_keras_object(self.balancer), "steps": self.steps}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Every:
        """Creates the balancer from the result of `get_config`."""
        return cls(keras.saving.deserialize_keras_object(config["balancer"]), config["steps"])


def every(balancer: Balancer, steps: int) -> Balancer:
    """Wraps a balancer so that it is recomputed at every `steps`-th step; returns it unchanged for 1."""
    return balancer if steps == 1 else Every(balancer, steps)


def _outside_of_replicas(compute: Callable[..., tf.Tensor], arguments: list[tf.Tensor]) -> tf.Tensor:
    """`compute(*arguments)`, for arguments that are equal on all replicas.

    Inside a replica, a variable cannot be assigned under a condition, because replicas cannot synchronize there.
    """
    if num_replicas() == 1:
        return compute(*arguments)

    @as_is
    def of_first(strategy: tf.distribute.Strategy, *values: Any) -> tf.Tensor:
        return compute(*(local(strategy, value) for value in values))

    return tf.distribute.get_replica_context().merge_call(of_first, args=tuple(arguments))
