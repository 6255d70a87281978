"""The dual cone `{x: x . g_k >= 0 for all k}`: the updates that conflict with no head."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from multihead.balancing._least_squares import nonnegative_least_squares, pseudo_inverse
from multihead.balancing._newton import solve_bargain
from multihead.balancing._rows import UnitRows

# Half of the tolerance for "no conflict": `d . g_k >= -1e-5 |d| |g_k|`.
_ALLOWED = 5e-6


class DualCone(NamedTuple):
    """The dual cone of unit rows.

    Attributes:
        rows: The unit rows.
        projections: `[num_heads, num_heads]` float64: row i holds the weights of the projection of `u_i` onto the cone.
        squares: `[num_heads]` float64: the squared norms of the projections, equal to their products with `u_i`.
        opposed: `[num_heads]` booleans: the rows whose projection is zero, because a combination of the others points
            exactly in the opposite direction. Everything in the cone is orthogonal to them.
    """

    rows: UnitRows
    projections: tf.Tensor
    squares: tf.Tensor
    opposed: tf.Tensor

    def without_opposed(self, weights: tf.Tensor) -> tf.Tensor:
        """Removes a vector's component in the span of the opposed rows, and with it the rounding error of what cancels.

        Args:
            weights: `[num_heads]` float64.
        """

        def removed() -> tf.Tensor:
            cosines, among = self.rows.cosines, tf.cast(self.opposed, tf.float64)
            kept = weights * (1.0 - among)
            inverse = pseudo_inverse(cosines * among[:, None] * among[None, :], self.rows.tolerance)
            return kept - tf.linalg.matvec(inverse, among * tf.linalg.matvec(cosines, kept))

        return tf.cond(tf.reduce_any(self.opposed), removed, lambda: tf.identity(weights))

    def reduced_cosines(self) -> tf.Tensor:
        """`[num_heads, num_heads]`: inner products of the rows without their components along the opposed rows."""

        def reduced() -> tf.Tensor:
            cosines, among = self.rows.cosines, tf.cast(self.opposed, tf.float64)
            inverse = pseudo_inverse(cosines * among[:, None] * among[None, :], self.rows.tolerance)
            inside = tf.matmul(tf.matmul(cosines * among, inverse), cosines * among, transpose_b=True)
            return (cosines - inside) * (1.0 - among)[:, None] * (1.0 - among)[None, :]

        return tf.cond(tf.reduce_any(self.opposed), reduced, lambda: tf.identity(self.rows.cosines))

    def inside(self, weights: tf.Tensor) -> tf.Tensor:
        """Moves a vector on the boundary of the cone inwards, by as much as rounding may have moved it outwards.

        The vector changes only if the rounding error exceeds the tolerance for "no conflict", that is, only if it is
        the small difference of large rows. The result is zero if the cone is narrower than the rounding error, or if
        the vector is nothing but rounding error.

        Args:
            weights: `[num_heads]` float64, in the cone up to rounding.
        """
        rows, cosines, magnitudes = self.rows, self.rows.cosines, tf.abs(self.rows.cosines)
        free = (rows.active > 0) & ~self.opposed
        share = tf.where(free, 1.0 / tf.where(free, self.squares, 1.0), 0.0)
        # The inner product of this vector with every row that is not opposed is at least 1.
        inner = self.without_opposed(tf.linalg.matvec(self.projections, share, transpose_a=True))
        gain = tf.linalg.matvec(cosines, inner) - rows.noise * tf.linalg.matvec(magnitudes, tf.abs(inner))
        error = rows.noise * tf.linalg.matvec(magnitudes, tf.abs(weights))
        products = tf.linalg.matvec(cosines, weights)
        lacking = tf.where(free, error - products - _ALLOWED * self._norm_bound(weights, products), 0.0)
        distance = tf.reduce_max(tf.where(lacking > 0, lacking / tf.maximum(gain, 0.5), 0.0))
        weights += distance * inner

        products = tf.linalg.matvec(cosines, weights)
        norm = self._norm_bound(weights, products)
        is_outside = tf.reduce_min(products) < -_ALLOWED * norm
        has_vanished = tf.reduce_max(tf.abs(products)) <= 64 * rows.noise * tf.reduce_sum(tf.abs(weights))
        return tf.where(is_outside | has_vanished, tf.zeros_like(weights), weights)

    def _norm_bound(self, weights: tf.Tensor, products: tf.Tensor) -> tf.Tensor:
        """A lower bound on a vector's norm that holds despite rounding."""
        rounding = self.rows.noise * tf.reduce_sum(tf.abs(weights)) ** 2
        square = tf.reduce_sum(weights * products) - rounding
        return tf.maximum(tf.sqrt(tf.maximum(square, 0.0)), tf.reduce_max(tf.abs(products)))


def dual_cone(rows: UnitRows) -> DualCone:
    """Projects every unit row onto the dual cone of all."""
    num_heads = rows.num_heads
    gramians = tf.tile(rows.cosines[None], [num_heads, 1, 1])
    lifts = nonnegative_least_squares(gramians, rows.cosines, rows.active, rows.noise, rows.tolerance)
    projections = tf.linalg.diag(rows.active) + lifts
    # `|x|^2 = x . u_i` for the projection x of u_i; the right-hand side is more accurate.
    squares = tf.linalg.diag_part(tf.matmul(projections, rows.cosines))
    error = rows.noise * tf.linalg.diag_part(tf.matmul(tf.abs(projections), tf.abs(rows.cosines)))
    limit = rows.tolerance + error
    opposed = (rows.active > 0) & (squares <= limit)
    # If a combination of rows is zero, each row in it is opposed by the others, even if its own projection is not zero.
    weighty = projections**2 > (limit / (16 * rows.tolerance))[:, None]
    opposed |= tf.reduce_any(weighty & opposed[:, None], axis=0)
    return DualCone(rows, projections, squares, opposed)


def bargaining_weights(rows: UnitRows, scales: tf.Tensor, power: float) -> tf.Tensor:
    """Finds `y > 0` with `(cosines y)_k = scales_k / y_k^power` for the heads that are not opposed.

    Args:
        rows: The unit rows.
        scales: `[num_heads]` float64, positive.
        power: Above 0.

    Returns:
        `[num_heads]` float64 weights of the unit rows. The weights of opposed heads make the result orthogonal to them.
    """
    cone = dual_cone(rows)
    takes_part = (rows.active > 0) & ~cone.opposed
    reduced = cone.reduced_cosines()
    diagonal = tf.where(takes_part, tf.linalg.diag_part(reduced), 1.0)
    solution = solve_bargain(tf.linalg.set_diag(reduced, diagonal), tf.where(takes_part, scales, 1.0), power)
    return cone.inside(cone.without_opposed(tf.where(takes_part, solution, 0.0)))
