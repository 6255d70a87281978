"""Choosing between two tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_QUICK = (tf.float32, tf.float64, tf.int32, tf.int64, tf.bool)
"""The dtypes for which the quick operation has kernels on all devices."""


def where(condition: Any, then: Any, otherwise: Any) -> tf.Tensor:
    """As `tf.where` with three arguments, but faster if the shapes match or one operand is a Python number.

    The operation of `tf.where` broadcasts, which takes it 1 to 2 microseconds for small tensors, and copies a tensor for a
    scalar condition. The one that TensorFlow had before takes 0.2 to 0.5, and copies nothing then (CPU).

    Args:
        condition: Booleans; a scalar for a choice between whole tensors.
        then: A tensor, or a number: the values where the condition holds.
        otherwise: A tensor, or a number: the other values.
    """
    if isinstance(then, (int, float)):
        otherwise = tf.convert_to_tensor(otherwise)
        then = _number(then, otherwise)
    elif isinstance(otherwise, (int, float)):
        then = tf.convert_to_tensor(then)
        otherwise = _number(otherwise, then)
    else:
        then = tf.convert_to_tensor(then)
        otherwise = tf.convert_to_tensor(otherwise, then.dtype)
    condition = tf.convert_to_tensor(condition)
    is_quick = then.dtype in _QUICK and then.shape.is_fully_defined() and condition.shape.is_fully_defined()
    if is_quick and otherwise.shape == then.shape and condition.shape in ([], then.shape):
        return tf.raw_ops.Select(condition=condition, x=then, y=otherwise)
    return tf.where(condition, then, otherwise)


def _number(value: float, like: tf.Tensor) -> tf.Tensor:
    """A number as a tensor, of the shape of another if that is known."""
    return tf.constant(value, like.dtype, like.shape if like.shape.is_fully_defined() else [])
