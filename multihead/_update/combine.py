"""Combines the heads' encoder gradients into one: plain sum, or balanced at the representation or at the parameters.

Balancing is not linear, so it happens once per update, on inner products over all micro-batches and replicas. With one
micro-batch, the coefficients are known before the encoder's backward pass, and one such pass is enough. With several, the
inner products at the representation are complete only after the last one, so each micro-batch computes the encoder
gradient of every head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.gradients import Rows, added, as_rows, gramian, scaled
from multihead._ground.keras import Gradient
from multihead._update.backward import Balanced, Combine, CombinedAtRepresentation, Measure, MicroBatchGradients
from multihead._update.network import Network
from multihead._update.representation import RepresentationGradients
from multihead._update.weights import LossWeights


class HeadsAtStep(NamedTuple):
    """The heads in one update, before its gradients are known.

    Attributes:
        step: The number of updates applied so far, an int64 scalar.
        active: `[num_heads]`: which heads the update trains.
        counts: `[num_heads]` counts of labelled elements in the whole update, over all replicas.
        weights: The weights of their losses.
    """

    step: tf.Tensor
    active: tf.Tensor
    counts: tf.Tensor
    weights: LossWeights


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
    """Combines the heads in one update.

    Attributes:
        measure: Computes inner products at the representation in each micro-batch that is not combined early; or None.
        num_folds: The number of folds of the data for which `combine` needs separate sums.
    """

    measure: Measure | None = None
    num_folds: int = 1

    def combine_early(self, num_micro_batches: int) -> Combine | None:
        """The function that combines the heads inside a micro-batch, before the encoder's backward pass.

        None if they can be combined only after the last micro-batch, which requires each head's encoder gradient.

        Args:
            num_micro_batches: The number of micro-batches in the update.
        """
        return None

    @abstractmethod
    def combine(self, gathered: MicroBatchGradients, folds: Sequence[MicroBatchGradients]) -> Combined:
        """Combines the heads over all micro-batches and replicas.

        Args:
            gathered: The sums over this replica's micro-batches.
            folds: The sums over each fold of them.
        """


class SumHeads(Combiner):
    """The plain sum: the coefficient of every active head is 1.

    Args:
        network: The encoder and the heads.
        measure: Computes inner products at the representation, or None.
        heads: The heads in this update.
    """

    def __init__(self, network: Network, measure: Measure | None, heads: HeadsAtStep) -> None:
        self.measure = measure
        self._heads = heads

    def combine_early(self, num_micro_batches: int) -> Combine | None:
        return self._at_representation if num_micro_batches == 1 or not self._heads.weights.depend_on_losses else None

    def _at_representation(self, gradients: RepresentationGradients, loss_sums: tf.Tensor) -> CombinedAtRepresentation:
        factors = self._heads.weights.factors(loss_sums)
        gradients = gradients.times(factors)
        measured = None if self.measure is None else self.measure(gradients)
        factors = tf.ones([len(gradients.by_head)]) if factors is None else factors
        return CombinedAtRepresentation(gradients.total(), factors, measured, None)

    def combine(self, gathered: MicroBatchGradients, folds: Sequence[MicroBatchGradients]) -> Combined:
        coefficients = tf.cast(self._heads.active, tf.float32)
        factors = self._heads.weights.factors(gathered.loss_sums) if gathered.per_head else None
        measured = None if gathered.gramian is None else weighted(replicas.all_reduce_sum(gathered.gramian), factors)
        encoder = _plus_heads(gathered.encoder, gathered.per_head, factors)
        return Combined(replicas.all_reduce_sum(encoder), coefficients, measured, measured)


class BalanceAtRepresentation(Combiner):
    """A balancer on the representation gradients.

    Args:
        network: The encoder and the heads.
        balancer: The balancer.
        heads: The heads in this update.
    """

    measure = staticmethod(RepresentationGradients.gramian)

    def __init__(self, network: Network, balancer: Any, heads: HeadsAtStep) -> None:
        self._balancer = balancer
        self._heads = heads

    def combine_early(self, num_micro_batches: int) -> Combine | None:
        return self._at_representation if num_micro_batches == 1 else None

    def _at_representation(self, gradients: RepresentationGradients, loss_sums: tf.Tensor) -> CombinedAtRepresentation:
        factors = self._heads.weights.factors(loss_sums)
        gradients = gradients.times(factors)
        products = replicas.all_reduce_sum(gradients.gramian())
        if "gradients" in self._balancer.uses:
            matrices = gradients.rows()
            combined, coefficients, square = _combine_rows(self._balancer, self._heads, matrices, products, loss_sums)
        else:
            coefficients, square = _coefficients(self._balancer, self._heads, products, loss_sums), None
            combined = gradients.times(coefficients).total()
        given = coefficients if factors is None else coefficients * factors
        return CombinedAtRepresentation(combined, given, None, Balanced(coefficients, products, square))

    def combine(self, gathered: MicroBatchGradients, folds: Sequence[MicroBatchGradients]) -> Combined:
        if gathered.balanced is not None:
            coefficients, products, square = gathered.balanced
            return Combined(replicas.all_reduce_sum(gathered.encoder), coefficients, products, products, square)
        factors = self._heads.weights.factors(gathered.loss_sums)
        products = weighted(replicas.all_reduce_sum(gathered.gramian), factors)
        coefficients = _coefficients(self._balancer, self._heads, products, gathered.loss_sums)
        given = coefficients if factors is None else coefficients * factors
        encoder = _plus_heads(gathered.encoder, gathered.per_head, given)
        return Combined(replicas.all_reduce_sum(encoder), coefficients, products, products)


class BalanceAtParameters(Combiner):
    """A balancer on the gradients of the encoder's parameters.

    Args:
        network: The encoder and the heads.
        balancer: The balancer.
        measure: Computes inner products at the representation, or None.
        heads: The heads in this update.
    """

    def __init__(self, network: Network, balancer: Any, measure: Measure | None, heads: HeadsAtStep) -> None:
        self.measure = measure
        self.num_folds = balancer.num_folds
        self._network = network
        self._balancer = balancer
        self._heads = heads

    def combine(self, gathered: MicroBatchGradients, folds: Sequence[MicroBatchGradients]) -> Combined:
        factors = self._heads.weights.factors(gathered.loss_sums)
        at_representation = (
            None if gathered.gramian is None else weighted(replicas.all_reduce_sum(gathered.gramian), factors)
        )
        rest = replicas.all_reduce_sum(gathered.encoder)
        rows = [replicas.all_reduce_sum(row) for row in gathered.per_head]
        if "gradients" in self._balancer.uses:
            matrices = [matrix.times(factors) for matrix in _dense_rows(rows, self._network.encoder_tensors)]
            products = gramian([matrix.values for matrix in matrices], len(rows))
            combined, coefficients, square = _combine_rows(
                self._balancer, self._heads, matrices, products, gathered.loss_sums
            )
            encoder = [added(a, b) for a, b in zip(rest, combined)]
        else:
            square = None
            products = weighted(products_of(rows), factors)
            between = None if self.num_folds == 1 else weighted(self._between_folds(folds, rows), factors)
            coefficients = _coefficients(self._balancer, self._heads, products, gathered.loss_sums, between)
            encoder = _plus_heads(rest, rows, coefficients if factors is None else coefficients * factors)
        return Combined(encoder, coefficients, products, at_representation, square)

    def _between_folds(self, folds: Sequence[MicroBatchGradients], rows: Sequence[list[Gradient]]) -> tf.Tensor:
        """The mean inner products of the heads' gradients on different folds of the data.

        Args:
            folds: The sums of each fold on this replica.
            rows: Each head's gradients over all folds and replicas.

        Returns:
            `[num_heads, num_heads]` float64, symmetric: inner products of the gradients of the folds' mean losses, averaged
            over ordered pairs of different folds. For heads without labels in any such pair, inner products of `rows`.
        """
        num_heads = len(rows)
        counts = replicas.all_reduce_sum(tf.stack([fold.counts for fold in folds]))
        fractions = tf.cast(tf.math.divide_no_nan(counts, self._heads.counts), tf.float64)
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


def _coefficients(
    balancer: Any, heads: HeadsAtStep, products: tf.Tensor, loss_sums: tf.Tensor, folds: tf.Tensor | None = None
) -> tf.Tensor:
    """`[num_heads]` coefficients from reduced inner products; 0 for idle heads."""
    used = balancer.used(step=heads.step, losses=lambda: heads.weights.mean_losses(loss_sums), folds=folds)
    return tf.where(heads.active, tf.cast(balancer.coefficients(products, **used), tf.float32), 0.0)


def _combine_rows(
    balancer: Any, heads: HeadsAtStep, matrices: Sequence[Rows | None], products: tf.Tensor, loss_sums: tf.Tensor
) -> tuple[list[Gradient], tf.Tensor, tf.Tensor]:
    """Combines the heads with a method that needs the gradients themselves.

    Returns:
        One gradient per matrix (None for None), the `[num_heads]` coefficients `<d, g_k> / <g_k, g_k>` of the combined
        gradient `d`, and `<d, d>`.
    """
    present = [matrix for matrix in matrices if matrix is not None]
    if not present:
        return [None] * len(matrices), tf.zeros([len(heads.active)]), tf.zeros([])
    used = balancer.used(step=heads.step, losses=lambda: heads.weights.mean_losses(loss_sums))
    masked = [tf.where(heads.active[:, tf.newaxis], matrix.values, tf.zeros_like(matrix.values)) for matrix in present]
    combined = balancer.combine(masked, **used)
    # Matrices of a float64 network's variables are float64.
    along = tf.add_n([tf.cast(tf.linalg.matvec(values, d), tf.float32) for values, d in zip(masked, combined)])
    squares = tf.cast(tf.linalg.diag_part(products), tf.float32)
    restored = iter([matrix.restore(vector) for matrix, vector in zip(present, combined)])
    gradients = [None if matrix is None else next(restored) for matrix in matrices]
    square = tf.add_n([tf.reduce_sum(tf.square(tf.cast(vector, tf.float64))) for vector in combined])
    return gradients, tf.math.divide_no_nan(along, tf.where(heads.active, squares, 0.0)), square


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
