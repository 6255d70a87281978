"""The common part of heads that give one answer per sequence: features of the representation and a hidden layer."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ._checks import check_count, check_rate, check_representation
from ._recurrent import build_layer, dropout_layer


class AbstractPooledHead(keras.layers.Layer):
    """A hidden sigmoid layer on the final state, optionally together with the outputs' maximum over the tokens.

    A subclass adds its output layer as an attribute and calls `build_hidden` and `run_hidden`.

    Args:
        hidden_units: Size of the hidden layer.
        dropout: Fraction of the features and of the hidden layer that is dropped in training.
        pool: Whether to read, in addition to the final state, the maximum of each output over the tokens.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own.
    """

    def __init__(self, *, hidden_units: int, dropout: float, pool: bool, name: str | None, dtype: Any) -> None:
        super().__init__(name=name, dtype=dtype)
        self.hidden_units = check_count("hidden_units", hidden_units)
        self.dropout = check_rate("dropout", dropout)
        self.pool = bool(pool)
        self.dropout_layer = dropout_layer(self.dropout, dtype=self.dtype_policy)
        self.hidden = keras.layers.Dense(hidden_units, activation="sigmoid", name="hidden", dtype=self.dtype_policy)

    def build_hidden(self, representation_shape: Any, output_layer: keras.layers.Layer) -> None:
        """Creates the weights from the shapes of the representation's entries."""
        needed = ("final", "outputs", "mask") if self.pool else ("final",)
        check_representation("representation", representation_shape, needed, type(self).__name__)
        width = representation_shape["final"][-1]
        if self.pool:
            width += representation_shape["outputs"][-1]
        build_layer(self.hidden, None, width)
        build_layer(output_layer, None, self.hidden_units)
        self.built = True

    def run_hidden(self, representation: dict[str, Any], training: bool | None) -> tf.Tensor:
        """The hidden layer, `[batch, hidden_units]`."""
        features = representation["final"]
        if self.pool:
            outputs = representation["outputs"]
            tokens = representation["mask"][:, :, tf.newaxis]
            pooled = tf.reduce_max(tf.where(tokens, outputs, outputs.dtype.min), axis=1)
            features = tf.concat([features, pooled], axis=-1)
        hidden = self.hidden(self.dropout_layer(features, training=training))
        return self.dropout_layer(hidden, training=training)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments that all these heads have."""
        return {
            "hidden_units": self.hidden_units,
            "dropout": self.dropout,
            "pool": self.pool,
            "name": self.name,
            "dtype": self.dtype_policy.name,
        }
