"""The head that reads a price range from the encoded text."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ._checks import check_count
from ._pooled import AbstractPooledHead


@keras.saving.register_keras_serializable(package="models")
class PriceClassifier(AbstractPooledHead):
    """A `Classifier` whose classes are price ranges, with the class name and weight names of earlier saved models.

    Args:
        num_ranges: Number of price ranges.
        hidden_units: Size of the hidden layer.
        dropout: Fraction of the features and of the hidden layer that is dropped in training.
        pool: Whether to read, in addition to the final state, the maximum of each output over the tokens.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own. Probabilities are always float32.

    Raises:
        ValueError: If an argument is out of its range, or the representation lacks an entry.
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
        super().__init__(hidden_units=hidden_units, dropout=dropout, pool=pool, name=name, dtype=dtype)
        self.num_ranges = check_count("num_ranges", num_ranges, minimum=2)
        self.ranges = keras.layers.Dense(num_ranges, activation="softmax", name="ranges", dtype="float32")

    def build(self, representation_shape: Any) -> None:
        self.build_hidden(representation_shape, self.ranges)

    def call(self, representation: dict[str, Any], training: bool | None = None) -> tf.Tensor:
        return self.ranges(self.run_hidden(representation, training))

    def get_config(self) -> dict[str, Any]:
        return {"num_ranges": self.num_ranges, **super().get_config()}
