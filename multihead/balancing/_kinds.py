"""Kinds of balancers: with a preference, with running gradients, and computed at every n-th step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import keras
import tensorflow as tf

from multihead._ground.calls import no_autograph
from multihead._ground.keras import Untracked, tensor_variable
from multihead._ground.replicas import local, num_replicas
from multihead._ground.types import Config, Shape, Tensor, Variable
from multihead._ground.validation import check_head_names, is_number, quoted
from multihead._method import Observation
from multihead.balancing._base import Balancer


class PreferenceBalancer(Balancer):
    """A balancer with a preference, which must know the heads' names before it is called: see `bind`.

    Args:
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.
        name: Name of the layer.

    Raises:
        TypeError: `preference` is not a mapping.
        ValueError: A number is negative or not finite, all are 0, or a name is not that of a head.
    """

    def __init__(self, preference: Mapping[str, float] | None = None, *, name: str | None = None) -> None:
        super().__init__(name=name)
        if preference is not None and not isinstance(preference, Mapping):
            raise TypeError(
                f"`preference` must map head names to numbers. Received: preference={preference!r}. Pass, for example, "
                "{'price': 0.5}; a head that is missing has 1."
            )
        self._check_numbers(preference or {})
        numbers = None if preference is None else {str(name): float(number) for name, number in preference.items()}
        self._preference = Untracked(numbers)  # Keras would track a dict

    @property
    def preference(self) -> dict[str, float] | None:
        """The preference as passed to the constructor."""
        return self._preference.value

    def bind(self, head_names: Sequence[str]) -> None:
        super().bind(head_names)
        check_head_names("preference", self.preference or {}, head_names)
        self._numbers(len(head_names))

    def _check_numbers(self, preference: Mapping[str, float]) -> None:
        if not all(is_number(number) and number >= 0 for number in preference.values()):
            raise ValueError(
                "`preference` must contain finite numbers of at least 0. "
                f"Received: preference={preference!r}. Omit it to treat all heads equally."
            )

    def _numbers(self, num_heads: int) -> list[float]:
        preference = self.preference
        if not preference:
            return [1.0] * num_heads
        if self.head_names is None:
            raise ValueError(
                f"`preference` requires the heads' names. Received: preference={preference!r}, but `bind` was not called. "
                "Call `bind(head_names)` first, with the names in the order of the rows."
            )
        if len(self.head_names) != num_heads:
            raise ValueError(
                f"`matrix` must have one row per head. Received: {num_heads} rows for the heads {quoted(self.head_names)}. "
                "Call `bind(head_names)` with the names in the order of the rows."
            )
        numbers = [preference.get(name, 1.0) for name in self.head_names]
        if not any(numbers):
            raise ValueError(
                "`preference` must have one number per head, and at least one above 0. "
                f"Received: preference={preference!r}. Omit it to treat all heads equally."
            )
        return numbers


def read_state(variable: Variable) -> tf.Tensor:
    return tf.cast(tf.convert_to_tensor(tensor_variable(variable)), tf.float64)


def write_state(variable: Variable, value: tf.Tensor) -> None:
    tensor_variable(variable).assign(tf.cast(value, tf.float32))


def prepared(gradients: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
    """Gradients in float64, `[num_heads]` booleans of the active heads, and whether all gradients are finite.

    If a gradient is not finite, all heads are treated as idle, so that running averages stay finite.
    """
    wide = [tf.cast(tf.stop_gradient(rows), tf.float64) for rows in gradients]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(rows)) for rows in wide])
    has_any = tf.reduce_any([tf.reduce_any(rows != 0, axis=1) for rows in wide], axis=0)
    return wide, has_any & finite, finite


class Every(Balancer):
    """Computes a balancer of inner products at every `steps`-th step, from step 0, and reuses its coefficients in between.

    A head that is active but was idle at the last computation has no coefficient to reuse: the coefficients are then
    computed early. In between, the balancer is not computed at all. One that `lags` measures at every `steps`-th step.

    State: `cached`, `[num_heads]` float32, the last computed coefficients; `solved`, `[num_heads]` float32, 1 for the heads
    that were active then. The balancer also keeps its own state.
    """

    def __init__(self, balancer: Balancer, steps: int) -> None:
        super().__init__(name=f"{balancer.name}_every_{steps}")
        self.balancer = balancer
        self.steps = steps
        self.uses = tuple(dict.fromkeys([*balancer.uses, "step"]))
        self.levels, self.max_heads = balancer.levels, balancer.max_heads
        self.norms_only, self.lags = balancer.norms_only, balancer.lags
        self.head_names = balancer.head_names

    def build(self, input_shape: Shape) -> None:
        self.balancer.build(input_shape)
        super().build(input_shape)

    def create_state(self, num_heads: int) -> None:
        self.cached = self.add_state("cached", (num_heads,), "ones")
        self.solved = self.add_state("solved", (num_heads,))

    def coefficients(self, gramian: tf.Tensor, *, step: Tensor = 0, **known: Tensor) -> tf.Tensor:
        def solve_if_due(gramian: tf.Tensor, step: tf.Tensor, known: dict[str, tf.Tensor]) -> tf.Tensor:
            active = tf.linalg.diag_part(gramian) > 0

            def solve() -> tf.Tensor:
                used = self.balancer.used(step=step, **known)
                fresh = tf.cast(self.balancer.coefficients(gramian, **used), tf.float32)
                tensor_variable(self.cached).assign(fresh)
                tensor_variable(self.solved).assign(tf.cast(active, tf.float32))
                return fresh

            return tf.cond(self._is_due(step, active), solve, lambda: tf.identity(self._between(step, active)))

        arguments = (gramian, tf.cast(step, tf.int64), known)
        if num_replicas() == 1:
            coefficients = solve_if_due(*arguments)
        else:  # inside a replica, a variable cannot be assigned under a condition, because replicas cannot synchronize there
            on_first_replica = no_autograph(
                lambda strategy, *values: solve_if_due(*tf.nest.map_structure(partial(local, strategy), values))
            )
            coefficients = tf.distribute.get_replica_context().merge_call(on_first_replica, args=arguments)
        return tf.cast(coefficients, gramian.dtype)

    def known(self, step: tf.Tensor, active: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self._is_due(step, active), self._between(step, active)

    def _between(self, step: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        """The coefficients of a step at which nothing is computed."""
        known = self.balancer.known(step, active) if self.lags else None
        return tensor_variable(self.cached).read_value() if known is None else tf.cast(known[1], tf.float32)

    def _is_due(self, step: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        solved = tensor_variable(self.solved).read_value()
        return tf.equal(step % self.steps, 0) | tf.reduce_any(tf.cast(active, tf.float32) > solved)

    def observe(self, update: Observation, applied: tf.Tensor) -> None:
        self.balancer.observe(update, applied)

    @property
    def observes(self) -> bool:
        return self.balancer.observes

    def get_config(self) -> Config:
        return {"balancer": keras.saving.serialize_keras_object(self.balancer), "steps": self.steps}

    @classmethod
    def from_config(cls, config: Config) -> Every:
        """Creates the balancer from the result of `get_config`."""
        return cls(keras.saving.deserialize_keras_object(config["balancer"]), config["steps"])
