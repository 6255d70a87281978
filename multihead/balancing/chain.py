"""Several balancers, one after another."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from multihead._ground.types import Config, Shape, Tensor
from multihead._ground.validation import quoted
from multihead.balancing._base import Balancer, get
from multihead.balancing.norms import Sum


@keras.saving.register_keras_serializable(package="multihead")
class Chain(Balancer):
    """Applies balancers one after another, each to the heads' gradients as scaled by the previous one.

    Most methods fix either magnitude or direction: `Chain(EqualNorms(), UPGrad())` fixes both. Put the method whose
    guarantee you need last.

    Formula: for two methods with coefficients `a` and `b`, `d = sum_k a_k b_k g_k`, with `b` from the Gramian of the
    gradients `a_k g_k`.

    What it fixes: what its members fix. Size of the update: that of the last member, for the gradients as scaled by the
    members before it.

    Args:
        *steps: Balancers or their names, in order. All except the last must multiply the heads' gradients by coefficients,
            as all methods do except those that work per coordinate or with running gradients.

    Raises:
        ValueError: A step before the last does not multiply gradients by coefficients, the steps have no level in common, or
            a name is not that of a balancer.

    Example:
        >>> chain = Chain("EqualNorms", "UPGrad")
        >>> chain([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.2924, 3.8124, 3.8124]
    """

    def __init__(self, *steps: Balancer | str, name: str | None = None) -> None:
        super().__init__(name=name)
        self.steps = [balancer for balancer in map(get, steps) if balancer is not None] or [Sum()]
        misplaced = [type(step).__name__ for step in self.steps[:-1] if not step.rescales]
        if misplaced:
            raise ValueError(
                f"`steps` before the last must multiply the heads' gradients by coefficients. Received: "
                f"{quoted(misplaced)} before the end. Put it last."
            )
        if not any(all(level in step.levels for step in self.steps) for level in Balancer.levels):
            raise ValueError(
                "`steps` must have a level in common, representation or parameters. "
                f"Received: {quoted(f'{type(step).__name__} at {step.levels}' for step in self.steps)}. Change one."
            )
        self.uses = tuple(dict.fromkeys(name for step in self.steps for name in step.uses))
        for number, step in enumerate(self.steps):  # TensorFlow's checkpoints do not look into Keras 3's lists
            setattr(self, f"step_{number}", step)
        self.levels = tuple(level for level in Balancer.levels if all(level in step.levels for step in self.steps))
        limits = [step.max_heads for step in self.steps if step.max_heads is not None]
        self.max_heads = min(limits) if limits else None
        self.rescales = self.steps[-1].rescales
        self.scale_invariant = any(step.scale_invariant for step in self.steps)

    def bind(self, head_names: Sequence[str]) -> None:
        super().bind(head_names)
        for step in self.steps:
            step.bind(head_names)

    def build(self, input_shape: Shape) -> None:
        for step in self.steps:
            step.build(input_shape)
        super().build(input_shape)

    def coefficients(self, gramian: tf.Tensor, **known: Tensor) -> tf.Tensor:
        gramian = tf.convert_to_tensor(gramian)
        wide = tf.cast(gramian, tf.float64)
        total = tf.ones_like(wide[0])
        for step in self.steps:
            # In the original precision, from which the member infers the rounding errors.
            scaled = tf.cast(wide * total[:, None] * total[None, :], gramian.dtype)
            total *= tf.cast(step.coefficients(scaled, **step.used(**known)), tf.float64)
        return tf.cast(total, gramian.dtype)

    def rescale(self, gradients: Sequence[tf.Tensor], *_: Tensor, **known: Tensor) -> list[tf.Tensor]:
        rows = list(gradients)
        for step in self.steps:
            rows = step.rescale(rows, **step.used(**known))
        return rows

    def combine(self, gradients: Sequence[tf.Tensor], *_: Tensor, **known: Tensor) -> list[tf.Tensor]:
        rows = list(gradients)
        for step in self.steps[:-1]:
            rows = step.rescale(rows, **step.used(**known))
        sums = self.steps[-1].combine(rows, **self.steps[-1].used(**known))
        return [tf.cast(total, original.dtype) for total, original in zip(sums, gradients)]

    def get_config(self) -> Config:
        return {**super().get_config(), "steps": [keras.saving.serialize_keras_object(step) for step in self.steps]}

    @classmethod
    def from_config(cls, config: Config) -> Chain:
        """Creates the balancer from the result of `get_config`."""
        return cls(*map(keras.saving.deserialize_keras_object, config["steps"]), name=config["name"])
