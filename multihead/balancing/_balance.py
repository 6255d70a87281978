"""Balancing in a custom training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from multihead._ground.gradients import deduplicate
from multihead.balancing._base import Balancer, check_finite_rows, get, known_by_name


def balance(
    gradients: Sequence[Sequence[Any]] | Mapping[str, Sequence[Any]],
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
            `tf.IndexedSlices` or None, as `tape.gradient` returns them. Or a dict of these by head name, such as
            `MultiHeadTrainer.head_gradients` returns.
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
    if isinstance(gradients, Mapping):
        if chosen.head_names != tuple(gradients):
            chosen.bind(list(gradients))
        gradients = list(gradients.values())
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
    for index in kept:
        _check_shapes(index, columns[index])
    matrices = [_rows(columns[index]) for index in kept]
    check_finite_rows(matrices, chosen.head_names)
    if not chosen.built:
        with tf.init_scope():
            chosen.build([tuple(matrix.shape) for matrix in matrices])
    used = chosen.used(**known_by_name(step, losses))
    results: list[tf.Tensor | None] = [None] * lengths[0]
    for index, combined in zip(kept, chosen.combine(matrices, **used)):
        like = next(gradient for gradient in columns[index] if gradient is not None)
        results[index] = tf.cast(tf.reshape(combined, _shape_of(like)), like.dtype)
    return results


def _dense(gradient: Any) -> tf.Tensor | None:
    if gradient is None:
        return None
    return tf.convert_to_tensor(deduplicate(gradient))


def _check_shapes(index: int, column: Sequence[tf.Tensor | None]) -> None:
    shapes = [gradient.shape for gradient in column if gradient is not None]
    if not all(shape.is_compatible_with(shapes[0]) for shape in shapes):
        raise ValueError(
            f"`gradients` of variable {index} must all have the variable's shape. Received: shapes "
            f"{sorted({str(shape) for shape in shapes})}. Compute each head's gradients for the same list of variables."
        )


def _shape_of(tensor: tf.Tensor) -> Any:
    return tensor.shape if tensor.shape.is_fully_defined() else tf.shape(tensor)


def _rows(column: Sequence[tf.Tensor | None]) -> tf.Tensor:
    """`[num_heads, size]`, float64 if a gradient is float64, otherwise float32; zeros for None."""
    dtype = tf.float64 if any(each is not None and each.dtype == tf.float64 for each in column) else tf.float32
    zero = tf.zeros_like(next(each for each in column if each is not None))
    return tf.stack([tf.cast(tf.reshape(zero if each is None else each, [-1]), dtype) for each in column])
