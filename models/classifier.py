"""A head that assigns a class to a sequence."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ._checks import check_count
from ._pooled import AbstractPooledHead


@keras.saving.register_keras_serializable(package="models")
class Classifier(AbstractPooledHead):
    """Class probabilities from the encoder's final state: a hidden sigmoid layer, then softmax.

    The representation is a dict with `final`, float `[batch, width]`; with `pool=True` also with `outputs`, float
    `[batch, time, width]`, and `mask`, bool `[batch, time]` with at least one True in every row. The probabilities are
    float32 `[batch, num_classes]`; train them with the loss `"sparse_categorical_crossentropy"`.

    Args:
        num_classes: Number of classes.
        hidden_units: Size of the hidden layer.
        dropout: Fraction of the features and of the hidden layer that is dropped in training.
        pool: Whether to read, in addition to the final state, the maximum of each output over the tokens.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own. Probabilities are always float32.

    Raises:
        ValueError: If an argument is out of its range, or the representation lacks an entry.

    Example:
        >>> classifier = Classifier(3)
        >>> classifier({"final": tf.zeros([2, 16])}).shape
        TensorShape([2, 3])
    """

    argument, layer = "num_classes", "classes"  # the names of the first argument and of the output layer in saved models

    def __init__(
        self,
        num_classes: int,
        *,
        hidden_units: int = 64,
        dropout: float = 0.0,
        pool: bool = False,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(hidden_units=hidden_units, dropout=dropout, pool=pool, name=name, dtype=dtype)
        setattr(self, self.argument, check_count(self.argument, num_classes, minimum=2))
        setattr(self, self.layer, keras.layers.Dense(num_classes, activation="softmax", name=self.layer, dtype="float32"))

    def build(self, representation_shape: Any) -> None:
        self.build_hidden(representation_shape, getattr(self, self.layer))

    def call(self, representation: dict[str, Any], training: bool | None = None) -> tf.Tensor:
        return getattr(self, self.layer)(self.run_hidden(representation, training))

    def get_config(self) -> dict[str, Any]:
        return {self.argument: getattr(self, self.argument), **super().get_config()}
