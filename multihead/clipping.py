"""Gradient clipping: by value, norm, average norm and global norm.

Pass an instance as `clip=` to `MultiHeadTrainer.compile`, which applies it once per update to the final gradients, or
call it on any list of gradients: dense tensors, `tf.IndexedSlices` and None. Duplicate rows of an `IndexedSlices` are
summed first, because limiting them one by one does not limit their sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from multihead._ground.calls import call_users
from multihead._ground.tensors import deduplicate, map_values, norm, size, with_none
from multihead._ground.types import Gradient
from multihead._ground.validation import check_positive

__all__ = ["Clipping", "ByAverageNorm", "ByGlobalNorm", "ByNorm", "ByValue"]


class Clipping:
    """A limit on gradients. Subclasses implement `_clip`, which receives gradients without None and duplicate rows.

    Args:
        limit: The largest allowed value, norm, average norm or global norm; a number above 0.

    Raises:
        ValueError: `limit` is not a finite number above 0.
    """

    def __init__(self, limit: float) -> None:
        self.limit = check_positive("limit", limit)

    def __call__(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        """The clipped gradients, in the same order and of the same types: dense tensors, `tf.IndexedSlices` or None.

        Non-finite gradients give non-finite results (the trainer skips such an update).
        """
        present = [deduplicate(gradient) for gradient in gradients if gradient is not None]
        return with_none(call_users(self._clip, present) if present else [], like=gradients)

    def _clip(self, gradients: list[Gradient]) -> list[Gradient]:
        raise NotImplementedError

    def get_config(self) -> dict[str, float]:
        """The constructor's arguments."""
        return {"limit": self.limit}

    @classmethod
    def from_config(cls, config: dict[str, float]) -> Clipping:
        """Creates the clipping from the result of `get_config`."""
        return cls(**config)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.limit:g})"


def _scaled_down(gradient: Gradient, magnitude: tf.Tensor, limit: float) -> Gradient:
    """Multiplies a gradient by `limit / magnitude` if this is below 1."""
    factor = limit / tf.maximum(magnitude, limit)
    return map_values(lambda values: values * tf.cast(factor, values.dtype), gradient)


@keras.saving.register_keras_serializable(package="multihead")
class ByValue(Clipping):
    """Limits every element to `[-limit, limit]`. Changes the gradient's direction.

    Example:
        >>> ByValue(1.0)([tf.constant([3.0, -0.5])])[0].numpy().tolist()
        [1.0, -0.5]
    """

    def _clip(self, gradients: list[Gradient]) -> list[Gradient]:
        return [map_values(lambda v: tf.clip_by_value(v, -self.limit, self.limit), g) for g in gradients]


@keras.saving.register_keras_serializable(package="multihead")
class ByNorm(Clipping):
    """Limits the norm of every variable's gradient: `g * limit / max(limit, |g|)`. Keeps its direction.

    Example:
        >>> ByNorm(1.0)([tf.constant([3.0, 4.0])])[0].numpy().round(6).tolist()
        [0.6000000238418579, 0.800000011920929]
    """

    def _clip(self, gradients: list[Gradient]) -> list[Gradient]:
        return [_scaled_down(gradient, norm(gradient), self.limit) for gradient in gradients]


@keras.saving.register_keras_serializable(package="multihead")
class ByAverageNorm(Clipping):
    """Limits the norm per element of every variable's gradient: `g * limit / max(limit, |g| / n)`, with `n` elements.

    The limit on the norm thus grows with the size of the variable. For an `IndexedSlices`, `n` is the size of the whole
    variable.

    Example:
        >>> clipped = ByAverageNorm(1.0)([tf.constant([3.0, 4.0])])
        >>> clipped[0].numpy().round(6).tolist()
        [1.2000000476837158, 1.600000023841858]
    """

    def _clip(self, gradients: list[Gradient]) -> list[Gradient]:
        return [_scaled_down(gradient, norm(gradient) / size(gradient), self.limit) for gradient in gradients]


@keras.saving.register_keras_serializable(package="multihead")
class ByGlobalNorm(Clipping):
    """Limits the norm of all gradients together: `g * limit / max(limit, |all|)`, with `|all|` the global norm.

    Keeps the direction of the update (Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural
    networks", ICML 2013).

    Example:
        >>> gradients = [tf.constant([3.0]), None, tf.constant([4.0])]
        >>> ByGlobalNorm(1.0)(gradients)[2].numpy().round(6).tolist()
        [0.800000011920929]
    """

    def _clip(self, gradients: list[Gradient]) -> list[Gradient]:
        total = norm(*gradients)
        return [_scaled_down(gradient, total, self.limit) for gradient in gradients]
