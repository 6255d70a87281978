"""Updates of large variables by TensorFlow's own operations for whole updates, which go through memory once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from multihead._ground.graphs import in_xla
from multihead._ground.keras import Gradient, tensor_variable

LARGE = 2**16
"""The number of elements from which these operations are faster: for fewer, starting threads takes longer."""

_DTYPES = (tf.float32, tf.float64)

_CLOSE = 1e-4
"""How far `1 - beta` may be from that of Keras, relative to it, for the learning rate to make up for it."""


def is_large(variable: tf.Variable) -> bool:
    """Whether a variable is updated faster by one operation than by those of Keras, which XLA joins itself."""
    size = variable.shape.num_elements()
    return variable.dtype in _DTYPES and size is not None and size >= LARGE and not in_xla()


def adam(
    optimizer: Any, gradient: Gradient, variable: tf.Variable, averages: Sequence[tf.Variable], rate: tf.Tensor
) -> bool:
    """An update of Adam or AdamW, up to rounding that of Keras, in float64 bit for bit (CPU).

    In float32 the average of squares is within `_CLOSE` of that of Keras: see `_as_in_keras`. The arguments are those of
    `sgd`, with the averages of the gradients and of their squares.

    Returns:
        Whether it was done: not with `amsgrad`, nor where the constants do not allow it.
    """
    dtype, constants = variable.dtype, (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon)
    if optimizer.amsgrad or not all(isinstance(each, (int, float)) for each in constants):
        return False
    if not all(abs(ours - theirs) < _CLOSE * theirs for ours, theirs in _shares(optimizer, dtype)):
        return False
    if isinstance(gradient, tf.IndexedSlices):  # Keras, too, updates all rows
        gradient = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])
    number = tf.cast(tensor_variable(optimizer.iterations) + 1, tf.float64)
    first, second, epsilon = (tf.constant(each, dtype) for each in constants)
    mean, mean_square = averages
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=mean.handle,
        v=mean_square.handle,
        beta1_power=tf.pow(tf.cast(optimizer.beta_1, dtype), tf.cast(number, dtype)),
        beta2_power=tf.pow(tf.cast(optimizer.beta_2, dtype), tf.cast(number, dtype)),
        lr=_as_in_keras(rate, optimizer, number),
        beta1=first,
        beta2=second,
        epsilon=epsilon,
        grad=gradient,
    )
    return True


def _as_in_keras(rate: tf.Tensor, optimizer: Any, number: tf.Tensor) -> tf.Tensor:
    """The learning rate with which the operation's updates are those of Keras.

    The operation computes `1 - beta` in the variable's dtype; for 0.999 in single precision it is 1.3e-5 less than that of
    Keras, which rounds it from double precision. An average of equal values is `1 - beta**number` times the value.

    Args:
        rate: The learning rate, in the variable's dtype.
        optimizer: Adam.
        number: The number of this update, from 1, float64.
    """
    if rate.dtype == tf.float64:
        return rate
    grown = [
        [1 - tf.pow(tf.constant(1 - each, tf.float64), number) for each in pair] for pair in _shares(optimizer, rate.dtype)
    ]
    of_mean, of_square = (ours / theirs for ours, theirs in grown)
    return tf.cast(tf.cast(rate, tf.float64) * tf.sqrt(of_square) / of_mean, rate.dtype)


def _shares(optimizer: Any, dtype: tf.DType) -> list[tuple[float, float]]:
    """`1 - beta_1` and `1 - beta_2`, each as the operation and as Keras computes it."""
    number = dtype.as_numpy_dtype
    return [(float(number(1) - number(beta)), float(number(1 - beta))) for beta in (optimizer.beta_1, optimizer.beta_2)]


def sgd(optimizer: Any, gradient: Gradient, variable: tf.Variable, averages: Sequence[tf.Variable], rate: tf.Tensor) -> bool:
    """An update of SGD, bit for bit that of Keras (CPU).

    Args:
        optimizer: The built optimizer, without loss scaling.
        gradient: The gradient, in the variable's dtype, without duplicate rows if it is sparse.
        variable: The variable.
        averages: Its momentum, if the optimizer has one.
        rate: The learning rate, a scalar in the variable's dtype.

    Returns:
        Whether it was done: not for sparse gradients, of which Keras updates only the rows.
    """
    if isinstance(gradient, tf.IndexedSlices):
        return False
    if not averages:  # Keras 3 without momentum
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
        return True
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=averages[0].handle,
        lr=rate,
        grad=gradient,
        momentum=tf.cast(optimizer.momentum, variable.dtype),
        use_nesterov=bool(optimizer.nesterov),
    )
    return True
