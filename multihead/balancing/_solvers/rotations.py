"""Singular vectors of gradient matrices whose rows differ widely in norm."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from multihead._ground.tensors import scan_rows, where
from multihead.balancing._rows import UnitRows


def principal_axes(rows: UnitRows) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Singular values and left singular vectors of the matrix of rows, the small ones as accurate as the large ones.

    An eigensolver computes small eigenvalues of a Gramian only to the absolute precision of the largest: with norms from
    1e-6 to 1e6 they are lost. One-sided Jacobi rotations of a factor of the cosines, scaled by the norms, keep every digit.
    A sweep rotates all pairs of columns, disjoint pairs at the same time. They are needed only where the singular values
    differ widely. Returns the values, in units of the largest row norm; the vectors, one per column; and which values are
    not zero.

    Source: Demmel and Veselic, Jacobi's Method is More Accurate than QR, SIAM J. Matrix Anal. Appl. 13, 1992.
    """
    norms = rows.norms * rows.active
    norms = tf.math.divide_no_nan(norms, tf.reduce_max(norms))
    values, vectors = tf.linalg.eigh(rows.cosines * tf.expand_dims(norms, 1) * norms)
    # No small ones: every digit that counts is right already.
    are_similar = values[0] > _SIMILAR * values[-1]
    decomposed = tf.sqrt(tf.maximum(values, 0.0)), vectors, values > 0
    return tuple(tf.cond(are_similar, lambda: tuple(map(tf.identity, decomposed)), lambda: _rotated(rows, norms)))


# Ratio of eigenvalues above which the smallest is accurate to ten digits.
_SIMILAR = 1e-6


def _rotated(rows: UnitRows, norms: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Jacobi rotations; `norms` are in units of the largest, 0 for idle heads."""
    size = rows.num_heads
    values, vectors = tf.linalg.eigh(rows.cosines)
    roots = tf.sqrt(where(values > rows.tolerance, values, 0.0 * values))
    order = tf.argsort(norms, direction="DESCENDING")  # the largest first keeps the rotations small
    columns = tf.gather(roots[:, None] * tf.transpose(vectors) * norms[None, :], order, axis=1)
    basis = tf.gather(tf.eye(size, dtype=tf.float64), order, axis=1)

    # A tournament: a round pairs every column with a new partner (or itself), until all pairs have occurred.
    odd = size | 1
    turns, places = np.ogrid[:odd, :size]
    partners = (turns - places) % odd
    rounds = np.where(partners < size, partners, places)

    def sweep(count: tf.Tensor, columns: tf.Tensor, basis: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, ...]:
        worst = tf.constant(0.0, tf.float64)

        def turn(
            state: tuple[tf.Tensor, tf.Tensor, tf.Tensor], partners: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            columns, basis, worst = state
            rotation, cosine = _rotation(columns, basis, norms, partners)
            return tf.matmul(columns, rotation), tf.matmul(basis, rotation), tf.maximum(worst, cosine)

        return count + 1, *scan_rows(turn, (columns, basis, worst), tf.constant(rounds, tf.int32))

    state = (tf.constant(0), columns, basis, tf.constant(tf.float64.max, tf.float64))
    _, columns, basis, _ = tf.while_loop(lambda count, *others: (count < 30) & (others[-1] > 1e-15), sweep, state)
    singular = tf.sqrt(tf.reduce_sum(columns**2, axis=0))
    return singular, basis, singular > _ROUNDING * tf.norm(basis * norms[:, None], axis=0)


# A column this much smaller than the vectors it is composed of is rounding error.
_ROUNDING = 1e-10


def _rotation(columns: tf.Tensor, basis: tf.Tensor, norms: tf.Tensor, partners: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The rotation that makes columns orthogonal to their partners, and the largest cosine that it removes."""
    own = tf.reduce_sum(columns**2, axis=0)
    product = tf.reduce_sum(columns * tf.gather(columns, partners, axis=1), axis=0)
    others = tf.gather(own, partners)
    is_zero = own <= (_ROUNDING * tf.norm(basis * norms[:, None], axis=0)) ** 2
    places = tf.range(int(own.shape[0]))
    is_paired = tf.not_equal(partners, places)
    cosine = tf.math.divide_no_nan(tf.abs(product), tf.sqrt(own) * tf.sqrt(others))
    turns = is_paired & ~is_zero & ~tf.gather(is_zero, partners) & (cosine > 1e-15)

    ratio = (others - own) / where(turns, 2.0 * product, 1.0)
    sign = where(ratio >= 0, 1.0 + 0.0 * ratio, -1.0)
    # With equal norms, both partners must rotate in the same direction: the first of the pair decides.
    is_first = partners > places
    sign = where((ratio == 0) & ~is_first, -sign, sign)
    tangent = where(turns, sign / (tf.abs(ratio) + tf.sqrt(1.0 + ratio**2)), 0.0 * ratio)
    cosines = 1.0 / tf.sqrt(1.0 + tangent**2)
    at_partner = tf.one_hot(partners, int(own.shape[0]), dtype=tf.float64)
    rotation = tf.linalg.diag(cosines) - at_partner * (tangent * cosines)[None, :] * tf.cast(is_paired, tf.float64)
    return rotation, tf.reduce_max(where(turns, cosine, 0.0 * cosine))
