"""Copying words of the source: a mixture of generating and pointing."""

from __future__ import annotations

from typing import NamedTuple

import keras
import tensorflow as tf

from ._recurrent import build_layer

_LEAST = 1e-30
"""The least probability whose logarithm is taken."""


class PointerMemory(NamedTuple):
    """What a pointer reads, prepared once per batch.

    Attributes:
        keys: Projections of the encoder outputs and the ids' embeddings, float32 `[batch, source time, units]`.
        mask: True at tokens, `[batch, source time]`.
        ids: One-hot ids of the source tokens in the vocabulary of the targets, float32 `[batch, source time, vocabulary]`.
    """

    keys: tf.Tensor
    mask: tf.Tensor
    ids: tf.Tensor


class Pointer(keras.layers.Layer):
    """The pointer of a pointer-generator network.

    With the vector `v` of a step, the id `x_s` of source step `s` and its embedding `e(x_s)` in the decoder, the key
    `k_s = W [h_s; e(x_s)]`, and the decoder's own distribution `P_vocabulary`:

        P(w) = p P_vocabulary(w) + (1 - p) sum_{s: x_s = w} a_s,   p = sigmoid(u . v + b),   a = softmax(v . k_s)

    The last ids of the vocabulary, which `P_vocabulary` does not have, can only be copied.

    Source: See, Liu and Manning (2017), arXiv 1704.04368, equations 8 and 9; unlike there, the weights `a` are not those of
    the decoder's attention but have keys of their own, as in Gu et al. (2016), arXiv 1603.06393. So `P` depends on the
    step's vector alone, whatever computes it. The embeddings tell apart what the encoder cannot: words unknown to it.

    Args:
        vocabulary_size: Number of ids, those that can only be copied included.
        units: Size of the vectors.
        name: Name of the layer.
    """

    def __init__(self, vocabulary_size: int, units: int, *, name: str | None = None) -> None:
        super().__init__(name=name, dtype="float32")
        self.vocabulary_size = vocabulary_size
        self.units = units
        self.key_layer = keras.layers.Dense(units, use_bias=False, name="key_layer", dtype="float32")
        self.gate_layer = keras.layers.Dense(1, name="gate_layer", dtype="float32")

    def build(self, width: int) -> None:
        """Creates the weights for a width of encoder outputs and embeddings together."""
        build_layer(self.key_layer, None, None, width)
        build_layer(self.gate_layer, None, None, self.units)
        self.built = True

    def prepare(self, values: tf.Tensor, mask: tf.Tensor, ids: tf.Tensor, embedded: tf.Tensor) -> PointerMemory:
        """The memory for encoder outputs, their mask and ids `[batch, source time]`, and the embeddings of the ids.

        Outputs and embeddings are `[batch, source time, width]`, each of a width of its own.
        """
        keys = self.key_layer(tf.concat([tf.cast(values, tf.float32), tf.cast(embedded, tf.float32)], axis=-1))
        exists = tf.logical_and(ids >= 0, ids < self.vocabulary_size)[:, :, tf.newaxis]  # XLA raises no errors for others
        return PointerMemory(keys, mask, tf.where(exists, tf.one_hot(ids, self.vocabulary_size), float("nan")))

    def call(self, logits: tf.Tensor, vectors: tf.Tensor, memory: PointerMemory) -> tf.Tensor:
        """Log probabilities of generating or copying each id.

        Args:
            logits: Those of `P_vocabulary`, float32 `[batch, queries, ids that can be generated]`.
            vectors: Vectors of the steps, `[batch, queries, units]`.
            memory: What `prepare` returned.

        Returns:
            float32 `[batch, queries, vocabulary_size]`.
        """
        generated, copied = self.parts(logits, vectors, memory)
        return tf.math.log(tf.maximum(generated + copied, _LEAST))

    def parts(self, logits: tf.Tensor, vectors: tf.Tensor, memory: PointerMemory) -> tuple[tf.Tensor, tf.Tensor]:
        """The two summands of `P`, generated and copied, each of the shape of the result of `call`."""
        vectors = tf.cast(vectors, tf.float32)
        generating = tf.sigmoid(self.gate_layer(vectors))
        scores = tf.matmul(vectors, memory.keys, transpose_b=True)
        weights = tf.nn.softmax(tf.where(memory.mask[:, tf.newaxis, :], scores, tf.float32.min))
        copied_only = self.vocabulary_size - logits.shape[-1]
        generated = tf.pad(generating * tf.nn.softmax(logits), [[0, 0], [0, 0], [0, copied_only]])
        return generated, tf.matmul((1.0 - generating) * weights, memory.ids)
