"""How targets and predictions fit together, and which of their axes tell elements apart."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from multihead.losses._known import CLASSES


class Elements(NamedTuple):
    """The elements of a batch, each of which has one value of a loss or counts once in a metric.

    Attributes:
        targets: The targets with the axes that the loss or metric expects.
        rank: The number of axes that tell elements apart. Further axes lie within an element, such as a row's classes.
    """

    targets: tf.Tensor
    rank: int

    @property
    def inner(self) -> list[int]:
        """The axes within an element."""
        return list(range(self.rank, self.targets.shape.rank))

    @property
    def sizes(self) -> Any:
        """How many elements there are along each axis, as numbers if they are known."""
        shape = self.targets.shape[: self.rank]
        return (
            shape
            if shape.is_fully_defined()
            else tf.shape(self.targets)[: self.rank]
            if self.inner
            else tf.shape(self.targets)
        )

    def spread(self, values: tf.Tensor) -> tf.Tensor:
        """Values for all elements, from values for the first axes of the elements.

        The number of rows must be that of the targets: XLA omits other checks, but fails in this reshape.
        """
        sizes = self.sizes
        ones = [1] * (self.rank - values.shape.rank)
        return tf.broadcast_to(tf.reshape(values, tf.concat([sizes[:1], tf.shape(values)[1:], ones], axis=0)), sizes)

    def with_inner(self, values: tf.Tensor) -> tf.Tensor:
        """Values of the elements with an axis of one for each axis within an element."""
        if not self.inner:
            return values
        return tf.reshape(values, tf.concat([tf.shape(values), [1] * len(self.inner)], axis=0))

    def classes(self, targets: tf.Tensor) -> tf.Tensor:
        """The class number of each element, from targets of the same shape: class numbers, or rows with one per class."""
        return tf.argmax(targets, axis=-1) if self.inner else targets


def with_columns(shape: tf.TensorShape) -> tf.TensorShape:
    """The shape of predictions as a loss sees them: `[batch]` is `[batch, 1]`."""
    return shape.concatenate(1) if shape.rank == 1 else shape


def aligned(targets: tf.Tensor, shape: tf.TensorShape, over: str | None) -> tf.Tensor:
    """Targets with the axes that a loss, or a metric, expects for predictions of a shape.

    Class numbers lose a last axis of one. All others get one where only that is missing: `[batch]` for `[batch, 1]`.

    Args:
        targets: The targets.
        shape: The predictions' shape, of rank 2 at least.
        over: `"elements"`, `"rows"` or `"classes"`, or None if it is not known.
    """
    change = _change_of_rank(targets.shape, shape, over)
    return tf.expand_dims(targets, -1) if change > 0 else tf.squeeze(targets, axis=-1) if change < 0 else targets


def aligned_shape(targets: tf.TensorShape, shape: tf.TensorShape, over: str | None) -> tf.TensorShape:
    """The shape of `aligned` targets of a shape."""
    change = _change_of_rank(targets, shape, over)
    return targets.concatenate(1) if change > 0 else targets[:-1] if change < 0 else targets


def _change_of_rank(targets: tf.TensorShape, shape: tf.TensorShape, over: str | None) -> int:
    if over == CLASSES:
        return -1 if targets.rank == shape.rank and targets[-1] in (1, None) else 0
    is_one = shape[-1] == 1 or (shape[-1] is None and over is not None)
    return 1 if targets.rank == shape.rank - 1 and is_one else 0
