"""A head that assigns a tag to each token of a sequence."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ._checks import check_count, check_rate, check_representation
from ._recurrent import build_layer, dropout_layer


@keras.saving.register_keras_serializable(package="models")
class TokenTagger(keras.layers.Layer):
    """Logits of each source token's tag, from the encoder's outputs: an affine map at every step.

    The representation is a dict with `outputs`, float `[batch, time, width]`. The logits are float32
    `[batch, time, num_tags]`; train them with `multihead.losses.SequenceCrossentropy()`, whose targets `[batch, time]`
    are 0 at padding and at tokens without a tag.

    Args:
        num_tags: Number of tags, tag 0, which stands for no tag, included.
        dropout: Fraction of the outputs that is dropped in training.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own. Logits are always float32.

    Raises:
        ValueError: If an argument is out of its range, or the representation lacks an entry.

    Example:
        >>> tagger = TokenTagger(5)
        >>> tagger({"outputs": tf.zeros([2, 7, 16])}).shape
        TensorShape([2, 7, 5])
    """

    def __init__(self, num_tags: int, *, dropout: float = 0.0, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.num_tags = check_count("num_tags", num_tags, minimum=2)
        self.dropout = check_rate("dropout", dropout)
        self.dropout_layer = dropout_layer(self.dropout, dtype=self.dtype_policy)
        self.tags = keras.layers.Dense(num_tags, name="tags", dtype="float32")

    def build(self, representation_shape: Any) -> None:
        check_representation("representation", representation_shape, ("outputs",), type(self).__name__)
        build_layer(self.tags, None, None, representation_shape["outputs"][-1])
        self.built = True

    def call(self, representation: dict[str, Any], training: bool | None = None) -> tf.Tensor:
        return self.tags(self.dropout_layer(representation["outputs"], training=training))

    def get_config(self) -> dict[str, Any]:
        return {
            "num_tags": self.num_tags,
            "dropout": self.dropout,
            "name": self.name,
            "dtype": self.dtype_policy.name,
        }
