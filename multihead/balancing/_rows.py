"""Rows scaled to unit norm: the form in which methods use the Gramian, so that scales do not affect precision."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from multihead._ground.numerics import unchecked
from multihead._ground.where import where


class UnitRows(NamedTuple):
    """The rows `u_k = g_k / |g_k|`, represented by their inner products.

    A vector in the span of the rows is written `sum_k weights_k u_k`.

    Attributes:
        cosines: `[num_heads, num_heads]` float64, `u_i . u_j`; 0 in the rows and columns of idle heads.
        norms: `[num_heads]` float64, `|g_k|`; 1 for idle heads.
        active: `[num_heads]` float64, 1 for a head with a gradient, 0 for an idle one.
        noise: Magnitude of the rounding errors in `cosines`.
        tolerance: Squared norm below which the remainder of a unit row is treated as rounding error.
        dtype: Dtype of the Gramian and of the coefficients.
        finite: Whether the Gramian is finite; a boolean scalar.
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
        """The number of rows, including those of idle heads."""
        return int(self.norms.shape[0])

    def coefficients(self, weights: tf.Tensor) -> tf.Tensor:
        """Converts weights of the unit rows into coefficients of the original rows.

        Args:
            weights: `[num_heads]` float64.

        Returns:
            `[num_heads]` of the Gramian's dtype: 0 for idle heads; all NaN if the Gramian is not finite.
        """
        result = weights * self.active / self.norms
        with unchecked():
            return tf.cast(where(self.finite, result, float("nan")), self.dtype)


def unit_rows(gramian: tf.Tensor) -> UnitRows:
    """Splits a Gramian into norms and cosines.

    A head is idle if its diagonal element is zero, or so small that its precision is lost (below 1.2e-38 in float32,
    that is, a gradient norm of 1e-19).

    Args:
        gramian: `[num_heads, num_heads]`, float32 or float64.
    """
    gramian = tf.stop_gradient(tf.convert_to_tensor(gramian))
    dtype = gramian.dtype
    finite = tf.reduce_all(tf.math.is_finite(gramian))
    # Of a Gramian that is not finite nothing is left: as if all heads were idle.
    products = where(finite, tf.cast(gramian, tf.float64), 0.0)
    squares = tf.linalg.diag_part(products)
    is_active = squares >= (1e-300 if dtype == tf.float64 else float(dtype.as_numpy_dtype(1.2e-38)))
    active = tf.cast(is_active, tf.float64)
    norms = tf.sqrt(where(is_active, squares, 1.0))
    inverses = tf.reshape(active / norms, [-1, 1])
    cosines = (0.5 * products + 0.5 * tf.transpose(products)) * tf.matmul(inverses, inverses, transpose_b=True)
    cosines = tf.linalg.set_diag(tf.clip_by_value(cosines, -1.0, 1.0), active)
    noise = 4e-15 if dtype == tf.float64 else 2.4e-7
    return UnitRows(cosines, norms, active, noise, 16 * noise, dtype, finite)
