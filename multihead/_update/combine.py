"""Combines the heads' encoder gradients into one: plain sum, or balanced at the representation or at the parameters.

Balancing is not linear, so it happens once per update, on inner products over all micro-batches and replicas. With one
micro-batch, the coefficients are known before the encoder's backward pass, and one such pass is enough. With several, the
inner products at the representation are complete only after the last one, so each micro-batch computes the encoder
gradient of every head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.gradients import Rows, added, as_rows, gramian, scaled
from multihead._ground.keras import Gradient
from multihead._update.backward import (
    CombinedAtRepresentation,
    CombinedPass,
    EncoderPass,
    GradientsPerHead,
    Measure,
    MicroBatchGradients,
    PassPerHead,
    SummedGradients,
    SummedPass,
)
from multihead._update.network import Network
from multihead._update.representation import RepresentationGradients
from multihead._update.weights import Losses, LossWeights
from multihead.balancing import Balancer


class Combined(NamedTuple):
    """The combined encoder gradient, over all micro-batches and replicas.

    Attributes:
        gradients: One per encoder variable, or None.
        coefficients: `[num_heads]` factors of the heads' weighted gradients; 0 for idle heads.
        gramian: `[num_heads, num_heads]` inner products of the heads' weighted gradients at the level where they are
            combined; possibly only the diagonal, or None.
        at_representation: The inner products at the representation; possibly only the diagonal, or None.
        square: The squared norm of the combined gradient, at the level of `gramian`, where it is no sum of the heads'
            gradients times their coefficients; otherwise None.
    """

    gradients: list[Gradient]
    coefficients: tf.Tensor
    gramian: tf.Tensor | None
    at_representation: tf.Tensor | None
    square: tf.Tensor | None = None

    @property
    def norms(self) -> tf.Tensor | None:
        """`[num_heads]` norms of the heads' weighted gradients at the level where they are combined, or None."""
        return None if self.gramian is None else tf.cast(tf.sqrt(tf.linalg.diag_part(self.gramian)), tf.float32)

    @property
    def cosines(self) -> tf.Tensor | None:
        """`[num_heads + 1, num_heads + 1]` cosines of the heads' weighted gradients and, last, the combined gradient.

        NaN for a gradient that is zero; None without a whole `gramian`.
        """
        if self.gramian is None:
            return None
        coefficients = tf.cast(self.coefficients, tf.float64)
        if self.square is None:
            along = tf.linalg.matvec(self.gramian, coefficients)
            square = tf.tensordot(coefficients, along, 1)
        else:
            along, square = coefficients * tf.linalg.diag_part(self.gramian), tf.cast(self.square, tf.float64)
        top = tf.concat([self.gramian, along[:, tf.newaxis]], axis=1)
        return cosines_of(tf.concat([top, tf.concat([along, [square]], axis=0)[tf.newaxis]], axis=0))


class Combiner(ABC):
    """Combines the heads of updates.

    Attributes:
        measure: Computes inner products at the representation where the heads are not combined; or None.
        num_folds: The number of folds of the data for which `combine` needs separate sums.
    """

    measure: Measure | None = None
    num_folds: int = 1

    def encoder_pass(self, weights: LossWeights, num_micro_batches: int, by_layer: tf.Tensor | None) -> EncoderPass:
        """How the heads' gradients go through the encoder; by default, in a pass for each head, to be combined later.

        Args:
            weights: The weights of the heads' losses in this update.
            num_micro_batches: The number of micro-batches in the update.
            by_layer: Whether the update is measured by layer, a boolean scalar; None if none is.
        """
        return PassPerHead(self.measure)

    def combine(
        self,
        network: Network,
        gathered: MicroBatchGradients,
        folds: Sequence[MicroBatchGradients],
        losses: Losses,
    ) -> Combined:
        """Combines the heads over all micro-batches and replicas.

        Args:
            network: The encoder and the heads.
            gathered: The sums over this replica's micro-batches.
            folds: The sums over each fold of them.
            losses: The losses over all replicas, and their weights.
        """
        if isinstance(gathered, GradientsPerHead):
            return self.combine_heads(
                network, gathered, [fold for fold in folds if isinstance(fold, GradientsPerHead)], losses
            )
        encoder = replicas.all_reduce_sum(gathered.encoder)
        if isinstance(gathered, SummedGradients):
            return _sum(encoder, losses, gathered.gramian)
        found = gathered.combined
        return Combined(
            gradients=encoder,
            coefficients=found.coefficients,
            gramian=found.gramian,
            at_representation=found.gramian,
            square=found.square,
        )

    @abstractmethod
    def combine_heads(
        self, network: Network, gathered: GradientsPerHead, folds: Sequence[GradientsPerHead], losses: Losses
    ) -> Combined:
        """Combines the heads' encoder gradients; the arguments are those of `combine`."""


@dataclass(frozen=True)
class SumHeads(Combiner):
    """The plain sum: the coefficient of every active head is 1.

    Attributes:
        measure: Computes inner products at the representation, or None.
    """

    measure: Measure | None = None

    def encoder_pass(self, weights: LossWeights, num_micro_batches: int, by_layer: tf.Tensor | None) -> EncoderPass:
        if not weights.depend_on_losses:
            return SummedPass(self.measure, by_layer)
        return (
            CombinedPass(self.at_representation, weights, by_layer) if num_micro_batches == 1 else PassPerHead(self.measure)
        )

    def at_representation(self, gradients: RepresentationGradients, losses: Losses) -> CombinedAtRepresentation:
        """Adds up the heads' representation gradients, times their loss-dependent factors."""
        factors: Any = losses.factors
        gradients = gradients.times(factors)
        return CombinedAtRepresentation(
            gradients=gradients.total(),
            factors=factors,
            coefficients=tf.cast(losses.given.active, tf.float32),
            gramian=None if self.measure is None else _reduced(self.measure(gradients), None),
        )

    def combine_heads(
        self, network: Network, gathered: GradientsPerHead, folds: Sequence[GradientsPerHead], losses: Losses
    ) -> Combined:
        encoder = replicas.all_reduce_sum(_plus_heads(gathered.added, gathered.per_head, losses.factors))
        return _sum(encoder, losses, gathered.gramian, losses.factors)


@dataclass(frozen=True)
class BalanceAtRepresentation(Combiner):
    """A balancer on the representation gradients.

    Attributes:
        balancer: The balancer.
    """

    balancer: Balancer
    measure = staticmethod(RepresentationGradients.gramian)

    def encoder_pass(self, weights: LossWeights, num_micro_batches: int, by_layer: tf.Tensor | None) -> EncoderPass:
        return (
            CombinedPass(self.at_representation, weights, by_layer) if num_micro_batches == 1 else PassPerHead(self.measure)
        )

    def at_representation(self, gradients: RepresentationGradients, losses: Losses) -> CombinedAtRepresentation:
        """Combines the heads' representation gradients."""
        gradients = gradients.times(losses.factors)
        products = replicas.all_reduce_sum(gradients.gramian())
        if "gradients" in self.balancer.uses:
            found = _combine_rows(self.balancer, losses, gradients.rows(), products)
            combined, coefficients, square = found.gradients, found.coefficients, found.square
        else:
            coefficients, square = _coefficients(self.balancer, losses, products), None
            combined = gradients.times(coefficients).total()
        return CombinedAtRepresentation(
            gradients=combined,
            factors=_times(coefficients, losses.factors),
            coefficients=coefficients,
            gramian=products,
            square=square,
        )

    def combine_heads(
        self, network: Network, gathered: GradientsPerHead, folds: Sequence[GradientsPerHead], losses: Losses
    ) -> Combined:
        products = _reduced(gathered.gramian, losses.factors)
        coefficients = _coefficients(self.balancer, losses, products)
        encoder = _plus_heads(gathered.added, gathered.per_head, _times(coefficients, losses.factors))
        return Combined(
            gradients=replicas.all_reduce_sum(encoder),
            coefficients=coefficients,
            gramian=products,
            at_representation=products,
        )


@dataclass(frozen=True)
class BalanceAtParameters(Combiner):
    """A balancer on the gradients of the encoder's parameters.

    Attributes:
        balancer: The balancer.
        measure: Computes inner products at the representation, or None.
    """

    balancer: Balancer
    measure: Measure | None = None

    @property
    def num_folds(self) -> int:  # type: ignore[override]
        return self.balancer.num_folds

    def combine_heads(
        self, network: Network, gathered: GradientsPerHead, folds: Sequence[GradientsPerHead], losses: Losses
    ) -> Combined:
        factors = losses.factors
        measured = None if gathered.gramian is None else _reduced(gathered.gramian, factors)
        rest = replicas.all_reduce_sum(gathered.added)
        rows = [replicas.all_reduce_sum(row) for row in gathered.per_head]
        if "gradients" in self.balancer.uses:
            matrices = [matrix.times(factors) for matrix in _dense_rows(rows, network.encoder_tensors)]
            products = gramian([matrix.values for matrix in matrices], len(rows))
            found = _combine_rows(self.balancer, losses, matrices, products)
            coefficients, square = found.coefficients, found.square
            encoder = [added(a, b) for a, b in zip(rest, found.gradients)]
        else:
            square = None
            products = weighted(products_of(rows), factors)
            between = None if self.num_folds == 1 else weighted(_between_folds(losses.given.counts, folds, rows), factors)
            coefficients = _coefficients(self.balancer, losses, products, between)
            encoder = _plus_heads(rest, rows, _times(coefficients, factors))
        return Combined(
            gradients=encoder,
            coefficients=coefficients,
            gramian=products,
            at_representation=measured,
            square=square,
        )


def _between_folds(counts: tf.Tensor, folds: Sequence[GradientsPerHead], rows: Sequence[list[Gradient]]) -> tf.Tensor:
    """The mean inner products of the heads' gradients on different folds of the data.

    Args:
        counts: `[num_heads]` counts of labelled elements in the whole update.
        folds: The sums of each fold on this replica.
        rows: Each head's gradients over all folds and replicas.

    Returns:
        `[num_heads, num_heads]` float64, symmetric: inner products of the gradients of the folds' mean losses, averaged
        over ordered pairs of different folds. For heads without labels in any such pair, inner products of `rows`.
    """
    num_heads = len(rows)
    of_folds = replicas.all_reduce_sum(tf.stack([fold.sums.counts for fold in folds]))
    fractions = tf.cast(tf.math.divide_no_nan(of_folds, counts), tf.float64)
    per_fold = [[replicas.all_reduce_sum(row) for row in fold.per_head] for fold in folds]
    sums, pairs = tf.zeros([num_heads, num_heads], tf.float64), tf.zeros([num_heads, num_heads], tf.float64)
    for a in range(len(folds)):
        for b in range(a):
            weights = fractions[a][:, tf.newaxis] * fractions[b]
            products = tf.math.divide_no_nan(_cross_products(per_fold[a], per_fold[b]), weights)
            has_labels = tf.cast(weights > 0, tf.float64)
            sums += products + tf.transpose(products)
            pairs += has_labels + tf.transpose(has_labels)
    return tf.where(pairs > 0, tf.math.divide_no_nan(sums, pairs), products_of(rows))


def _sum(encoder: list[Gradient], losses: Losses, products: tf.Tensor | None, factors: tf.Tensor | None = None) -> Combined:
    """The plain sum: the encoder's gradients over all replicas, and this replica's inner products of the heads', or None."""
    products = None if products is None else weighted(replicas.all_reduce_sum(products), factors)
    coefficients = tf.cast(losses.given.active, tf.float32)
    return Combined(gradients=encoder, coefficients=coefficients, gramian=products, at_representation=products)


def _reduced(products: tf.Tensor, factors: tf.Tensor | None) -> tf.Tensor:
    """Inner products over all replicas, after each row is multiplied by its factor."""
    return weighted(replicas.all_reduce_sum(products), factors)


def _times(coefficients: tf.Tensor, factors: tf.Tensor | None) -> tf.Tensor:
    return coefficients if factors is None else coefficients * factors


def _coefficients(balancer: Balancer, losses: Losses, products: tf.Tensor, folds: tf.Tensor | None = None) -> tf.Tensor:
    """`[num_heads]` coefficients from reduced inner products; 0 for idle heads."""
    used = balancer.used(step=losses.given.step, losses=lambda: losses.means, folds=folds)
    return tf.where(losses.given.active, tf.cast(balancer.coefficients(products, **used), tf.float32), 0.0)


class CombinedRows(NamedTuple):
    """The result of a method that needs the gradients themselves.

    Attributes:
        gradients: The combined gradient `d`: one per matrix, None for None.
        coefficients: `[num_heads]`: `<d, g_k> / <g_k, g_k>`.
        square: `<d, d>`, float64.
    """

    gradients: list[Gradient]
    coefficients: tf.Tensor
    square: tf.Tensor


def _combine_rows(balancer: Balancer, losses: Losses, matrices: Sequence[Rows | None], products: tf.Tensor) -> CombinedRows:
    """Combines the heads' gradients, one matrix per tensor, with a method that needs them."""
    active, present = losses.given.active, [matrix for matrix in matrices if matrix is not None]
    if not present:
        return CombinedRows(gradients=[None] * len(matrices), coefficients=tf.zeros([len(active)]), square=tf.zeros([]))
    used = balancer.used(step=losses.given.step, losses=lambda: losses.means)
    masked = [tf.where(active[:, tf.newaxis], matrix.values, tf.zeros_like(matrix.values)) for matrix in present]
    combined = balancer.combine(masked, **used)
    # Matrices of a float64 network's variables are float64.
    along = tf.add_n([tf.cast(tf.linalg.matvec(values, d), tf.float32) for values, d in zip(masked, combined)])
    squares = tf.cast(tf.linalg.diag_part(products), tf.float32)
    restored = iter([matrix.restore(vector) for matrix, vector in zip(present, combined)])
    return CombinedRows(
        gradients=[None if matrix is None else next(restored) for matrix in matrices],
        coefficients=tf.math.divide_no_nan(along, tf.where(active, squares, 0.0)),
        square=tf.add_n([tf.reduce_sum(tf.square(tf.cast(vector, tf.float64))) for vector in combined]),
    )


def cosines_of(products: tf.Tensor) -> tf.Tensor:
    """`[..., n, n]` float32 cosines from inner products of the same shape; NaN for a vector of norm 0."""
    norms = tf.sqrt(tf.linalg.diag_part(products))
    scales = norms[..., :, tf.newaxis] * norms[..., tf.newaxis, :]
    is_known = scales > 0
    found = tf.where(is_known, products / tf.where(is_known, scales, 1.0), float("nan"))
    return tf.cast(tf.clip_by_value(found, -1.0, 1.0), tf.float32)


def weighted(products: tf.Tensor, factors: tf.Tensor | None) -> tf.Tensor:
    """The inner products of rows after each row is multiplied by its factor; unchanged for None."""
    products = tf.cast(products, tf.float64)  # in eager mode, those of a batch without examples are zeros of any dtype
    if factors is None:
        return products
    wide = tf.cast(factors, tf.float64)
    return products * wide * wide[:, tf.newaxis]


def _plus_heads(total: Sequence[Gradient], rows: Sequence[list[Gradient]], factors: tf.Tensor | None) -> list[Gradient]:
    """Adds each head's gradients, multiplied by its factor, to a list of gradients; None means factors of 1."""
    total = list(total)
    for k, row in enumerate(rows):
        total = [added(a, b if factors is None else scaled(b, factors[k])) for a, b in zip(total, row)]
    return total


def products_of(rows: Sequence[list[Gradient]]) -> tf.Tensor:
    """`[num_heads, num_heads]` inner products of the heads' gradients of the same variables."""
    matrices = [as_rows(column) for column in zip(*rows)]
    return gramian([matrix.values for matrix in matrices if matrix is not None], len(rows))


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


def _dense_rows(rows: Sequence[list[Gradient]], variables: Sequence[tf.Variable]) -> list[Rows]:
    """The heads' gradients as dense matrices with zeros for None, as methods with state per parameter need them."""
    dense = [
        [tf.zeros(v.shape, tf.float32) if g is None else tf.convert_to_tensor(g) for g, v in zip(row, variables)]
        for row in rows
    ]
    return [matrix for column in zip(*dense) if (matrix := as_rows(column)) is not None]
