"""The scaling of a head's targets: its numbers are variables, learned from data or given."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.calls import keras_mask, with_keras_mask
from multihead._ground.keras import add_state
from multihead._ground.tensors import where
from multihead.losses._shapes import Elements, aligned, aligned_shape, with_columns
from multihead.scaling import ByLayer, Scaling


class Moments(NamedTuple):
    """Statistics of labels, for each column or for all, as float64 tensors or arrays of one shape.

    Attributes:
        number: The number of labels.
        mean: Their mean; 0 for none.
        squares: The sum of their squared distances from the mean.
    """

    number: Any
    mean: Any
    squares: Any

    def plus(self, other: Moments) -> Moments:
        """The statistics of the labels of both, as NumPy arrays."""
        one, two = (Moments(*(np.asarray(each) for each in moments)) for moments in (self, other))
        number = one.number + two.number
        part = two.number / np.maximum(number, 1)
        apart = two.mean - one.mean
        return Moments(number, one.mean + apart * part, one.squares + two.squares + apart**2 * one.number * part)


class TargetScaling(keras.layers.Layer):
    """The scaling of a head's targets.

    Args:
        head: The head's name, for messages.
        scaling: How the targets are scaled.

    Attributes:
        scaling: As given.
    """

    def __init__(self, head: str, scaling: Scaling) -> None:
        super().__init__(name="target_scaling", dtype="float32", trainable=False)
        self.head = head
        self.scaling = scaling
        if isinstance(scaling, ByLayer):
            self.layer = scaling.layer  # saved with this layer
        self._mean: Any = None
        self._deviation: Any = None
        self._known: Any = None

    @property
    def is_known(self) -> bool:
        """Whether mean and deviation are given, or were learned."""
        if not self.scaling.learns:
            return True
        if self._known is None:
            return False
        with tf.init_scope():
            return bool(tf.convert_to_tensor(self._known) > 0)

    @property
    def present(self) -> Scaling:
        """The scaling with the mean and the deviation as they are now; those that are not learned yet are None."""
        if not self.scaling.learns or not self.is_known:
            return self.scaling
        with tf.init_scope():
            found = [tf.convert_to_tensor(each).numpy() for each in (self._mean, self._deviation)]
        mean, deviation = (each.item() if each.size == 1 else each.tolist() for each in found)
        return type(self.scaling)(**{**self.scaling.get_config(), "mean": mean, "deviation": deviation})

    def build_for(self, targets: tf.TensorSpec, predictions: tf.TensorSpec, over: str | None) -> None:
        """Creates the variables, once.

        Args:
            targets: The spec of the head's targets.
            predictions: The spec of its predictions.
            over: What one value of the loss reads; see `multihead.losses._known`.

        Raises:
            ValueError: The number of columns does not fit the predictions, what was given, or earlier targets.
        """
        shape = with_columns(predictions.shape)
        seen = aligned_shape(targets.shape, shape, over)
        columns = seen[-1] if seen.rank == shape.rank and self.scaling.by_column else None
        wanted: tuple[int, ...] = () if columns is None else (columns,)
        if not self.scaling.learns:
            wanted = np.shape(self.scaling.mean)
        if self._mean is not None:
            wanted = tuple(self._mean.shape)
        width = wanted[0] if wanted else 1
        fits = seen.rank == shape.rank and {seen[-1], shape[-1]} <= {None, width}  # a size may be open
        if width != 1 and not fits:
            raise ValueError(
                f"`target_scaling` of head {self.head!r} must have one mean and deviation for each column of its targets, "
                f"which must be the columns of its predictions, or one for all. Received: {width} for targets of shape "
                f"{targets.shape} and predictions of shape {predictions.shape}. Pass `by_column=False`, or single numbers."
            )
        if self._mean is not None:
            return
        learns = self.scaling.learns
        mean, deviation = (0.0, 1.0) if learns else (self.scaling.mean, self.scaling.deviation)
        self._mean = self._add("mean", wanted, mean)
        self._deviation = self._add("deviation", wanted, deviation)
        self._known = self._add("known", (), 0.0 if learns else 1.0)
        self.built = True
        if isinstance(self.scaling, ByLayer):
            self._check_layer(seen)

    def _add(self, name: str, shape: Any, value: Any) -> Any:
        values = np.broadcast_to(np.asarray(value, "float64"), shape)
        return add_state(self, name, shape, keras.initializers.Constant(values), dtype="float64")

    def _check_layer(self, targets: tf.TensorShape) -> None:
        """Builds the layer of the scaling, and checks that its inverse is one."""
        sample = tf.ones([2, *(size or 1 for size in targets[1:])], tf.float64)
        back = self.scaling.undo(self.scaling.change(sample))
        if self.layer.trainable_variables:
            raise ValueError(
                f"`target_scaling` of head {self.head!r} must be a layer without trainable variables, since nothing trains "
                f"it. Received: {self.layer.name!r}. Set its `trainable = False`."
            )
        if tf.executing_eagerly() and not np.allclose(back, sample, rtol=1e-3, atol=1e-3):
            raise ValueError(
                f"`target_scaling` of head {self.head!r} must be a layer whose `inverse` gives back what it was given. "
                f"Received: {self.layer.name!r}, which makes {float(tf.reshape(back, [-1])[0]):g} of 1. Correct `inverse`."
            )

    def scale(self, targets: tf.Tensor, weights: tf.Tensor, predictions: tf.TensorSpec, over: str | None) -> tf.Tensor:
        """Scaled targets, computed in float64; 0 for those that do not count.

        Args:
            targets: Targets without missing values, `[batch, ...]`.
            weights: The weights of the loss's elements, 0 where there is no label.
            predictions: The spec of the predictions.
            over: What one value of the loss reads.

        Returns:
            Targets of the same shape, float32, or float64 if the targets or the predictions are.
        """
        values, counts = self._labelled(targets, weights, predictions, over)
        mean, deviation = self._numbers(tf.float64)
        scaled = (self.scaling.change(values) - mean) / deviation
        dtype = tf.float64 if tf.float64 in (targets.dtype, predictions.dtype) else tf.float32
        scaled = tf.cast(where(counts, scaled, tf.zeros_like(scaled)), dtype)
        return scaled if scaled.shape.rank == targets.shape.rank else tf.reshape(scaled, tf.shape(targets))

    def _labelled(
        self, targets: tf.Tensor, weights: tf.Tensor, predictions: tf.TensorSpec, over: str | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Targets in float64 with an axis of columns, and which of them count; the others are a valid label."""
        seen = aligned(targets, with_columns(predictions.shape), over)
        counts = Elements(seen, weights.shape.rank).with_inner((weights > 0) & (weights < float("inf")))
        counts = tf.broadcast_to(counts, tf.shape(seen))
        values = tf.cast(seen, tf.float64)
        return where(counts, values, tf.constant(self.scaling.valid, tf.float64)), counts

    def _numbers(self, dtype: tf.DType) -> list[tf.Tensor]:
        """Mean and deviation; before the head is built, those that are given, or 0 and 1 where only shapes matter."""
        if self._mean is None:
            given = (0.0, 1.0) if self.scaling.learns else (self.scaling.mean, self.scaling.deviation)
            return [tf.constant(each, dtype) for each in given]
        return [tf.cast(tf.convert_to_tensor(each), dtype) for each in (self._mean, self._deviation)]

    def unscale(self, predictions: tf.Tensor) -> tf.Tensor:
        """Predictions in the units of the targets: float32, or float64 if they are.

        Raises:
            ValueError: The predictions are not one floating tensor.
        """
        if not tf.is_tensor(predictions) or not predictions.dtype.is_floating:
            raise ValueError(
                f"`target_scaling` of head {self.head!r} requires predictions that are one floating tensor. Received: "
                f"{predictions}. Let the module, or its `generate`, return the scaled targets that it predicts."
            )
        mask, dtype = keras_mask(predictions), predictions.dtype
        dtype = dtype if dtype == tf.float64 else tf.float32
        mean, deviation = self._numbers(dtype)
        return with_keras_mask(self.scaling.undo(tf.cast(predictions, dtype) * deviation + mean), mask)

    def moments(self, targets: tf.Tensor, weights: tf.Tensor, predictions: tf.TensorSpec, over: str | None) -> Moments:
        """Statistics of the labels of a batch before they are standardized; the arguments are those of `scale`."""
        values, counts = self._labelled(targets, weights, predictions, over)
        shape = [-1, *self._mean.shape] if self._mean.shape.rank else [-1]
        values, counts = (tf.reshape(each, shape) for each in (self.scaling.change(values), tf.cast(counts, tf.float64)))
        number = tf.reduce_sum(counts, axis=0)
        mean = tf.math.divide_no_nan(tf.reduce_sum(values * counts, axis=0), number)
        return Moments(number, mean, tf.reduce_sum(tf.square(values - mean) * counts, axis=0))

    def learn(self, moments: Moments) -> None:
        """Takes over the mean and the deviation of labels.

        Raises:
            ValueError: There is no label, or their mean or deviation is not finite.
        """
        number, mean, squares = (np.asarray(each, "float64") for each in moments)
        deviation = np.sqrt(squares / np.maximum(number, 1))
        deviation = np.where(deviation > 0, deviation, 1.0)
        if not number.any() or not np.isfinite([mean, deviation]).all():
            received = "no label" if not number.any() else f"labels of mean {mean} and deviation {deviation}"
            raise ValueError(
                f"`target_scaling` of head {self.head!r} is learned from its labels, which must be finite. Received: "
                f"{received}. Correct the labels, or give mean and deviation: "
                f"`scaling.{type(self.scaling).__name__}(mean=..., deviation=...)`."
            )
        for variable, value in ((self._mean, mean), (self._deviation, deviation), (self._known, 1.0)):
            variable.assign(value)

    def get_config(self) -> dict[str, Any]:
        """Not used: the trainer creates this layer with the head."""
        return {}
