"""Balancers that look for a direction common to the heads: MGDA, IMTL-G, ConFIG and Aligned-MTL."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from multihead._ground.tensors import where
from multihead._ground.types import Tensor
from multihead._ground.validation import check_choice
from multihead.balancing._base import MAX_HEADS, Balancer
from multihead.balancing._kinds import PreferenceBalancer
from multihead.balancing._rows import fast_matvec, inside_of_two, inverse_norms, unit_rows
from multihead.balancing._solvers.least_squares import dual_cone, nonnegative_least_squares, pseudo_inverse
from multihead.balancing._solvers.rotations import principal_axes

NORMALIZATIONS = ("none", "l2", "loss", "loss+")


@keras.saving.register_keras_serializable(package="multihead")
class MGDA(Balancer):
    """Takes the convex combination of the heads' gradients with the smallest norm.

    The update improves every head by at least its own squared norm, and is zero where no update improves all of them
    (at a Pareto-stationary point). It follows the *smallest* gradients: unless you want that, scale the gradients
    first, as in `Chain(EqualNorms(), MGDA())`, or choose a `normalization`.

    Formula: `d = sum_k w_k g_k`, `w = argmin |sum_k w_k g_k / c_k|^2` subject to `w >= 0`, `sum_k w_k = 1`. The `c_k`
    depend on `normalization`: 1 for `"none"`, `|g_k|` for `"l2"`, the head's loss `L_k` for `"loss"`, and `L_k |g_k|` for
    `"loss+"`.

    What it fixes: direction (`d . g_k >= |d|^2` for every head) and magnitude. Size of the update: at most that of the
    smallest gradient. The coefficients sum to 1. At a Pareto-stationary point they are 0 if rounding would leave a residual
    in a random direction. With a normalization, the weights are computed from the normalized gradients and applied to the
    original ones, as in the authors' code, and these guarantees do not hold: the update may conflict with a head. With two
    heads, `"l2"` is half the plain sum, and `"loss+"` gives the larger weight to the head with the larger loss. At most 128
    heads.

    Args:
        normalization: `"none"`, `"l2"`, `"loss"` or `"loss+"`, as in the authors' code.

    Example:
        >>> MGDA()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.0, 1.0, 1.0]

    Source: Desideri, Multiple-gradient descent algorithm, Comptes Rendus Mathematique 350, 2012; Sener and Koltun,
    Multi-Task Learning as Multi-Objective Optimization, NeurIPS 2018. `L_k` is 1 for a head whose loss is not above 0, or if
    no `losses` are passed.
    """

    max_heads = MAX_HEADS

    def __init__(self, normalization: str = "none", *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.normalization = check_choice("normalization", normalization, NORMALIZATIONS)
        if normalization in ("loss", "loss+"):
            self.uses = ("losses",)

    def coefficients(self, gramian: tf.Tensor, *, losses: Tensor = None) -> tf.Tensor:
        rows = unit_rows(gramian)
        norms = tf.ones_like(rows.norms) if self.normalization in ("l2", "loss+") else rows.norms
        if losses is not None:
            losses = tf.cast(losses, tf.float64)
            norms /= where(losses > 0, losses, 1.0)
        rows = rows._replace(norms=norms)  # those of the gradients divided by the c_k
        ratios = inverse_norms(rows)
        if rows.num_heads == 2:
            weights = tf.maximum(ratios - rows.cosines[0, 1] * tf.reverse(ratios, [0]), 0.0)
            weights = where(tf.reduce_any(weights > 0), weights, ratios)  # equal gradients
            moved = inside_of_two(rows, weights)
            is_stationary = tf.reduce_all(moved == 0) & tf.reduce_any(weights > 0)
        else:
            # In unit rows: min |sum_k y_k u_k|^2 + (1 - sum_k ratio_k y_k)^2 over y >= 0, which gives the solution up to a
            # factor. Both squares have the same order of magnitude, however much the norms of the rows differ.
            lifted, linear = rows.cosines + ratios[:, None] * ratios, -ratios[None]
            weights = nonnegative_least_squares(lifted, linear, rows.noise, rows.tolerance)[0]
            cone = dual_cone(rows)
            moved, is_stationary = cone.inside(weights), tf.reduce_any(cone.opposed)
        weights = where(is_stationary, weights, moved)
        weights = tf.math.divide_no_nan(weights, tf.reduce_sum(rows.active * weights / rows.norms))
        # At a stationary point, zero unless the combination is exactly zero.
        left = fast_matvec(tf.cast(gramian, tf.float64), tf.cast(rows.coefficients(weights), tf.float64))
        return rows.coefficients(where(is_stationary & tf.reduce_any(left != 0), tf.zeros_like(weights), weights))


@keras.saving.register_keras_serializable(package="multihead")
class IMTLG(Balancer):
    """Finds the update with equal projections onto all heads' gradients.

    Formula: `d = sum_k w_k g_k` with `d . g_k / |g_k|` equal for all k and `sum_k w_k = 1`, that is,
    `w = G^+ n / sum(G^+ n)`, with `G` the Gramian, `G_jk = g_j . g_k`, `n` the gradient norms and `+` the pseudo-inverse.

    What it fixes: direction and magnitude; the direction does not depend on the loss weights. Size of the update: the
    coefficients sum to 1. They may be negative. If `sum(G^+ n)` is negative, which happens when a small gradient
    conflicts with a large one, the update conflicts with every head; `ConFIG` has the same direction without this
    problem. If no such update exists (the heads exactly oppose each other), all coefficients are 0.

    Example:
        >>> IMTLG()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.0767, 1.0, 1.0]

    Source: Liu et al., Towards Impartial Multi-Task Learning, ICLR 2021; with the pseudo-inverse as in Quinton and Rey,
    arXiv 2406.16232, so that linearly dependent gradients are handled.
    """

    scale_invariant = True

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        weights = tf.linalg.matvec(pseudo_inverse(rows.cosines, rows.tolerance), rows.active)
        parts = rows.active * weights / rows.norms
        total, size = tf.reduce_sum(parts), tf.reduce_sum(tf.abs(parts))
        reached = tf.reduce_sum(rows.active * weights)  # |sum of active rows' projections|^2, 0 if none exists
        exists = (tf.abs(total) > rows.noise * size) & (reached > rows.tolerance)
        return rows.coefficients(where(exists, weights / where(exists, total, 1.0), tf.zeros_like(weights)))


@keras.saving.register_keras_serializable(package="multihead")
class ConFIG(Balancer):
    """Finds the direction with the same cosine to every head's gradient and scales it by their projections.

    Formula: `x = U^+ 1 / |U^+ 1|` and `d = (sum_k g_k . x) x`, where the rows of `U` are the gradients scaled to unit
    norm and `+` is the pseudo-inverse.

    What it fixes: direction (equal, positive cosines if the gradients are linearly independent; otherwise equal only in
    the least-squares sense, and the update may conflict with a head). The direction does not depend on the loss
    weights; the size does. Size of the update: the sum of the gradients' projections onto its direction.

    Example:
        >>> ConFIG()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.1588, 2.0706, 2.0706]

    Source: Liu, Chu and Thuerey, ConFIG: Towards Conflict-free Training of Physics Informed Neural Networks, arXiv
    2408.11104, 2024, equation 2.
    """

    scale_invariant = True

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        weights = tf.linalg.matvec(pseudo_inverse(rows.cosines, rows.tolerance), rows.active)
        square = tf.reduce_sum(weights * rows.active)  # |U^+ 1|^2
        exists = square > rows.tolerance
        projected = tf.reduce_sum(rows.active * rows.norms * tf.linalg.matvec(rows.cosines, weights))
        return rows.coefficients(where(exists, weights * projected / where(exists, square, 1.0), 0.0 * weights))


@keras.saving.register_keras_serializable(package="multihead")
class AlignedMTL(PreferenceBalancer):
    """Rescales the principal components of the heads' gradients to the same singular value.

    Formula: with the singular value decomposition `J = U S V^T` of the gradient matrix `J`, whose rows are the `g_k`, the
    aligned gradients are the rows of `s U V^T`, whose condition number is 1, and `d = s V U^T p`. `p` is the `preference`;
    `s` is the smallest nonzero singular value (`scale="min"`), the median (`"median"`) or the root mean square (`"rmse"`) of
    them.

    What it fixes: magnitude and direction of the gradient matrix as a whole. The update never conflicts with an aligned
    gradient, but it may conflict with an original one. Size of the update: with `scale="min"`, at most the smallest
    singular value times the norm of `p`, so it is governed by the smallest gradients. At most 128 heads.

    Args:
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.
        scale: `"min"`, `"median"` or `"rmse"`.

    Example:
        >>> AlignedMTL()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.4266, 1.9347, 1.9347]

    Source: Senushkin et al., Independent Component Alignment for Multi-Task Learning, CVPR 2023, algorithm 1.
    """

    max_heads = MAX_HEADS

    def __init__(
        self, preference: Mapping[str, float] | None = None, scale: str = "min", *, name: str | None = None
    ) -> None:
        super().__init__(preference, name=name)
        self.scale = check_choice("scale", scale, ("min", "median", "rmse"))

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        singular, vectors, exists = principal_axes(rows)
        inverses = where(exists, 1.0 / where(exists, singular, 1.0), 0.0 * singular)
        preference = rows.active * self._numbers(rows.num_heads)
        aligned = tf.linalg.matvec(vectors, inverses * tf.linalg.matvec(vectors, preference, transpose_a=True))
        # The common singular value, in units of the largest row norm.
        count = tf.reduce_sum(tf.cast(exists, tf.int32))
        if self.scale == "rmse":
            squares = tf.reduce_sum(where(exists, singular**2, 0.0 * singular))
            common = tf.sqrt(tf.math.divide_no_nan(squares, tf.cast(count, tf.float64)))
        else:
            ascending = tf.sort(where(exists, singular, singular.dtype.max))
            index = 0 if self.scale == "min" else tf.maximum(count - 1, 0) // 2
            common = where(count > 0, ascending[index], 0.0 * ascending[0])
        return rows.coefficients(common * aligned * rows.norms)
