"""Rows scaled to unit norm, so that scales do not affect precision, and vectors in their span."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from multihead._ground.tensors import unchecked, where

# Half of the tolerance for "no conflict": `d . g_k >= -1e-5 |d| |g_k|`.
_ALLOWED = 5e-6


class UnitRows(NamedTuple):
    """The rows `u_k = g_k / |g_k|`, represented by their inner products.

    A vector in the span of the rows is written `sum_k weights_k u_k`.
    """

    cosines: tf.Tensor  # `[num_heads, num_heads]` float64, `u_i . u_j`; 0 in the rows and columns of idle heads.
    norms: tf.Tensor  # `[num_heads]` float64, `|g_k|`; 1 for idle heads
    active: tf.Tensor  # `[num_heads]` float64, 1 for a head with a gradient, 0 for an idle one
    num_heads: int  # including the idle ones
    noise: float  # magnitude of the rounding errors in `cosines`
    tolerance: float  # squared norm below which the remainder of a unit row is treated as rounding error
    dtype: tf.DType  # dtype of the Gramian and of the coefficients
    finite: tf.Tensor  # whether the Gramian is finite; a boolean scalar

    def coefficients(self, weights: tf.Tensor) -> tf.Tensor:
        """The coefficients of the original rows, in the Gramian's dtype: 0 for idle heads.

        If the Gramian is not finite, all coefficients are NaN.
        """
        result = weights * self.active / self.norms
        with unchecked():
            return tf.cast(where(self.finite, result, float("nan")), self.dtype)


def unit_rows(gramian: tf.Tensor) -> UnitRows:
    """Splits a Gramian, float32 or float64, into norms and cosines.

    A head is idle if its diagonal element is zero, or so small that its precision is lost (below 1.2e-38 in float32, that
    is, a gradient norm of 1e-19).
    """
    gramian = tf.stop_gradient(tf.convert_to_tensor(gramian))
    dtype = gramian.dtype
    finite = tf.reduce_all(tf.math.is_finite(gramian))
    # A Gramian that is not finite counts as zero, as if all heads were idle.
    products = where(finite, tf.cast(gramian, tf.float64), 0.0)
    squares = tf.linalg.diag_part(products)
    is_active = squares >= (1e-300 if dtype == tf.float64 else float(dtype.as_numpy_dtype(1.2e-38)))
    active = tf.cast(is_active, tf.float64)
    norms = tf.sqrt(where(is_active, squares, 1.0))
    inverses = tf.reshape(active / norms, [-1, 1])
    cosines = (0.5 * products + 0.5 * tf.transpose(products)) * tf.matmul(inverses, inverses, transpose_b=True)
    cosines = tf.linalg.set_diag(tf.clip_by_value(cosines, -1.0, 1.0), active)
    noise = 4e-15 if dtype == tf.float64 else 2.4e-7
    return UnitRows(cosines, norms, active, int(norms.shape[0]), noise, 16 * noise, dtype, finite)


def mean_of(rows: UnitRows, preference: list[float]) -> tuple[tf.Tensor, ...]:
    """The mean gradient, weighted by a preference.

    Returns four tensors: the weights of the unit rows in the mean gradient, `[num_heads]`; the inner products of the unit
    rows with its direction, `[num_heads]`; the norm of the mean gradient, or 1 if it is zero; and whether it is not zero up
    to rounding.
    """
    shares = rows.active * preference
    mean = tf.math.divide_no_nan(shares, tf.reduce_sum(shares)) * rows.norms
    products = tf.linalg.matvec(rows.cosines, mean)
    norm = tf.sqrt(tf.maximum(tf.reduce_sum(mean * products), 0.0))
    exists = norm > tf.sqrt(tf.constant(rows.noise, tf.float64)) * tf.reduce_sum(mean)
    unit = where(exists, norm, 1.0)
    return mean, products / unit, unit, exists


def inverse_norms(rows: UnitRows) -> tf.Tensor:
    """`[num_heads]` float64: the inverse norms, in units of the largest; 0 for idle heads."""
    smallest = tf.reduce_min(where(rows.active > 0, rows.norms, tf.float64.max))
    return rows.active * smallest / rows.norms


def inside(rows: UnitRows, weights: tf.Tensor, inner: tf.Tensor, free: tf.Tensor) -> tf.Tensor:
    """Moves a vector on the boundary of the cone inwards, by as much as rounding may have moved it outwards.

    The vector changes only if the rounding error exceeds the tolerance for "no conflict", that is, only if it is the small
    difference of large rows. The result is zero if the cone is narrower than the rounding error, or if the vector is nothing
    but rounding error. `inner` is a vector whose inner product with every free row is at least 1; the free rows are those
    that are active and not opposed.
    """
    terms = rows.cosines * inner
    gain = tf.reduce_sum(terms - rows.noise * tf.abs(terms), axis=1)
    terms = rows.cosines * weights
    products, total = tf.reduce_sum(terms, axis=1), rows.noise * tf.reduce_sum(tf.abs(weights))
    error = rows.noise * tf.reduce_sum(tf.abs(terms), axis=1)
    lacking = error - products - _ALLOWED * _norm_bound(rows, weights, products, total)
    distance = tf.reduce_max(where(free, lacking / tf.maximum(gain, 0.5), 0.0))
    weights += tf.maximum(distance, 0.0) * inner

    products, total = fast_matvec(rows.cosines, weights), rows.noise * tf.reduce_sum(tf.abs(weights))
    is_outside = tf.reduce_min(products) < -_ALLOWED * _norm_bound(rows, weights, products, total)
    has_vanished = tf.reduce_max(tf.abs(products)) <= 64 * total
    return where(is_outside | has_vanished, tf.zeros_like(weights), weights)


def fast_matvec(matrix: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
    """A matrix times a vector, in fewer operations than `matvec`."""
    return tf.reduce_sum(matrix * vector, axis=1)


def _norm_bound(rows: UnitRows, weights: tf.Tensor, products: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """A lower bound on a vector's norm that holds despite rounding; `total` is the noise times the sum of `|weights|`."""
    square = tf.reduce_sum(weights * products) - total * total / rows.noise
    return tf.maximum(tf.sqrt(tf.maximum(square, 0.0)), tf.reduce_max(tf.abs(products)))


def inside_of_two(rows: UnitRows, weights: tf.Tensor) -> tf.Tensor:
    """`DualCone.inside` for two rows. Zero if they oppose each other."""
    cosine = rows.cosines[0, 1]
    square = 1.0 - cosine * cosine
    are_apart = (cosine >= 0) | (square > rows.tolerance + 2 * rows.noise)
    inner = rows.active / where(are_apart, 1.0 + cosine, 1.0)
    return inside(rows, where(are_apart, weights, 0.0), inner, (rows.active > 0) & are_apart)
