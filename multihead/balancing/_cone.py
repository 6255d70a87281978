"""The dual cone `{x: x . g_k >= 0 for all k}`: the updates that conflict with no head."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from multihead._ground.where import where
from multihead.balancing._least_squares import nonnegative_least_squares, pseudo_inverse
from multihead.balancing._newton import solve_bargain
from multihead.balancing._pivoting import MOST_EXACT, completed, definiteness, nonnegative, regularized
from multihead.balancing._rows import UnitRows
from multihead.balancing._subsets import Subsets, are_few, subsets_of

# Half of the tolerance for "no conflict": `d . g_k >= -1e-5 |d| |g_k|`.
_ALLOWED = 5e-6


class DualCone(NamedTuple):
    """The dual cone of unit rows.

    Attributes:
        rows: The unit rows.
        subsets: All subsets of the rows if they are few, otherwise None.
        projections: `[num_heads, num_heads]` float64: row i holds the weights of the projection of `u_i` onto the cone.
        squares: `[num_heads]` float64: the squared norms of the projections, equal to their products with `u_i`.
        opposed: `[num_heads]` booleans: the rows whose projection is zero, because a combination of the others points
            exactly in the opposite direction. Everything in the cone is orthogonal to them.
        removal: `[num_heads, num_heads]` float64: a matrix that turns the weights of a vector into those of its component
            orthogonal to the opposed rows.
    """

    rows: UnitRows
    subsets: Subsets | None
    projections: tf.Tensor
    squares: tf.Tensor
    opposed: tf.Tensor
    removal: tf.Tensor

    def lifts(self, linear: tf.Tensor) -> tf.Tensor:
        """Weights of the rows that, added to targets of unit norm, yield their projections onto the cone.

        Args:
            linear: `[num_targets, num_heads]` float64, inner products of the targets with the rows.
        """
        return _lifts(self.rows, self.subsets, linear, tf.ones([int(linear.shape[0])], tf.float64))

    def without_opposed(self, weights: tf.Tensor) -> tf.Tensor:
        """Removes a vector's component in the span of the opposed rows, and with it the rounding error of what cancels.

        Args:
            weights: `[num_heads]` float64.
        """
        return _times(self.removal, weights)

    def reduced_cosines(self) -> tf.Tensor:
        """`[num_heads, num_heads]`: inner products of the rows without their components along the opposed rows."""
        return tf.matmul(self.removal, tf.matmul(self.rows.cosines, self.removal), transpose_a=True)

    def inside(self, weights: tf.Tensor) -> tf.Tensor:
        """See the function of this name."""
        free = (self.rows.active > 0) & ~self.opposed
        share = where(free, 1.0 / where(free, self.squares, 1.0), 0.0)
        inner = self.without_opposed(tf.linalg.matvec(self.projections, share, transpose_a=True))
        return inside(self.rows, weights, inner, free)


def dual_cone(rows: UnitRows) -> DualCone:
    """Projects every unit row onto the dual cone of all."""
    few = subsets_of(completed(rows), rows.tolerance) if are_few(rows.num_heads) else None
    projections = tf.linalg.diag(rows.active) + _lifts(rows, few, rows.cosines, rows.active)
    # `|x|^2 = x . u_i` for the projection x of u_i; the right-hand side is more accurate.
    terms = projections * rows.cosines
    squares, error = tf.reduce_sum(terms, axis=1), rows.noise * tf.reduce_sum(tf.abs(terms), axis=1)
    limit = rows.tolerance + error
    opposed = (rows.active > 0) & (squares <= limit)
    # If a combination of rows is zero, each row in it is opposed by the others, even if its own projection is not zero.
    weighty = projections**2 > (limit / (16 * rows.tolerance))[:, None]
    opposed |= tf.reduce_any(weighty & opposed[:, None], axis=0)

    def removal() -> tf.Tensor:
        among = tf.cast(opposed, tf.float64)
        if few is None:
            inverse = pseudo_inverse(rows.cosines * among[:, None] * among[None, :], rows.tolerance)
        else:
            inverse = few.inverse(opposed)
        return tf.linalg.diag(1.0 - among) - tf.matmul(inverse, rows.cosines * (1.0 - among))

    if few is None:
        identity = tf.eye(rows.num_heads, dtype=tf.float64)
        matrix = tf.cond(tf.reduce_any(opposed), removal, lambda: tf.identity(identity))
    else:  # a condition would have as many operations
        matrix = removal()
    return DualCone(rows, few, projections, squares, opposed, matrix)


def _lifts(rows: UnitRows, few: Subsets | None, linear: tf.Tensor, squares: tf.Tensor) -> tf.Tensor:
    """See `DualCone.lifts`; targets may also be zero, with a squared norm of 0."""
    if few is not None:
        return few.nonnegative(linear)
    gramians = tf.tile(rows.cosines[None], [int(linear.shape[0]), 1, 1])
    return nonnegative_least_squares(gramians, linear, squares, rows.noise, rows.tolerance)


def inside(rows: UnitRows, weights: tf.Tensor, inner: tf.Tensor, free: tf.Tensor) -> tf.Tensor:
    """Moves a vector on the boundary of the cone inwards, by as much as rounding may have moved it outwards.

    The vector changes only if the rounding error exceeds the tolerance for "no conflict", that is, only if it is the small
    difference of large rows. The result is zero if the cone is narrower than the rounding error, or if the vector is nothing
    but rounding error.

    Args:
        rows: The unit rows.
        weights: `[num_heads]` float64, in the cone up to rounding.
        inner: `[num_heads]` float64: a vector whose inner product with every free row is at least 1.
        free: `[num_heads]` booleans: the active rows that are not opposed.
    """
    terms = rows.cosines * inner
    gain = tf.reduce_sum(terms - rows.noise * tf.abs(terms), axis=1)
    terms = rows.cosines * weights
    products, total = tf.reduce_sum(terms, axis=1), rows.noise * tf.reduce_sum(tf.abs(weights))
    error = rows.noise * tf.reduce_sum(tf.abs(terms), axis=1)
    lacking = error - products - _ALLOWED * _norm_bound(rows, weights, products, total)
    distance = tf.reduce_max(where(free, lacking / tf.maximum(gain, 0.5), 0.0))
    weights += tf.maximum(distance, 0.0) * inner

    products, total = _times(rows.cosines, weights), rows.noise * tf.reduce_sum(tf.abs(weights))
    is_outside = tf.reduce_min(products) < -_ALLOWED * _norm_bound(rows, weights, products, total)
    has_vanished = tf.reduce_max(tf.abs(products)) <= 64 * total
    return where(is_outside | has_vanished, tf.zeros_like(weights), weights)


def _times(matrix: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
    """A matrix times a vector, in fewer operations than `matvec`."""
    return tf.reduce_sum(matrix * vector, axis=1)


def _norm_bound(rows: UnitRows, weights: tf.Tensor, products: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """A lower bound on a vector's norm that holds despite rounding; `total` is the noise times the sum of `|weights|`."""
    square = tf.reduce_sum(weights * products) - total * total / rows.noise
    return tf.maximum(tf.sqrt(tf.maximum(square, 0.0)), tf.reduce_max(tf.abs(products)))


Quick = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
"""From the completed cosines to weights, and whether they are the solution."""


def quickly(rows: UnitRows, quick: Quick, exact: Callable[[], tf.Tensor], *, searches: bool = False) -> tf.Tensor:
    """The weights of a quick method where the rows are clearly independent and it succeeds, otherwise of an exact one.

    Exact methods need memory for the third power of the number of heads. So with more than 128, the quick method is always
    taken, of rows with small components of their own; see `well_inside` for what then holds of the result.

    Args:
        rows: The unit rows.
        quick: The quick method.
        exact: The exact one. Of few rows it is a formula that is quick itself, and always taken.
        searches: Whether it is a search of few rows, too.
    """
    if rows.num_heads > MOST_EXACT:
        return quick(regularized(rows))[0]
    if are_few(rows.num_heads) and not searches:
        return exact()

    def tried() -> tuple[tf.Tensor, tf.Tensor]:
        weights, is_solved = quick(completed(rows))
        return weights, is_solved

    def failed() -> tuple[tf.Tensor, tf.Tensor]:
        return tf.zeros_like(rows.norms), tf.constant(False)

    weights, is_solved = tf.cond(definiteness(rows), tried, failed)
    return tf.cond(is_solved, lambda: tf.identity(weights), exact)


def well_inside(rows: UnitRows, matrix: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """`inside` for rows that are clearly independent, or for many rows.

    Of many rows, the shortest vector in their convex hull is the one that leads inwards. Where they leave no room for a
    vector that conflicts with none, and rounding has moved the weights outwards, the result is zero.

    Args:
        rows: The unit rows.
        matrix: Their completed cosines, regularized if there are many.
        weights: As for `inside`.
    """
    if rows.num_heads <= MOST_EXACT:
        inner = tf.reshape(tf.linalg.solve(matrix, tf.reshape(rows.active, [-1, 1])), [-1])
        return inside(rows, weights, inner, rows.active > 0)
    lift = tf.expand_dims(rows.active, 1) * rows.active
    shortest = nonnegative(matrix + lift, -tf.expand_dims(rows.active, 0), rows.noise)[0][0]
    least = tf.reduce_min(where(rows.active > 0, _times(rows.cosines, shortest), tf.float64.max))
    exists = least > 64 * rows.noise * tf.reduce_sum(shortest)
    inner = where(exists, shortest / where(exists, least, 1.0), tf.zeros_like(shortest))
    return inside(rows, weights, inner, rows.active > 0)


def unless_none_conflict(rows: UnitRows, weights: tf.Tensor, resolve: Callable[[], tf.Tensor]) -> tf.Tensor:
    """The weights as they are if no two rows conflict: a comparison. Up to 400 rows, rounding does not matter then.

    The error of a product is at most `noise sum_k weights_k`, and the norm of the vector at least the root of
    `sum_k weights_k^2`.

    Args:
        rows: The unit rows.
        weights: `[num_heads]` float64, at least 0.
        resolve: Otherwise yields the weights.
    """
    if rows.num_heads == 1:
        return weights
    if rows.num_heads > 400:
        return resolve()
    return tf.cond(tf.reduce_any(rows.cosines < -rows.noise), resolve, lambda: tf.identity(weights))


def of_a_pair(rows: UnitRows, weights: tf.Tensor) -> tf.Tensor:
    """The same as `inside` and `without_opposed` together, for two rows. Zero if they oppose each other."""
    cosine = rows.cosines[0, 1]
    square = 1.0 - cosine * cosine
    are_apart = (cosine >= 0) | (square > rows.tolerance + 2 * rows.noise)
    inner = rows.active / where(are_apart, 1.0 + cosine, 1.0)
    return inside(rows, where(are_apart, weights, 0.0), inner, (rows.active > 0) & are_apart)


def bargaining_weights(rows: UnitRows, scales: tf.Tensor, power: float) -> tf.Tensor:
    """Finds `y > 0` with `(cosines y)_k = scales_k / y_k^power` for the heads that are not opposed.

    Args:
        rows: The unit rows.
        scales: `[num_heads]` float64, positive.
        power: Above 0.

    Returns:
        `[num_heads]` float64 weights of the unit rows. The weights of opposed heads make the result orthogonal to them.
    """
    if rows.num_heads == 2 and power == 1.0:  # by symmetry, both weights of unit rows are equal
        return of_a_pair(rows, scales / tf.sqrt(tf.maximum(1.0 + rows.cosines[0, 1], rows.tolerance)))

    def quick(matrix: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        solution = solve_bargain(matrix, where(rows.active > 0, scales, 1.0), power)
        return well_inside(rows, matrix, solution * rows.active), tf.constant(True)

    def exact() -> tf.Tensor:
        cone = dual_cone(rows)
        takes_part = (rows.active > 0) & ~cone.opposed
        reduced = cone.reduced_cosines()
        diagonal = where(takes_part, tf.linalg.diag_part(reduced), 1.0)
        solution = solve_bargain(tf.linalg.set_diag(reduced, diagonal), where(takes_part, scales, 1.0), power)
        return cone.inside(cone.without_opposed(where(takes_part, solution, 0.0)))

    return quickly(rows, quick, exact)
