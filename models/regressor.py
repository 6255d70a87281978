"""A head that predicts numbers for a sequence."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ._checks import check_count
from ._pooled import AbstractPooledHead


@keras.saving.register_keras_serializable(package="models")
class Regressor(AbstractPooledHead):
    """Numbers from the encoder's final state: a hidden sigmoid layer, then an affine map.

    The representation is a dict with `final`, float `[batch, width]`; with `pool=True` also with `outputs`, float
    `[batch, time, width]`, and `mask`, bool `[batch, time]` with at least one True in every row. The predictions are
    float32 `[batch, num_outputs]`; train them with a loss such as `"mse"`. Scale targets to a standard deviation of
    about 1: otherwise the head's loss is in the units of its targets, squared.

    Args:
        num_outputs: Number of predicted numbers.
        hidden_units: Size of the hidden layer.
        dropout: Fraction of the features and of the hidden layer that is dropped in training.
        pool: Whether to read, in addition to the final state, the maximum of each output over the tokens.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own. Predictions are always float32.

    Raises:
        ValueError: If an argument is out of its range, or the representation lacks an entry.

    Example:
        >>> regressor = Regressor()
        >>> regressor({"final": tf.zeros([2, 16])}).shape
        TensorShape([2, 1])
    """

    def __init__(
        self,
        num_outputs: int = 1,
        *,
        hidden_units: int = 64,
        dropout: float = 0.0,
        pool: bool = False,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(hidden_units=hidden_units, dropout=dropout, pool=pool, name=name, dtype=dtype)
        self.num_outputs = check_count("num_outputs", num_outputs)
        self.numbers = keras.layers.Dense(num_outputs, name="numbers", dtype="float32")

    def build(self, representation_shape: Any) -> None:
        self.build_hidden(representation_shape, self.numbers)

    def call(self, representation: dict[str, Any], training: bool | None = None) -> tf.Tensor:
        return self.numbers(self.run_hidden(representation, training))

    def get_config(self) -> dict[str, Any]:
        return {"num_outputs": self.num_outputs, **super().get_config()}
