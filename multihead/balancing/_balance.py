"""Balancing in a custom training loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from multihead._ground.gradients import deduplicate
from multihead.balancing._base import Balancer, check_finite_rows, get, known_by_name


def balance(
    gradients: Sequence[Sequence[Any]],
    balancer: Balancer | str,
    *,
    step: Any = None,
    losses: Any = None,
) -> list[tf.Tensor | None]:
    """Combines the heads' gradients of shared variables, in a custom training loop.

    Take each head's gradients of the shared variables, combine them here, and apply the result together with the heads'
    gradients of their own variables. Balance once per update, after accumulating over micro-batches and reducing over
    replicas: balancing is not linear.

    Args:
        gradients: One list per head, each with one gradient per shared variable, in the same order: dense tensors,
            `tf.IndexedSlices` or None, as `tape.gradient` returns them.
        balancer: A balancer or its name. If the balancer has state, pass the same instance each time.
        step: The number of updates applied so far, for balancers that use it (0 if None).
        losses: `[num_heads]` losses, for balancers that use them.

    Returns:
        One dense gradient per variable, with the variable's shape and the gradients' dtype; None if every head's gradient
        is None.

    Raises:
        ValueError: The lists differ in length, a variable's gradients differ in shape or, in eager mode, a gradient is not
            finite; the message names the head.

    Example:
        >>> first = [tf.constant([-4.0, 1.0]), tf.constant([[1.0]])]
        >>> second = [tf.constant([6.0, 1.0]), tf.constant([[1.0]])]
        >>> balanced = balance([first, second], "mgda")
        >>> [gradient.numpy().tolist() for gradient in balanced]
        [[0.0, 1.0], [[1.0]]]
    """
    chosen = get(balancer)
    if chosen is None:
        raise ValueError("`balancer` must be a balancer or its name. Received: None. Pass 'sum' for the plain sum.")
    lengths = [len(row) for row in gradients]
    if not lengths or len(set(lengths)) > 1:
        raise ValueError(
            "`gradients` must be one list per head, each with one gradient (or None) per shared variable. "
            f"Received: lists of lengths {lengths}. Compute each head's gradients for the same list of variables."
        )
    columns = [[_dense(gradient) for gradient in column] for column in zip(*gradients)]
    kept = [index for index, column in enumerate(columns) if any(gradient is not None for gradient in column)]
    if not kept:
        return [None] * lengths[0]
    shapes = [_common_shape(index, columns[index]) for index in kept]
    matrices = [_rows(columns[index], shape) for index, shape in zip(kept, shapes)]
    check_finite_rows(matrices, chosen.head_names)
    if not chosen.built:
        with tf.init_scope():
            chosen.build([tuple(matrix.shape) for matrix in matrices])
    used = chosen.used(**known_by_name(step, losses))
    results: list[tf.Tensor | None] = [None] * lengths[0]
    for index, shape, combined in zip(kept, shapes, chosen.combine(matrices, **used)):
        dtype = next(gradient.dtype for gradient in columns[index] if gradient is not None)
        results[index] = tf.cast(tf.reshape(combined, shape), dtype)
    return results


def _dense(gradient: Any) -> tf.Tensor | None:
    if gradient is None:
        return None
    return tf.convert_to_tensor(deduplicate(gradient))


def _common_shape(index: int, column: Sequence[tf.Tensor | None]) -> tf.TensorShape:
    shapes = {tuple(gradient.shape) for gradient in column if gradient is not None}
    if len(shapes) > 1 or None in next(iter(shapes)):
        raise ValueError(
            f"`gradients` of variable {index} must all have the variable's static shape. "
            f"Received: shapes {sorted(shapes, key=str)}. Compute each head's gradients for the same list of variables."
        )
    return tf.TensorShape(shapes.pop())


def _rows(column: Sequence[tf.Tensor | None], shape: tf.TensorShape) -> tf.Tensor:
    """`[num_heads, size]`, float64 if a gradient is float64, otherwise float32; zeros for None."""
    dtype = tf.float64 if any(each is not None and each.dtype == tf.float64 for each in column) else tf.float32
    size = shape.num_elements()
    return tf.stack(
        [tf.zeros([size], dtype) if each is None else tf.cast(tf.reshape(each, [size]), dtype) for each in column]
    )
