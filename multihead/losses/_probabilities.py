"""Whether predictions are probabilities, for losses that take nothing else."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from multihead._ground.calls import are_probabilities
from multihead._ground.tensors import in_xla, where
from multihead._ground.validation import stop_unless
from multihead.losses._known import ELEMENTS

TOLERANCE = 0.01
"""How far a prediction may be outside of the range, and the sum of a row from 1, for rounding."""


def with_checked_range(values: tf.Tensor, head: str, loss: Any, predictions: tf.Tensor) -> tf.Tensor:
    """The values of a loss, if the predictions are probabilities where the loss takes those.

    Nothing is computed for the result of a softmax or a sigmoid. Compiled by XLA, which has no errors, the values are NaN
    instead, so that the update is not applied.

    Args:
        values: The values.
        head: The head's name.
        loss: Its `ElementLoss`.
        predictions: Its predictions.

    Raises:
        ValueError: They are not; in a graph, when it runs.
    """
    largest = None if loss.known is None else loss.known.largest
    if largest is None or are_probabilities(predictions):
        return values
    predictions = tf.cast(predictions, tf.float32)
    low, high = tf.reduce_min(predictions), tf.reduce_max(predictions)
    holds = ~((low < -TOLERANCE) | (high > largest + TOLERANCE))  # what is NaN is reported with the loss
    if in_xla():
        return where(holds, values, float("nan"))
    checks = stop_unless(
        holds,
        lambda: [
            f"`loss` of head {head!r} takes probabilities, from 0 to 1. Received: {loss.name}, and predictions from ",
            low,
            " to ",
            high,
            f". {remedy(loss)}",
        ],
    )
    with tf.control_dependencies(checks):
        return tf.identity(values)


def remedy(loss: Any) -> str:
    """What to do about predictions that are no probabilities."""
    activation = "sigmoid" if loss.known.over == ELEMENTS else "softmax"
    if not loss.known.has_logits:
        return f"End the module with a {activation}."
    return f"If they are logits, pass a loss with `from_logits=True`; otherwise, end the module with a {activation}."
