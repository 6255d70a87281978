"""Losses as sums and counts.

A head's loss is kept as the sum over its labelled elements and their count, and divided once, at the update:
`loss = sum_i s_i * loss_i / sum_i s_i`. Sums and counts add up over slices, batches and replicas; means do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

__all__ = ["ElementLoss", "SequenceCrossentropy", "get"]


@keras.saving.register_keras_serializable(package="multihead")
class SequenceCrossentropy(keras.losses.Loss):
    """Cross-entropy of each token of a sequence, from logits; padding counts for nothing.

    `loss_bt = -sum_v q_btv * log softmax(logits_bt)_v`, with `q` one-hot at the target, or, with `label_smoothing`
    `e`, `(1 - e) * one-hot + e / V` (Szegedy et al., "Rethinking the Inception Architecture", CVPR 2016).

    Args:
        padding_id: Targets of this id are no tokens.
        label_smoothing: `e`, at least 0 and below 1.
        name: Name of the loss.

    Targets are whole numbers of shape `[batch, time]`, predictions logits of shape `[batch, time, vocabulary]`; the
    values have shape `[batch, time]`.

    Raises:
        ValueError: `label_smoothing` is not in `[0, 1)`.
    """

    def __init__(self, *, padding_id: int = 0, label_smoothing: float = 0.0, name: str = "sequence_crossentropy") -> None:
        super().__init__(name=name)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                "`label_smoothing` must be at least 0 and below 1. "
                f"Received: label_smoothing={label_smoothing!r}. Pass 0 to leave it off."
            )
        self.padding_id = padding_id
        self.label_smoothing = label_smoothing

    @property
    def ignore_label(self) -> int:
        """The label that marks an element without a label: the padding."""
        return self.padding_id

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        """Values of shape `[batch, time]`, padding not left out."""
        y_true, y_pred = tf.cast(y_true, tf.int32), tf.convert_to_tensor(y_pred)
        values = tf.nn.sparse_softmax_cross_entropy_with_logits(y_true, y_pred)
        if self.label_smoothing:
            uniform = -tf.reduce_mean(tf.nn.log_softmax(y_pred), axis=-1)
            values = (1 - self.label_smoothing) * values + self.label_smoothing * uniform
        return values

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"padding_id": self.padding_id, "label_smoothing": self.label_smoothing, "name": self.name}


class ElementLoss:
    """What the trainer uses of a loss: its values, one per labelled element, not reduced.

    Args:
        function: `function(y_true, y_pred)` giving values of the predictions' shape without its last axis.
        name: Name for messages.
        ignore_label: A label that marks an element without a label, or None.
        original: What the user passed, for the configuration.
    """

    def __init__(self, function: Callable[[Any, Any], Any], name: str, ignore_label: int | None, original: Any) -> None:
        self._function = function
        self.name = name
        self.ignore_label = ignore_label
        self.original = original

    def values(self, targets: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        """The loss of each element, float32, with shape `predictions.shape[:-1]` (`[batch]` for `[batch]` predictions).

        Raises:
            ValueError: The loss reduced its values over the batch, or has the shape of something else.
        """
        predictions = tf.convert_to_tensor(predictions)
        if predictions.dtype.is_floating and predictions.dtype != tf.float32 and predictions.dtype != tf.float64:
            predictions = tf.cast(predictions, tf.float32)
        if predictions.shape.rank == 1:
            predictions = predictions[:, tf.newaxis]
        lacks_last_axis = targets.shape.rank == predictions.shape.rank - 1 and predictions.shape[-1] == 1
        values = tf.convert_to_tensor(self._function(targets[..., tf.newaxis] if lacks_last_axis else targets, predictions))
        if values.shape.rank != value_rank(predictions.shape.rank):
            raise ValueError(
                f"The loss {self.name!r} must give one value per element, shape {predictions.shape[:-1]} for predictions "
                f"of shape {predictions.shape} and targets of shape {targets.shape}. Received: values of shape "
                f"{values.shape}. Do not reduce in the loss: the trainer sums, counts and divides."
            )
        return tf.cast(values, tf.float32)


def value_rank(prediction_rank: int) -> int:
    """The rank of a loss's values: the predictions' without the last axis, at least 1."""
    return max(prediction_rank - 1, 1)


def get(loss: Any) -> ElementLoss:
    """Makes an `ElementLoss` of whatever Keras takes as a loss.

    Args:
        loss: A name such as `"sparse_categorical_crossentropy"`, a `keras.losses.Loss` or a function
            `loss(y_true, y_pred)` that gives one value per element.

    Raises:
        ValueError: The name is unknown, or a `Loss` is set to another reduction than the mean.
        TypeError: `loss` is none of these.
    """
    original = loss
    if isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError as error:
            raise ValueError(
                f"`loss` must be a Keras loss. Received: loss={original!r}, which Keras does not know. Pass a name such "
                "as 'sparse_categorical_crossentropy' or 'mse', a `keras.losses.Loss`, or a function."
            ) from error
    if isinstance(loss, type) and issubclass(loss, keras.losses.Loss):
        loss = loss()
    if isinstance(loss, keras.losses.Loss):
        reduction = str(getattr(loss.reduction, "value", loss.reduction)).lower()
        if reduction in ("sum", "none"):
            raise ValueError(
                "`loss` must leave its reduction to the trainer, which divides each sum by its count once per update. "
                f"Received: {loss.name!r} with reduction={reduction!r}. Leave `reduction` out; to make a head count for "
                "more, pass `weight=` to `add_head`."
            )
        return ElementLoss(loss.call, str(loss.name), getattr(loss, "ignore_label", None), original)
    if callable(loss):
        return ElementLoss(loss, getattr(loss, "__name__", type(loss).__name__), None, original)
    raise TypeError(
        "`loss` must be a name, a `keras.losses.Loss` or a function of (y_true, y_pred). "
        f"Received: loss={original!r}. Pass, say, loss='mse'."
    )
