"""Calling the encoder: an error of its own says which inputs it was given."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from multihead._ground.calls import call_module
from multihead._ground.validation import in_short
from multihead.heads._reads import described


def call_encoder(encoder: Any, inputs: Any, *, training: bool) -> Any:
    """The representation of inputs.

    Args:
        encoder: The encoder.
        inputs: A nest of tensors.
        training: Whether it runs in training mode.

    Raises:
        ValueError: The encoder cannot take the inputs.
    """
    try:
        return call_module(encoder, inputs, training=training)
    except (ValueError, TypeError, AttributeError, tf.errors.InvalidArgumentError) as error:
        remedy = "Correct the inputs, or the encoder."
        if any(leaf.shape.rank is None for leaf in tf.nest.flatten(inputs) if hasattr(leaf, "shape")):
            remedy = "Set the shape in the data set: `dataset.map(...)` with `tf.ensure_shape`, or `output_signature`."
        raise ValueError(
            f"`encoder` must take the inputs of the data. Received: {type(encoder).__name__}, and inputs "
            f"{described(inputs)}. {remedy} The encoder says: {in_short(error)}"
        ) from error
