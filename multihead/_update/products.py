"""Inner products of the heads' gradients of the same variables, and cosines."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from multihead._ground.gradients import as_rows, inner_products
from multihead._ground.keras import Gradient
from multihead._ground.numerics import unchecked
from multihead._ground.where import where


def products_of(rows: Sequence[list[Gradient]]) -> tf.Tensor:
    """`[num_heads, num_heads]` inner products of the heads' gradients of the same variables."""
    return inner_products(rows)


def products_between(
    folds: Sequence[Sequence[list[Gradient]]], fractions: tf.Tensor, rows: Sequence[list[Gradient]]
) -> tf.Tensor:
    """The mean inner products of the heads' gradients on different folds of the data.

    Args:
        folds: For each fold, the heads' gradients over all replicas.
        fractions: `[folds, num_heads]` float64: each fold's share of a head's labelled elements.
        rows: The heads' gradients over all folds and replicas.

    Returns:
        `[num_heads, num_heads]` float64, symmetric: inner products of the gradients of the folds' mean losses, averaged
        over ordered pairs of different folds. For heads without labels in any such pair, inner products of `rows`.
    """
    num_heads = len(rows)
    sums, pairs = tf.zeros([num_heads, num_heads], tf.float64), tf.zeros([num_heads, num_heads], tf.float64)
    for a in range(len(folds)):
        for b in range(a):
            weights = fractions[a][:, tf.newaxis] * fractions[b]
            products = tf.math.divide_no_nan(_cross_products(folds[a], folds[b]), weights)
            has_labels = tf.cast(weights > 0, tf.float64)
            sums += products + tf.transpose(products)
            pairs += has_labels + tf.transpose(has_labels)
    return where(pairs > 0, tf.math.divide_no_nan(sums, pairs), products_of(rows))


def _cross_products(first: Sequence[list[Gradient]], second: Sequence[list[Gradient]]) -> tf.Tensor:
    """`[num_heads, num_heads]` inner products between two sets of the heads' gradients of the same variables."""
    num_heads = len(first)
    total = tf.zeros([num_heads, num_heads], tf.float64)
    for column in zip(*first, *second):
        matrix = as_rows(column)
        if matrix is not None:
            a, b = tf.split(tf.cast(matrix.values, tf.float64), [num_heads, num_heads])
            total += tf.matmul(a, b, transpose_b=True)
    return total


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
