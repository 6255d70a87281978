"""Inner products of the heads' gradients of the same variables, and cosines."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from multihead._ground.tensors import inner_products, unchecked, where
from multihead._ground.types import Gradient


def products_of(rows: Sequence[list[Gradient]]) -> tf.Tensor:
    """`[num_heads, num_heads]` inner products of the heads' gradients of the same variables."""
    return inner_products(rows)


def weighted(products: tf.Tensor, factors: tf.Tensor | None) -> tf.Tensor:
    """The inner products of rows after each row is multiplied by its factor; unchanged for None."""
    products = tf.cast(products, tf.float64)  # in eager mode, those of a batch without examples are zeros of any dtype
    if factors is None:
        return products
    wide = tf.cast(factors, tf.float64)
    return products * wide * wide[:, tf.newaxis]


def cosines_of(products: tf.Tensor) -> tf.Tensor:
    """`[..., n, n]` float32 cosines from inner products of the same shape; NaN for a vector of norm 0."""
    norms = tf.sqrt(tf.linalg.diag_part(products))
    scales = norms[..., :, tf.newaxis] * norms[..., tf.newaxis, :]
    is_known = scales > 0
    found = tf.cast(tf.clip_by_value(products / where(is_known, scales, 1.0), -1.0, 1.0), tf.float32)
    with unchecked():
        return where(is_known, found, float("nan"))
