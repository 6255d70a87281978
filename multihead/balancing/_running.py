"""Running sums of whole gradients, one per head and encoder variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from multihead._keras import add_state, tensor_variable
from multihead.balancing._base import Balancer


class RunningBalancer(Balancer):
    """A balancer that keeps as much as `num_heads` gradients of the encoder, and counts each head's updates.

    State: `counts`, `[num_heads]` int64, and one variable `[num_heads, n_i]` float32 per gradient tensor. An idle
    head's stay. The memory is `num_heads` times that of the encoder. At the representation, whose elements belong to
    examples, there is nothing to sum over updates.
    """

    uses: tuple[str, ...] = ("gradients",)
    levels: tuple[str, ...] = ("parameters",)

    def _create_state(self, num_heads: int, sizes: list[int | None]) -> None:
        if None in sizes:
            raise ValueError(
                f"`input_shape` must tell {type(self).__name__} the numbers of parameters, for each of which it keeps "
                f"a running value. Received: sizes {sizes}. Build it with a list of (num_heads, size), one per "
                "gradient tensor."
            )
        self.counts = add_state(self, "counts", (num_heads,), dtype="int64")
        self.running = [
            add_state(self, f"running_{index}", (num_heads, size)) for index, size in enumerate(sizes) if size is not None
        ]

    def _check_gradients(self, gradients: Sequence[tf.Tensor]) -> None:
        expected = [tuple(tensor_variable(variable).shape) for variable in self.running]
        received = [tuple(rows.shape) for rows in gradients]
        if expected != received:
            raise ValueError(
                f"`gradients` must have the shapes that {type(self).__name__} was built for, {expected}. "
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
    """`[num_heads, num_heads]` float64 inner products of rows that are cut into tensors."""
    return tf.add_n([tf.matmul(rows, rows, transpose_b=True) for rows in tensors])


def prepared(gradients: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
    """Gradients in float64, `[num_heads]` booleans of the heads that have one, and whether all are finite.

    Rows of gradients that are not all finite count as idle, so that no running sum is spoilt.
    """
    wide = [tf.cast(tf.stop_gradient(rows), tf.float64) for rows in gradients]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(rows)) for rows in wide])
    has_any = tf.reduce_any([tf.reduce_any(rows != 0, axis=1) for rows in wide], axis=0)
    return wide, has_any & finite, finite


def combined(weights: tf.Tensor, tensors: Sequence[tf.Tensor], like: Sequence[Any], finite: tf.Tensor) -> list[tf.Tensor]:
    """`sum_k weights_k row_k` of each tensor, in the dtypes of `like`; NaN if the gradients were not finite."""
    weights = tf.where(finite, weights, float("nan"))
    sums = [tf.linalg.matvec(rows, weights, transpose_a=True) for rows in tensors]
    return [tf.cast(each, original.dtype) for each, original in zip(sums, like)]
