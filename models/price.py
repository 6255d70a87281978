"""The head that reads a price range from the encoded text."""

from __future__ import annotations

from typing import Any

import keras

from .classifier import Classifier


@keras.saving.register_keras_serializable(package="models")
class PriceClassifier(Classifier):
    """A `Classifier` of price ranges, with the names in its saved models: `num_ranges`, and `ranges` for the output layer.

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

    argument, layer = "num_ranges", "ranges"

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
        super().__init__(num_ranges, hidden_units=hidden_units, dropout=dropout, pool=pool, name=name, dtype=dtype)
