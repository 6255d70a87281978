"""The head that reads a price range off the encoded text."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ._checks import check_count, check_rate, check_representation
from ._recurrent import build_layer, dropout


@keras.saving.register_keras_serializable(package="models")
class PriceClassifier(keras.layers.Layer):
    """Price ranges from the final hidden state: a hidden sigmoid layer, then softmax.

    Args:
        num_ranges: Number of price ranges.
        hidden_units: Size of the hidden layer.
        dropout: Share of the inputs and of the hidden layer that is dropped in training.
        pool: Whether to read, beside the final state, the largest value of each output over the tokens.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own. Probabilities are float32 in any case.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        num_ranges: int,
        *,
        hidden_units: int = 64,
        dropout: float = 0.0,
        pool: bool = False,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.num_ranges = check_count("num_ranges", num_ranges, minimum=2)
        self.hidden_units = check_count("hidden_units", hidden_units)
        self.dropout = check_rate("dropout", dropout)
        self.pool = bool(pool)
        self.hidden = keras.layers.Dense(hidden_units, activation="sigmoid", name="hidden", dtype=self.dtype_policy)
        self.ranges = keras.layers.Dense(num_ranges, activation="softmax", name="ranges", dtype="float32")

    def build(self, representation_shape: Any) -> None:
        """Creates the weights from the shape of the representation's entries."""
        needed = ("final", "outputs", "mask") if self.pool else ("final",)
        check_representation("representation", representation_shape, needed, type(self).__name__)
        width = representation_shape["final"][-1]
        if self.pool:
            width += representation_shape["outputs"][-1]
        build_layer(self.hidden, None, width)
        build_layer(self.ranges, None, self.hidden_units)
        self.built = True

    def call(self, representation: dict[str, Any], training: bool | None = None) -> tf.Tensor:
        """Probabilities of the price ranges.

        Args:
            representation: A dict with `final`, float `[batch, width]`; with `pool=True` also `outputs`, float
                `[batch, time, width]`, and `mask`, bool `[batch, time]` with a True in every row.
            training: Whether dropout is active.

        Returns:
            Probabilities, float32 `[batch, num_ranges]`.

        Raises:
            ValueError: If an entry is missing.
        """
        features = representation["final"]
        if self.pool:
            outputs = representation["outputs"]
            tokens = representation["mask"][:, :, tf.newaxis]
            pooled = tf.reduce_max(tf.where(tokens, outputs, outputs.dtype.min), axis=1)
            features = tf.concat([features, pooled], axis=-1)
        hidden = self.hidden(dropout(features, self.dropout, training))
        return self.ranges(dropout(hidden, self.dropout, training))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "num_ranges": self.num_ranges,
            "hidden_units": self.hidden_units,
            "dropout": self.dropout,
            "pool": self.pool,
            "name": self.name,
            "dtype": self.dtype_policy.name,
        }
