"""The blocks of a transformer, from Keras's layers: each normalizes its input, and adds its result to it.

Source: Vaswani et al. (2017), arXiv 1706.03762, with the normalization before each part, as in Xiong et al. (2020),
arXiv 2002.04745, which trains without a warm-up of the learning rate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ._recurrent import Projections, attention_layer, build_attention, build_layer, dropout_layer

EPSILON = 1e-6


class Cache(NamedTuple):
    """Keys and values of one layer, each `[rows, time, heads, size]`."""

    keys: tf.Tensor
    values: tf.Tensor


class StepMemory(NamedTuple):
    """What the steps of decoding read of the encoder.

    Attributes:
        caches: Keys and values of each layer, `[batch, source time, heads, size]`.
        bias: Added to the scores, `[batch, 1, 1, source time]`: 0 at tokens, a very large negative number at padding.
    """

    caches: tuple[Cache, ...]
    bias: tf.Tensor


class Embedded(keras.layers.Layer):
    """Token vectors, mapped to `units` if they have another size, with sinusoidal positions added, and dropout.

    Position `t` adds `sin(t r_i)` in the first half of the units and `cos(t r_i)` in the second, where `r_i` falls from 1 to
    1/10000 in equal ratios. There is no limit to the length.

    Args:
        vocabulary_size: Number of token ids.
        embedding_size: Size of a token's vector.
        units: Size of the result.
        dropout: Fraction of the result that is dropped in training.
        dtype: Dtype policy.
    """

    def __init__(self, vocabulary_size: int, embedding_size: int, units: int, dropout: float, *, dtype: Any) -> None:
        super().__init__(name="embedded", dtype=dtype)
        self.units = units
        self.embedding = keras.layers.Embedding(vocabulary_size, embedding_size, name="embedding", dtype=dtype)
        self.embedding_size = embedding_size
        self.map_layer = None
        if embedding_size != units:
            self.map_layer = keras.layers.Dense(units, name="map", dtype=dtype)
        self.dropout_layer = dropout_layer(dropout, dtype=dtype)

    def build(self, ids_shape: Any) -> None:
        """Creates the weights; their shapes do not depend on the input."""
        build_layer(self.embedding, None, None)
        if self.map_layer is not None:
            build_layer(self.map_layer, None, None, self.embedding_size)
        self.built = True

    def call(self, ids: tf.Tensor, places: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Vectors `[batch, time, units]` of ids `[batch, time]` at integer places `[batch, time]`, or `[1, time]`."""
        vectors = self.embedding(ids)
        if self.map_layer is not None:
            vectors = self.map_layer(vectors)
        # The initial vectors are small: in this scale they are about as large as the positions.
        vectors *= tf.cast(tf.sqrt(float(self.units)), vectors.dtype)
        return self.dropout_layer(vectors + tf.cast(positions(places, self.units), vectors.dtype), training=training)


def positions(places: tf.Tensor, units: int) -> tf.Tensor:
    """Sinusoidal positions, float32 `[..., units]`, of places `[...]`."""
    half = (units + 1) // 2
    rates = 10000.0 ** -(tf.range(half, dtype=tf.float32) / max(1, half - 1))
    angles = tf.cast(places, tf.float32)[..., tf.newaxis] * rates
    return tf.concat([tf.sin(angles), tf.cos(angles)], axis=-1)[..., :units]


class FeedForward(keras.layers.Layer):
    """`x + W_2 gelu(W_1 norm(x) + b_1) + b_2`, at each position.

    Args:
        units: Size of the input and of the result.
        inner_units: Size of the layer between.
        dropout: Fraction of the added part that is dropped in training.
        dtype: Dtype policy.
    """

    def __init__(self, units: int, inner_units: int, dropout: float, *, dtype: Any) -> None:
        super().__init__(name="feed_forward", dtype=dtype)
        self.sizes = units, inner_units
        self.norm = keras.layers.LayerNormalization(epsilon=EPSILON, name="norm", dtype=dtype)
        self.inner = keras.layers.Dense(inner_units, activation="gelu", name="inner", dtype=dtype)
        self.outer = keras.layers.Dense(units, name="outer", dtype=dtype)
        self.dropout_layer = dropout_layer(dropout, dtype=dtype)

    def build(self, shape: Any) -> None:
        """Creates the weights."""
        units, inner_units = self.sizes
        build_layer(self.norm, None, None, units)
        build_layer(self.inner, None, None, units)
        build_layer(self.outer, None, None, inner_units)
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """The result, `[batch, time, units]`."""
        return inputs + self.dropout_layer(self.outer(self.inner(self.norm(inputs))), training=training)


class Attended(keras.layers.Layer):
    """`x + attention(norm(x), memory)`; the memory is `norm(x)` itself if none is passed.

    Args:
        units: Size of the input and of the result.
        num_heads: Number of attention heads, each of size `units / num_heads`.
        dropout: Fraction of the attention weights, and of the added part, that is dropped in training.
        name: Name of the layer.
        dtype: Dtype policy.
    """

    def __init__(self, units: int, num_heads: int, dropout: float, *, name: str, dtype: Any) -> None:
        super().__init__(name=name, dtype=dtype)
        self.units = units
        self.norm = keras.layers.LayerNormalization(epsilon=EPSILON, name="norm", dtype=dtype)
        self.attention = attention_layer(num_heads, units // num_heads, dropout, dtype=dtype)
        self.dropout_layer = dropout_layer(dropout, dtype=dtype)
        self.scale = (units // num_heads) ** -0.5

    def build(self, memory_shape: Any) -> None:
        """Creates the weights for a memory of a shape."""
        build_layer(self.norm, None, None, self.units)
        build_attention(self.attention, self.units, memory_shape[-1])
        self.built = True

    def call(
        self,
        inputs: tf.Tensor,
        memory: tf.Tensor | None = None,
        readable: tf.Tensor | None = None,
        causal: bool = False,
        training: bool | None = None,
    ) -> tf.Tensor:
        """The result, `[batch, time, units]`.

        Args:
            inputs: `[batch, time, units]`.
            memory: `[batch, memory time, width]`, or None.
            readable: True where the memory may be read, `[batch, memory time]`, or None for everywhere.
            causal: Whether a position reads only itself and earlier ones.
            training: Whether dropout is active.
        """
        query = self.norm(inputs)
        attended = self.attention(
            query,
            query if memory is None else memory,
            attention_mask=None if readable is None else readable[:, tf.newaxis, :],
            use_causal_mask=causal,
            training=training,
        )
        return inputs + self.dropout_layer(attended, training=training)

    def weights_of(self, inputs: tf.Tensor, memory: tf.Tensor, readable: tf.Tensor) -> tf.Tensor:
        """Attention weights, the mean over heads, `[batch, time, memory time]`."""
        _, weights = self.attention(
            self.norm(inputs),
            memory,
            attention_mask=readable[:, tf.newaxis, :],
            return_attention_scores=True,
            training=False,
        )
        return tf.reduce_mean(weights, axis=1)

    def cache(self, memory: tf.Tensor) -> Cache:
        """Keys and values of a memory `[batch, memory time, width]`."""
        layers = Projections(self.attention)
        return Cache(layers.key(memory), layers.value(memory))

    def step(self, inputs: tf.Tensor, normed: tf.Tensor, cache: Cache, bias: tf.Tensor) -> tf.Tensor:
        """What `call` returns for one position per row, from keys and values that are stored.

        Args:
            inputs: `[examples, rows, units]`: the rows of an example read the same keys and values.
            normed: The normalized inputs, `[examples, rows, units]`.
            cache: `[examples, time, heads, size]`.
            bias: Added to the scores, `[examples, 1, 1, time]`.

        Returns:
            `[examples, rows, units]`.
        """
        layers = Projections(self.attention)
        query = layers.query(normed)
        query *= tf.cast(self.scale, query.dtype)
        scores = tf.einsum("brhs,bths->bhrt", query, cache.keys) + bias
        contexts = tf.einsum("bhrt,bths->brhs", tf.nn.softmax(scores), cache.values)
        return inputs + layers.output(contexts)


def bias_of(mask: tf.Tensor, dtype: Any) -> tf.Tensor:
    """The bias of scores, `[batch, 1, 1, time]`: 0 where the mask is True, otherwise half of the lowest number."""
    dtype = tf.as_dtype(dtype)
    lowest = tf.constant(0.5 * float(dtype.min), dtype)
    return tf.where(mask[:, tf.newaxis, tf.newaxis, :], tf.zeros([], dtype), lowest)
