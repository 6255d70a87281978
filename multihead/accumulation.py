"""Gradient accumulation for custom training loops. In the trainer, use `compile(gradient_accumulation_steps=)`."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from multihead._ground.replicas import all_reduce_sum
from multihead._ground.tensors import deduplicate, in_dtype, precision_of, scaled
from multihead._ground.types import Gradient, Tensor, Variable
from multihead._ground.validation import check_choice, stop_unless

__all__ = ["GradientAccumulator"]


class GradientAccumulator(tf.Module):
    """Accumulates gradients over calls, in a custom training loop.

    With gradients `g_1 .. g_T` and counts `n_1 .. n_T` since the last reset, `mean()` is `sum_t n_t g_t / sum_t n_t`:
    the gradient of the mean over all elements if each `g_t` is the gradient of the mean over `n_t` of them. This holds
    after every call, for any sizes. With `momentum` `m`, it is the exponential running average
    `sum_t m^(T-t) n_t g_t / sum_t m^(T-t) n_t` instead.

    Sums are dense, have the variables' shapes, and are float32 (float64 for float64 variables). If the accumulator is
    created in the scope of a `tf.distribute` strategy and used in its replicas, each replica adds its own gradients, and
    `mean()` is over all replicas.

    Args:
        variables: The variables that the gradients belong to.
        momentum: None for the plain mean, or a number of at least 0 and below 1.

    Raises:
        ValueError: There is no variable, or `momentum` is out of range.

    Example:
        >>> weight = tf.Variable([0.0])
        >>> accumulator = GradientAccumulator([weight])
        >>> accumulator.add([tf.constant([1.0])], count=90)
        >>> accumulator.add([tf.constant([3.0])], count=10)
        >>> round(float(accumulator.mean()[0][0]), 6)
        1.2
        >>> accumulator.reset()
    """

    def __init__(self, variables: Sequence[Variable], *, momentum: float | None = None) -> None:
        super().__init__(name="gradient_accumulator")
        if not variables:
            raise ValueError(
                "`variables` must not be empty. Received: no variable. Pass the `trainable_variables` of a built model."
            )
        if momentum is not None and not 0 <= momentum < 1:
            raise ValueError(
                "`momentum` must be None or at least 0 and below 1. "
                f"Received: momentum={momentum!r}. Pass None for the plain mean."
            )
        self._momentum = momentum
        options = {
            "trainable": False,
            "synchronization": tf.VariableSynchronization.ON_READ,
            "aggregation": tf.VariableAggregation.SUM,
        }
        dtypes = [precision_of([tf.as_dtype(variable.dtype)]) for variable in variables]
        zeros = [tf.zeros(variable.shape, dtype) for variable, dtype in zip(variables, dtypes)]
        self._sums = [tf.Variable(initial, **options) for initial in zeros]
        self._count = tf.Variable(tf.zeros([], precision_of(dtypes)), **options)
        self._given = tf.Variable(tf.zeros([len(zeros)]), **options)  # the numbers of gradients of the variables

    @property
    def count(self) -> tf.Tensor:
        """The sum of the counts since the last reset, in the sums' widest dtype; over all replicas if read outside them."""
        return tf.convert_to_tensor(self._count)

    def add(self, gradients: Sequence[Gradient], count: Tensor = 1.0, *, reduction: str = "mean") -> None:
        """Adds one call's gradients.

        Args:
            gradients: One gradient per variable: dense, `tf.IndexedSlices` (rows with the same index are summed), or None.
            count: The number of elements they come from, or the sum of their weights; at least 0.
            reduction: `"mean"` for gradients of a mean over these elements, `"sum"` for gradients of a sum.

        Raises:
            ValueError: The numbers of gradients and variables differ, `reduction` is neither, or `count` is negative.
        """
        if len(gradients) != len(self._sums):
            raise ValueError(
                f"`gradients` must contain one gradient, or None, per variable, {len(self._sums)} in total. "
                f"Received: {len(gradients)}. Keep the Nones that `tape.gradient` returns."
            )
        check_choice("reduction", reduction, ("mean", "sum"))
        count = in_dtype(count, self._count.dtype)
        parts = ["`count` must be a finite number of at least 0. Received: ", count, ". Pass the number of elements."]
        with tf.control_dependencies(stop_unless((count >= 0) & tf.math.is_finite(count), lambda: parts)):
            count = tf.identity(count)
        if self._momentum is not None:
            for state in (*self._sums, self._count):
                state.assign(state * in_dtype(self._momentum, state.dtype))
        for total, gradient in zip(self._sums, gradients):
            if gradient is None:
                continue
            weighted = scaled(deduplicate(gradient), count if reduction == "mean" else tf.ones([]))
            if isinstance(weighted, tf.IndexedSlices):
                total.scatter_add(tf.IndexedSlices(tf.cast(weighted.values, total.dtype), weighted.indices))
            else:
                total.assign_add(tf.cast(weighted, total.dtype))
        self._count.assign_add(count)
        self._given.assign_add(tf.constant([0.0 if gradient is None else 1.0 for gradient in gradients]))

    def mean(self, *, part: bool = False) -> list[Gradient]:
        """The mean of the gradients added since the last reset.

        Args:
            part: In a replica, return only this replica's part of the mean; the parts add up to the mean. Use this with
                optimizers that sum over replicas themselves, like those of Keras.

        Returns:
            One dense gradient per variable. In eager mode, None for a variable without gradients; in a graph, zeros
            instead. Zeros if the counts are 0.
        """
        sums: list[tf.Tensor] = [tf.convert_to_tensor(total) for total in self._sums]
        count, numbers = (all_reduce_sum(tf.convert_to_tensor(variable)) for variable in (self._count, self._given))
        sums = sums if part else all_reduce_sum(sums)
        means: list[Gradient] = [tf.math.divide_no_nan(total, tf.cast(count, total.dtype)) for total in sums]
        if tf.executing_eagerly():
            means = [mean if number else None for mean, number in zip(means, numbers.numpy())]
        return means

    def reset(self) -> None:
        """Sets all sums and counts to zero."""
        for state in (*self._sums, self._count, self._given):
            state.assign(tf.zeros(state.shape, state.dtype))
