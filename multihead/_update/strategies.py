"""Strategies for the heads' gradients to go back through the encoder. The trainer chooses one when it is built.

Coefficients that are known before an update, as those of the plain sum and of methods with running averages are, need one
backward pass through the encoder per micro-batch. Others come from inner products over all micro-batches and replicas,
since balancing is not linear. Of a single micro-batch, these are known before the encoder's backward pass, and one such pass
is enough. Of several, they are complete only after the last one: either each micro-batch runs through the encoder once more
(`TwoPasses`), or it computes the encoder gradient of every head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

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
from multihead._update.weights import Losses, LossWeights, depends_on_losses
from multihead.balancing import Balancer

Gathered = tuple[Sums, Losses, Combined]
"""This replica's sums that do not depend on how the heads are combined; losses and combined gradient over all replicas."""


class Reuse(NamedTuple):
    """Coefficients of an earlier update, for the updates between two that compute their own."""

    solves: tf.Tensor  # whether this update computes its own, a boolean scalar
    coefficients: tf.Tensor  # `[num_heads]`: those to use if it does not


@dataclass(frozen=True)
class BackwardStrategy(ABC):
    """One way through the encoder: gathers gradients over micro-batches, and combines the heads' into one."""

    balancer: Balancer | None = None  # None for the plain sum
    measure: Measure | None = None  # computes inner products at the representation, unless it is None
    at_parameters: bool = False  # whether the gradients of the encoder's parameters are balanced
    # Whether an update may reuse coefficients, and then makes one backward pass for all heads
    may_reuse: bool = False
    passes = ""  # of a micro-batch through the encoder, as text, unless it is one forward and one backward pass

    @abstractmethod
    def gradients(self, network: Network, micro_batches: MicroBatches, weights: LossWeights) -> Gathered:
        """The gradients of an update."""

    def _measured(self, rows: Rows) -> tf.Tensor | None:
        return None if self.measure is None else self.measure(rows)

    def _reuse(self, weights: LossWeights) -> Reuse | None:
        """The coefficients of earlier updates that this one may use; None if every update computes its own."""
        if self.balancer is None or not self.may_reuse or in_xla():
            return None
        trains_encoder = weights.participation.trains_encoder
        known = self.balancer.known(weights.step, trains_encoder)
        return None if known is None else Reuse(known[0], where(trains_encoder, known[1], 0.0))

    def _shapes(self, network: Network, *, has_rows: bool) -> Nested:
        """The dense shapes of sums, the encoder's gradients, those of the heads, and inner products, of a micro-batch."""
        num_heads, encoder = len(network.heads), shapes_of(network.encoder_tensors)
        vector, own = tf.constant([num_heads]), [shapes_of(network.own_tensors(k)) for k in range(num_heads)]
        added_loss = None if tf.executing_eagerly() else tf.constant([], tf.int32)  # as in `HeadsPass._losses_of`
        sums = Sums(losses=vector, added_loss=added_loss, own=[(one, one) for one in own], broken=vector)
        products = None if self.measure is None else tf.constant([num_heads, num_heads])
        return sums, encoder, [encoder] * num_heads if has_rows else [], products


class CombinedFirst(BackwardStrategy):
    """Combines the heads' gradients at the representation, before one backward pass per micro-batch.

    Those of several micro-batches are added: their coefficients are known before the update.
    """

    def gradients(self, network: Network, micro_batches: MicroBatches, weights: LossWeights) -> Gathered:
        lags = self.balancer is not None and self.balancer.lags and not depends_on_losses(weights.weighting)
        if lags or len(micro_batches) > 1:
            return self._added(network, micro_batches, weights)
        heads = HeadsPass(network, micro_batches[0], weights)
        sums = heads.sums(is_measured=self.measure is not None)
        losses = Losses(weights, sums.losses)
        rows, square = times(heads.at_representation, losses.factors), None
        products = reduced(self._measured(rows), None)
        if self.balancer is not None and "gradients" in self.balancer.uses:
            matrices = [as_rows(column) for column in zip(*rows)]
            leaves, coefficients, square = combine_matrices(self.balancer, losses, matrices, products)
        else:
            coefficients = coefficients_of(self.balancer, losses, products)
            leaves = total(rows if self.balancer is None else times(rows, coefficients))
        encoder = replicas.all_reduce_sum(heads.backward(leaves, losses.times_factors(coefficients)))
        return sums, losses, Combined(encoder, coefficients, products, products, square, leaves=rows)

    def _added(self, network: Network, micro_batches: MicroBatches, weights: LossWeights) -> Gathered:
        known = None if self.balancer is None else self.balancer.known(weights.step, weights.participation.trains_encoder)
        lagged = None if known is None else where(weights.participation.trains_encoder, known[1], 0.0)

        def one_micro_batch(micro_batch: MicroBatch) -> Nested:
            heads = HeadsPass(network, micro_batch, weights)
            rows, sums = heads.at_representation, heads.sums(is_measured=self.measure is not None)
            encoder = heads.backward(total(times(rows, lagged)), lagged)
            return sums, encoder, [], self._measured(rows)

        shapes = self._shapes(network, has_rows=False)
        sums, encoder, _, products = accumulate(one_micro_batch, micro_batches, shapes)
        losses, products = Losses(weights, sums.losses), reduced(products, None)
        encoder, coefficients = replicas.all_reduce_sum(encoder), coefficients_of(self.balancer, losses, products)
        return sums, losses, Combined(encoder, coefficients, products, products)


class PassPerHead(BackwardStrategy):
    """Makes one backward pass per micro-batch and head, and combines the sums over micro-batches."""

    passes = "forward once and backward once per head"

    def gradients(self, network: Network, micro_batches: MicroBatches, weights: LossWeights) -> Gathered:
        reuse = self._reuse(weights)

        def one_micro_batch(micro_batch: MicroBatch) -> Nested:
            heads = HeadsPass(network, micro_batch, weights)
            sums, products = heads.sums(is_measured=False), self._measured(heads.at_representation)
            if reuse is None:
                return sums, heads.backward(), heads.by_head(), products
            return sums, *_apart_or_combined(heads, reuse), products

        shapes = self._shapes(network, has_rows=True) if len(micro_batches) > 1 else None
        sums, rest, rows, products = accumulate(one_micro_batch, micro_batches, shapes)
        losses = Losses(weights, sums.losses)
        at_representation = reduced(products, losses.factors)
        if not self.at_parameters:
            coefficients = coefficients_of(self.balancer, losses, at_representation)
            encoder = replicas.all_reduce_sum(plus(rest, total(times(rows, losses.times_factors(coefficients)))))
            return sums, losses, Combined(encoder, coefficients, at_representation, at_representation)
        rest, rows = replicas.all_reduce_sum(rest), [replicas.all_reduce_sum(row) for row in rows]
        square, is_measured = None, None if reuse is None else reuse.solves
        if self.balancer is not None and "gradients" in self.balancer.uses:
            is_measured, matrices = None, []
            for variable, *column in zip(network.encoder_tensors, *rows):  # dense: methods have state per parameter
                dense = [
                    tf.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient) for gradient in column
                ]
                matrices += [matrix.times(losses.factors) for matrix in [as_rows(dense)] if matrix is not None]
            products = gramian([matrix.values for matrix in matrices], len(rows))
            balanced, coefficients, square = combine_matrices(self.balancer, losses, matrices, products)
        else:
            if is_measured is None:
                products = inner_products(rows)
            else:
                (products,) = computed_if(is_measured, lambda: [inner_products(rows)], [tf.constant([len(rows)] * 2)])
            products = weighted(products, losses.factors)
            coefficients = coefficients_of(self.balancer, losses, products)
            balanced = total(times(rows, losses.times_factors(coefficients)))
        encoder = plus(rest, balanced)
        return sums, losses, Combined(encoder, coefficients, products, at_representation, square, is_measured, rows)


def _apart_or_combined(heads: HeadsPass, reuse: Reuse) -> tuple[list[Gradient], Rows]:
    """The gradients of added losses and those of the heads; where coefficients are reused, those of the combined losses.

    The heads' own gradients are then zeros in a graph, and None in eager mode.
    """
    (solves, factors), tensors, num_heads = reuse, heads.network.encoder_tensors, len(heads.at_representation)

    def combined() -> list[Gradient]:
        return heads.backward(total(times(heads.at_representation, factors)), factors)

    either = plus(computed_or_none(solves, heads.backward, tensors), computed_or_none(~solves, combined, tensors))
    flat = computed_or_none(solves, lambda: list(chain(*heads.by_head())), tensors * num_heads)
    starts = range(0, len(flat), len(tensors)) if tensors else [0] * num_heads
    return either, [flat[start : start + len(tensors)] for start in starts]


def computed_or_none(holds: tf.Tensor, compute: Callable[[], list[Gradient]], tensors: Sequence[Tensor]) -> list[Gradient]:
    """`compute()`, gradients by tensor, if `holds`; otherwise zeros, which are None in eager mode."""
    if tf.executing_eagerly():
        return compute() if holds else [None] * len(tensors)
    return computed_if(holds, compute, shapes_of(tensors))


def reduced(products: tf.Tensor | None, factors: tf.Tensor | None) -> tf.Tensor | None:
    """Inner products over all replicas, after the rows are multiplied by their factors."""
    return None if products is None else weighted(replicas.all_reduce_sum(products), factors)


def coefficients_of(balancer: Balancer | None, losses: Losses, products: Tensor) -> tf.Tensor:
    """`[num_heads]` coefficients of the heads' weighted gradients, from their inner products; 0 for idle heads.

    To be called once per update: a balancer with running averages moves them.
    """
    weights, dtype = losses.loss_weights, losses.loss_weights.counts.dtype
    if balancer is None:
        return tf.cast(weights.participation.trains_encoder, dtype)
    used = balancer.used(step=weights.step, losses=lambda: losses.means)
    return where(weights.participation.trains_encoder, tf.cast(balancer.coefficients(products, **used), dtype), 0.0)


def combine_matrices(
    balancer: Balancer, losses: Losses, matrices: Sequence[Matrix | None], products: Tensor
) -> tuple[list[Gradient], tf.Tensor, tf.Tensor]:
    """Combines the heads' gradients `g_k`, the rows of one matrix per tensor, with a method that needs them.

    Returns the combined gradient `d`, one per matrix; `[num_heads]` coefficients `<d, g_k> / <g_k, g_k>`; and `<d, d>`.
    """
    active, present = losses.loss_weights.participation.trains_encoder, [matrix for matrix in matrices if matrix is not None]
    if not present:
        return [None] * len(matrices), tf.zeros([len(active)]), tf.zeros([])
    used = balancer.used(step=losses.loss_weights.step, losses=lambda: losses.means)
    masked = [where(active[:, tf.newaxis], matrix.values, tf.zeros_like(matrix.values)) for matrix in present]
    combined = balancer.combine(masked, **used)
    # Matrices of a float64 network's variables are float64.
    along = tf.add_n([tf.cast(tf.linalg.matvec(values, d), tf.float32) for values, d in zip(masked, combined)])
    squares = tf.cast(tf.linalg.diag_part(products), tf.float32)
    gradients = with_none([matrix.restore(vector) for matrix, vector in zip(present, combined)], like=matrices)
    square = tf.add_n([tf.reduce_sum(tf.square(tf.cast(vector, tf.float64))) for vector in combined])
    return gradients, tf.math.divide_no_nan(along, where(active, squares, 0.0)), square
