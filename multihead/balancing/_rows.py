"""Rows of unit length: how methods see the Gramian, so that the heads' scales cannot spoil what they compute."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class UnitRows(NamedTuple):
    """The rows `u_k = g_k / |g_k|`, known by their inner products.

    A vector in the span of the rows is written `sum_k weights_k u_k`.

    Attributes:
        cosines: `[num_heads, num_heads]` float64, `u_i . u_j`; 0 in the rows and columns of absent heads.
        norms: `[num_heads]` float64, `|g_k|`; 1 for absent heads.
        active: `[num_heads]` float64, 1 for a head with a gradient, 0 for an absent one.
        noise: The size of rounding errors in `cosines`.
        tolerance: A squared length, in units of the rows, below which what is left of a row is rounding.
        dtype: Dtype of the Gramian, and of the coefficients.
        finite: Whether the Gramian was finite; a boolean scalar.
    """

    cosines: tf.Tensor
    norms: tf.Tensor
    active: tf.Tensor
    noise: float
    tolerance: float
    dtype: tf.DType
    finite: tf.Tensor

    @property
    def num_heads(self) -> int:
        """How many rows there are, absent ones included."""
        return int(self.norms.shape[0])

    def coefficients(self, weights: tf.Tensor) -> tf.Tensor:
        """Coefficients of the rows themselves from weights of the unit rows.

        Args:
            weights: `[num_heads]` float64.

        Returns:
            `[num_heads]` of the Gramian's dtype: 0 for absent heads; all NaN if the Gramian was not finite.
        """
        result = tf.where(self.active > 0, weights / self.norms, 0.0)
        return tf.cast(tf.where(self.finite, result, float("nan")), self.dtype)


def unit_rows(gramian: tf.Tensor) -> UnitRows:
    """Splits a Gramian into lengths and cosines.

    A diagonal element that is zero, or so small that its precision is lost (below 1.2e-38 in float32: a gradient of
    norm 1e-19), makes a head absent.

    Args:
        gramian: `[num_heads, num_heads]`, float32 or float64.
    """
    gramian = tf.stop_gradient(tf.convert_to_tensor(gramian))
    dtype = gramian.dtype
    finite = tf.reduce_all(tf.math.is_finite(gramian))
    products = tf.cast(gramian, tf.float64)
    products = tf.where(finite, products, tf.eye(gramian.shape[0], dtype=tf.float64))
    squares = tf.linalg.diag_part(products)
    is_active = squares >= (1e-300 if dtype == tf.float64 else float(dtype.as_numpy_dtype(1.2e-38)))
    active = tf.cast(is_active, tf.float64)
    norms = tf.where(is_active, tf.sqrt(tf.where(is_active, squares, 1.0)), 1.0)
    cosines = 0.5 * (products + tf.transpose(products)) / norms[:, None] / norms[None, :]
    cosines = tf.clip_by_value(cosines, -1.0, 1.0) * active[:, None] * active[None, :]
    noise = 4e-15 if dtype == tf.float64 else 2.4e-7
    return UnitRows(tf.linalg.set_diag(cosines, active), norms, active, noise, 16 * noise, dtype, finite)
