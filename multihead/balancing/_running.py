"""Running averages of gradients, one per head and encoder variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.numerics import unchecked
from multihead._ground.where import where
from multihead.balancing._base import Balancer


class RunningBalancer(Balancer):
    """A balancer that stores one encoder gradient per head, and counts each head's updates.

    State: `counts`, `[num_heads]` int64, and one variable `[num_heads, n_i]` float32 per gradient tensor. The state of an
    idle head does not change. It needs `num_heads` times the memory of the encoder. It works only at the parameters,
    because the elements of a representation belong to examples and cannot be averaged over updates.
    """

    uses: tuple[str, ...] = ("gradients",)
    levels: tuple[str, ...] = ("parameters",)

    def create_state(self, num_heads: int) -> None:
        if None in self.sizes:
            raise ValueError(
                f"`input_shape` must contain the numbers of parameters for {type(self).__name__}, which stores running "
                f"gradients. Received: sizes {list(self.sizes)}. Build it with a list of (num_heads, size), one per "
                "gradient tensor."
            )
        self.counts = self.add_state("counts", (num_heads,), dtype="int64")
        self.running = [
            self.add_state(f"running_{index}", (num_heads, size))
            for index, size in enumerate(self.sizes)
            if size is not None
        ]

    def _check_gradients(self, gradients: Sequence[tf.Tensor]) -> None:
        expected = [tuple(tensor_variable(variable).shape) for variable in self.running]
        received = [tuple(rows.shape) for rows in gradients]
        if expected != received:
            raise ValueError(
                f"`gradients` must have the shapes for which {type(self).__name__} was built, {expected}. "
                f"Received: {received}. Use one balancer per encoder."
            )

    def _count(self, active: tf.Tensor) -> tf.Tensor:
        """Counts this update for the active heads and returns each head's count, `[num_heads]` float64."""
        counts = tensor_variable(self.counts)
        counts.assign_add(tf.cast(active, tf.int64))
        return tf.cast(tf.convert_to_tensor(counts), tf.float64)

    def _read(self) -> list[tf.Tensor]:
        return [tf.cast(tf.convert_to_tensor(tensor_variable(each)), tf.float64) for each in self.running]

    def _write(self, values: Sequence[tf.Tensor]) -> None:
        for variable, value in zip(self.running, values):
            tensor_variable(variable).assign(tf.cast(value, tf.float32))


def gramian_of(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """`[num_heads, num_heads]` float64 inner products of rows that are split into tensors."""
    return tf.add_n([tf.matmul(rows, rows, transpose_b=True) for rows in tensors])


def prepared(gradients: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
    """Gradients in float64, `[num_heads]` booleans of the active heads, and whether all gradients are finite.

    If a gradient is not finite, all heads are treated as idle, so that running averages stay finite.
    """
    wide = [tf.cast(tf.stop_gradient(rows), tf.float64) for rows in gradients]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(rows)) for rows in wide])
    has_any = tf.reduce_any([tf.reduce_any(rows != 0, axis=1) for rows in wide], axis=0)
    return wide, has_any & finite, finite


def combined(
    weights: tf.Tensor, tensors: Sequence[tf.Tensor], originals: Sequence[Any], finite: tf.Tensor
) -> list[tf.Tensor]:
    """`sum_k weights_k row_k` of each tensor, in the dtypes of `originals`; NaN if the gradients are not finite."""
    with unchecked():
        weights = where(finite, weights, float("nan"))
    sums = [tf.linalg.matvec(rows, weights, transpose_a=True) for rows in tensors]
    return [tf.cast(each, original.dtype) for each, original in zip(sums, originals)]
