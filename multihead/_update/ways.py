"""The ways of the heads' gradients through the encoder. The trainer chooses one when it is built.

Balancing is not linear, so it happens once per update, on inner products over all micro-batches and replicas. With one
micro-batch, the coefficients are known before the encoder's backward pass, and one such pass is enough. With several, the
inner products at the representation are complete only after the last one, so each micro-batch computes the encoder gradient
of every head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.tensors import Rows as Matrix
from multihead._ground.tensors import as_rows, computed_if, gramian, in_xla, inner_products, where, with_none
from multihead._ground.types import Gradient, Nested, Tensor
from multihead._update.micro_batches import MicroBatch, MicroBatches, accumulate, plus
from multihead._update.network import Network
from multihead._update.passes import HeadsPass, Sums, shapes_of
from multihead._update.representation import Measure, Rows, times, total, weighted
from multihead._update.update import Combined
from multihead._update.weights import Losses, LossWeights
from multihead.balancing import Balancer

Found = tuple[Sums, Losses, Combined]
"""The sums on this replica that do not depend on how the heads are combined; the losses and the gradient over all."""


class Way(ABC):
    """One way through the encoder: gathers gradients over micro-batches, and combines the heads' into one.

    The plain sum has no balancer; `measure` computes inner products at the representation, unless it is None.
    """

    per_head = False  # whether each head has a backward pass of its own through the encoder
    may_reuse = False  # whether an update may reuse coefficients, and then makes one backward pass for all heads

    def __init__(self, balancer: Balancer | None = None, measure: Measure | None = None) -> None:
        self._balancer, self.measure = balancer, measure

    @abstractmethod
    def gradients(self, network: Network, micro_batches: MicroBatches, weights: LossWeights) -> Found:
        """The gradients of an update."""

    def _measured(self, rows: Rows) -> tf.Tensor | None:
        return None if self.measure is None else self.measure(rows)

    def _shapes(self, network: Network, *, has_rows: bool) -> Nested:
        """The dense shapes of sums, the encoder's gradients, those of each head, and inner products, of a micro-batch."""
        encoder, num_heads = shapes_of(network.encoder_tensors), len(network.heads)
        products = None if self.measure is None else tf.constant([num_heads, num_heads])
        return Sums.shapes(network), encoder, [encoder] * num_heads if has_rows else [], products


class Summed(Way):
    """Adds the heads' gradients before one backward pass of each micro-batch, where their weights are known before."""

    def gradients(self, network: Network, micro_batches: MicroBatches, weights: LossWeights) -> Found:
        def of_micro_batch(micro_batch: MicroBatch) -> Nested:
            found = HeadsPass(network, micro_batch, weights)
            rows = found.at_representation
            encoder = found.backward(total(rows), tf.ones([len(rows)]))
            sums = Sums.of(found, is_measured=self.measure is not None)
            return sums, encoder, [], self._measured(rows)

        shapes = self._shapes(network, has_rows=False) if len(micro_batches) > 1 else None
        sums, encoder, _, products = accumulate(of_micro_batch, micro_batches, shapes)
        losses, products = Losses(weights, sums.losses), _reduced(products, None)
        encoder, coefficients = replicas.all_reduce_sum(encoder), coefficients_of(None, losses, products)
        return sums, losses, Combined(encoder, coefficients, products, products)


class CombinedFirst(Way):
    """Combines the heads at the representation before one backward pass, for updates of a single micro-batch."""

    def gradients(self, network: Network, micro_batches: MicroBatches, weights: LossWeights) -> Found:
        (micro_batch,) = micro_batches
        found = HeadsPass(network, micro_batch, weights)
        sums = Sums.of(found, is_measured=self.measure is not None)
        losses = Losses(weights, sums.losses)
        rows, square = times(found.at_representation, losses.factors), None
        products = _reduced(self._measured(rows), None)
        if self._balancer is not None and "gradients" in self._balancer.uses:
            matrices = [as_rows(column) for column in zip(*rows)]
            leaves, coefficients, square = combine_matrices(self._balancer, losses, matrices, products)
        else:
            coefficients = coefficients_of(self._balancer, losses, products)
            leaves = total(rows if self._balancer is None else times(rows, coefficients))
        encoder = replicas.all_reduce_sum(found.backward(leaves, losses.times_factors(coefficients)))
        return sums, losses, Combined(encoder, coefficients, products, products, square, leaves=rows)


class PassPerHead(Way):
    """Makes a backward pass of each micro-batch for each head, and combines the sums over micro-batches.

    With `at_parameters`, the gradients of the encoder's parameters are balanced, not those at the representation.
    """

    per_head = True

    def __init__(
        self,
        balancer: Balancer | None = None,
        measure: Measure | None = None,
        *,
        at_parameters: bool = False,
        may_reuse: bool = False,
    ) -> None:
        super().__init__(balancer, measure)
        self._at_parameters, self.may_reuse = at_parameters, may_reuse

    def gradients(self, network: Network, micro_batches: MicroBatches, weights: LossWeights) -> Found:
        solves, known = self._reused(weights)

        def of_micro_batch(micro_batch: MicroBatch) -> Nested:
            found = HeadsPass(network, micro_batch, weights)
            sums, products = Sums.of(found, is_measured=False), self._measured(found.at_representation)
            if solves is None:
                return sums, found.of_added(), found.by_head(), products
            return sums, *_apart_or_combined(found, solves, known), products

        shapes = self._shapes(network, has_rows=True) if len(micro_batches) > 1 else None
        sums, rest, rows, products = accumulate(of_micro_batch, micro_batches, shapes)
        losses = Losses(weights, sums.losses)
        at_representation = _reduced(products, losses.factors)
        if self._at_parameters:
            rest, rows = replicas.all_reduce_sum(rest), _of_all_replicas(rows)
            return sums, losses, self._balanced(network, rest, rows, losses, at_representation, solves)
        coefficients = coefficients_of(self._balancer, losses, at_representation)
        encoder = replicas.all_reduce_sum(plus(rest, total(times(rows, losses.times_factors(coefficients)))))
        return sums, losses, Combined(encoder, coefficients, at_representation, at_representation)

    def _reused(self, weights: LossWeights) -> tuple[tf.Tensor | None, tf.Tensor | None]:
        """Whether coefficients are found in this update, a boolean scalar, and those to use otherwise; None: always."""
        if self._balancer is None or not self.may_reuse or in_xla():
            return None, None
        found = self._balancer.reused(weights.step, weights.meeting)
        if found is None:
            return None, None
        solves, coefficients = found
        return solves, where(weights.meeting, coefficients, 0.0)

    def _balanced(
        self,
        network: Network,
        rest: list[Gradient],
        rows: Rows,
        losses: Losses,
        at_representation: tf.Tensor | None,
        solves: tf.Tensor | None,
    ) -> Combined:
        """Combines the heads' gradients of the encoder's parameters, and adds the rest, which is not combined."""
        square, is_measured = None, solves
        if self._balancer is not None and "gradients" in self._balancer.uses:
            is_measured, matrices = None, []
            for variable, *column in zip(network.encoder_tensors, *rows):  # dense: methods have state per parameter
                dense = [tf.zeros(variable.shape) if each is None else tf.convert_to_tensor(each) for each in column]
                matrices += [matrix.times(losses.factors) for matrix in [as_rows(dense)] if matrix is not None]
            products = gramian([matrix.values for matrix in matrices], len(rows))
            found, coefficients, square = combine_matrices(self._balancer, losses, matrices, products)
        else:
            if solves is None:
                products = inner_products(rows)
            else:
                size = [len(rows)] * 2
                products = tf.cond(solves, lambda: inner_products(rows), lambda: tf.zeros(size, tf.float64))
            products = weighted(products, losses.factors)
            coefficients = coefficients_of(self._balancer, losses, products)
            found = total(times(rows, losses.times_factors(coefficients)))
        combined = plus(rest, found)
        return Combined(combined, coefficients, products, at_representation, square, is_measured, rows)


def _apart_or_combined(found: HeadsPass, solves: tf.Tensor, factors: tf.Tensor) -> tuple[list[Gradient], Rows]:
    """The gradients of added losses and those of each head, if a condition holds; otherwise of the losses times factors.

    The heads' own gradients are then zeros in a graph, and None in eager mode.
    """

    def combined() -> list[Gradient]:
        return found.backward(total(times(found.at_representation, factors)), factors)

    tensors = found.network.encoder_tensors
    if tf.executing_eagerly():  # where a gradient that does not exist stays None
        return (found.of_added(), found.by_head()) if solves else (combined(), [[None] * len(tensors)] * len(found.heads))
    shapes = [tf.shape(tensor) for tensor in tensors]
    either = plus(computed_if(solves, found.of_added, shapes), computed_if(~solves, combined, shapes))
    return either, found.by_head_if(solves)


def _of_all_replicas(rows: Rows) -> list[list[Gradient]]:
    return [replicas.all_reduce_sum(row) for row in rows]


def _reduced(products: tf.Tensor | None, factors: tf.Tensor | None) -> tf.Tensor | None:
    """Inner products over all replicas, after each row is multiplied by its factor."""
    return None if products is None else weighted(replicas.all_reduce_sum(products), factors)


def coefficients_of(balancer: Balancer | None, losses: Losses, products: Tensor) -> tf.Tensor:
    """`[num_heads]` coefficients of the heads' weighted gradients, from their inner products; 0 for idle heads."""
    meeting = losses.given.meeting
    if balancer is None:
        return tf.cast(meeting, tf.float32)
    used = balancer.used(step=losses.given.step, losses=lambda: losses.means)
    return where(meeting, tf.cast(balancer.coefficients(products, **used), tf.float32), 0.0)


def combine_matrices(
    balancer: Balancer, losses: Losses, matrices: Sequence[Matrix | None], products: Tensor
) -> tuple[list[Gradient], tf.Tensor, tf.Tensor]:
    """Combines the heads' gradients, the rows of one matrix per tensor, with a method that needs them.

    Returns the combined gradient `d`, one per matrix; `[num_heads]` coefficients `<d, g_k> / <g_k, g_k>`; and `<d, d>`,
    float64.
    """
    active, present = losses.given.meeting, [matrix for matrix in matrices if matrix is not None]
    if not present:
        return [None] * len(matrices), tf.zeros([len(active)]), tf.zeros([])
    used = balancer.used(step=losses.given.step, losses=lambda: losses.means)
    masked = [where(active[:, tf.newaxis], matrix.values, tf.zeros_like(matrix.values)) for matrix in present]
    combined = balancer.combine(masked, **used)
    # Matrices of a float64 network's variables are float64.
    along = tf.add_n([tf.cast(tf.linalg.matvec(values, d), tf.float32) for values, d in zip(masked, combined)])
    squares = tf.cast(tf.linalg.diag_part(products), tf.float32)
    gradients = with_none([matrix.restore(vector) for matrix, vector in zip(present, combined)], like=matrices)
    square = tf.add_n([tf.reduce_sum(tf.square(tf.cast(vector, tf.float64))) for vector in combined])
    return gradients, tf.math.divide_no_nan(along, where(active, squares, 0.0)), square
