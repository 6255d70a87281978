"""The encoder that the heads share, as a transformer."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ._blocks import EPSILON, Attended, Embedded, FeedForward
from ._checks import check_count, check_heads, check_id, check_rate, check_tokens
from ._ids import mask_of_tokens, places_of, with_a_step
from ._recurrent import build_layer


@keras.saving.register_keras_serializable(package="models")
class TransformerEncoder(keras.layers.Layer):
    """Encodes token ids with self-attention; returns what `Seq2SeqEncoder` returns.

    Each layer adds `attention(norm(x))` to its input `x`, then a feed-forward part, `W_2 gelu(W_1 norm(x))`; the outputs are
    the normalized result of the last layer. Positions are sinusoidal, so that sentences may be longer than in training. The
    layers are Keras's own (`MultiHeadAttention`, `LayerNormalization`, `Dense`, `Embedding`, `Dropout`).

    Padding may stand anywhere in a row: no token reads it, and positions count tokens, so the result of a row does not
    depend on it. A row that contains only padding counts as one token.

    Sources: Vaswani et al. (2017), arXiv 1706.03762; Xiong et al. (2020), arXiv 2002.04745, for the normalization before
    each part, which needs no warm-up of the learning rate.

    Args:
        vocabulary_size: Number of token ids, padding included.
        embedding_size: Size of a token's vector. If it is not `units`, an affine map follows.
        units: Size of the outputs.
        num_heads: Number of attention heads in a layer; it divides `units`.
        num_layers: Number of layers.
        feed_forward_units: Size of the inner layer of the feed-forward part; None for `4 * units`.
        dropout: Fraction of the embedded tokens, of the attention weights and of each part's result that is dropped in
            training.
        padding_id: The id of padding.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own.

    Raises:
        ValueError: If an argument is out of its range, or `num_heads` does not divide `units`.

    Example:
        >>> encoder = TransformerEncoder(100, embedding_size=8, units=16)
        >>> encoder(tf.constant([[5, 7, 0], [4, 0, 0]]))["final"].shape
        TensorShape([2, 16])
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_size: int,
        units: int,
        *,
        num_heads: int = 4,
        num_layers: int = 2,
        feed_forward_units: int | None = None,
        dropout: float = 0.0,
        padding_id: int = 0,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.vocabulary_size = check_count("vocabulary_size", vocabulary_size)
        self.embedding_size = check_count("embedding_size", embedding_size)
        self.units = check_count("units", units)
        self.num_heads = check_heads(units, num_heads)
        self.num_layers = check_count("num_layers", num_layers)
        self.feed_forward_units = feed_forward_units and check_count("feed_forward_units", feed_forward_units)
        self.dropout = check_rate("dropout", dropout)
        self.padding_id = check_id("padding_id", padding_id, vocabulary_size)
        policy, inner = self.dtype_policy, self.feed_forward_units or 4 * units
        self.embedded = Embedded(vocabulary_size, embedding_size, units, self.dropout, dtype=policy)
        self.attention_layers = [
            Attended(units, num_heads, self.dropout, name=f"attention_{index}", dtype=policy) for index in range(num_layers)
        ]
        self.feed_forward_layers = [FeedForward(units, inner, self.dropout, dtype=policy) for _ in range(num_layers)]
        self.norm = keras.layers.LayerNormalization(epsilon=EPSILON, name="norm", dtype=policy)

    def build(self, tokens_shape: Any) -> None:
        """Creates the weights; their shapes do not depend on the input."""
        build_layer(self.embedded, None, None)
        for attention, feed_forward in zip(self.attention_layers, self.feed_forward_layers):
            build_layer(attention, None, None, self.units)
            build_layer(feed_forward, None, None, self.units)
        build_layer(self.norm, None, None, self.units)
        self.built = True

    def call(self, tokens: tf.Tensor, training: bool | None = None) -> dict[str, Any]:
        """Encodes a batch of token ids.

        Args:
            tokens: Integer ids, `[batch, time]`.
            training: Whether dropout is active.

        Returns:
            A dict of `outputs`, float `[batch, time, units]`, zero at padding; `state`, a tuple over layers of the mean over
            the tokens of the layer's normalized result, each `[batch, units]`; `final`, `[batch, units]`, that of the last
            layer, the mean of `outputs`; and `mask`, bool `[batch, time]`, True at tokens. For a batch of time 0 the results
            have time 1.

        Raises:
            ValueError: If the tokens are not a matrix of integers, or an id is out of range.
        """
        tokens = with_a_step(check_tokens(tokens, self.vocabulary_size), self.padding_id)
        mask = mask_of_tokens(tokens, self.padding_id)
        outputs = self.embedded(tokens, places_of(mask), training=training)
        states = []
        for attention, feed_forward in zip(self.attention_layers, self.feed_forward_layers):
            outputs = feed_forward(attention(outputs, None, mask, training=training), training=training)
            normed = self.norm(outputs)
            normed = tf.where(mask[:, :, tf.newaxis], normed, tf.zeros([], normed.dtype))
            states.append(_mean(normed, mask))
        return {"outputs": normed, "state": tuple(states), "final": states[-1], "mask": mask}

    def compute_mask(self, inputs: Any, mask: Any = None) -> None:
        """None: the mask is part of the result."""
        return None

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "vocabulary_size": self.vocabulary_size,
            "embedding_size": self.embedding_size,
            "units": self.units,
            "num_heads": self.num_heads,
            "num_layers": self.num_layers,
            "feed_forward_units": self.feed_forward_units,
            "dropout": self.dropout,
            "padding_id": self.padding_id,
            "name": self.name,
            "dtype": self.dtype_policy.name,
        }


def _mean(outputs: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """The mean over the tokens, `[batch, units]`, of outputs that are zero at padding; added up in float32."""
    total = tf.reduce_sum(tf.cast(outputs, tf.float32), axis=1)
    return tf.cast(total / tf.reduce_sum(tf.cast(mask, tf.float32), axis=1, keepdims=True), outputs.dtype)
