"""Combines the heads' encoder gradients into one: plain sum, or balanced at the representation or at the parameters.

Balancing is not linear, so it happens once per update, on inner products over all micro-batches and replicas. With one
micro-batch, the coefficients are known before the encoder's backward pass, and one such pass is enough. With several, the
inner products at the representation are complete only after the last one: either the encoder runs forward a second time, or
each micro-batch computes the encoder gradient of every head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.tensors import Rows, added, as_rows, gramian, in_xla, where, with_none
from multihead._ground.types import Gradient
from multihead._update.backward import (
    CombinedPass,
    EncoderPass,
    GradientsPerHead,
    Measure,
    MicroBatchGradients,
    PassPerHead,
    SummedGradients,
    SummedPass,
    plus_heads,
)
from multihead._update.combined import Combined
from multihead._update.loops import can_loop
from multihead._update.network import Network
from multihead._update.products import products_of, weighted
from multihead._update.representation import RepresentationGradients
from multihead._update.two_passes import AtRepresentation, Repeatable, TwoPasses
from multihead._update.weights import Losses, LossWeights, times_factors
from multihead.balancing import Balancer

Gathered = MicroBatchGradients | AtRepresentation


class Setting(NamedTuple):
    """What decides, with a combiner, how often micro-batches run through the encoder.

    Attributes:
        num_micro_batches: The number of micro-batches in an update.
        depend_on_losses: Whether weights of the heads' losses depend on the losses of the same update.
        by_layer: Whether there are updates that are measured by layer.
        can_loop: Whether there is a graph to loop in; see `multihead._update.loops.can_loop`.
        in_xla: Whether XLA compiles the graph.
    """

    num_micro_batches: int
    depend_on_losses: bool
    by_layer: bool
    can_loop: bool
    in_xla: bool


class Passes(NamedTuple):
    """How often a micro-batch runs through the encoder.

    Attributes:
        num_forward: How often it runs forward.
        per_head: Whether it runs backward once for each head, or else once for all.
        may_reuse: Whether it runs backward once for all in updates that reuse coefficients.
    """

    num_forward: int = 1
    per_head: bool = False
    may_reuse: bool = False


class Combiner(ABC):
    """Combines the heads of updates.

    Attributes:
        at_representation: Combines the representation gradients of a whole update, where that is enough; or None.
        measure: Computes inner products at the representation where the heads are not combined; or None.
        repeatable: What it takes to combine the heads of several micro-batches at the representation in two passes; or None.
        may_reuse: Whether an update whose coefficients are known before may do without the heads' own gradients.
    """

    at_representation: Any = None
    measure: Measure | None = None
    repeatable: Repeatable | None = None
    may_reuse: bool = False

    def of_update(self, weights: LossWeights) -> Combiner:
        """The combiner of one update, with what is known before its gradients; by default the same.

        Args:
            weights: The weights of the heads' losses in this update.
        """
        return self

    def waits(self, num_micro_batches: int, depend_on_losses: bool) -> bool:
        """Whether heads that are combined at the representation can be combined only after the last micro-batch.

        Args:
            num_micro_batches: As in `Setting`.
            depend_on_losses: As in `Setting`.
        """
        return num_micro_batches > 1

    def passes(self, setting: Setting) -> Passes:
        """How often micro-batches run through the encoder: the decision that `encoder_pass` carries out."""
        if self.at_representation is None:
            return Passes(per_head=True)
        if not self.waits(setting.num_micro_batches, setting.depend_on_losses):
            return Passes()
        is_repeated = self.repeatable is not None and not setting.by_layer and setting.can_loop
        return Passes(num_forward=2) if is_repeated else Passes(per_head=True)

    def encoder_pass(
        self, weights: LossWeights, num_micro_batches: int, by_layer: tf.Tensor | None
    ) -> EncoderPass | TwoPasses:
        """How the heads' gradients go through the encoder: combined already, or in a pass for each, to be combined later.

        Args:
            weights: The weights of the heads' losses in this update.
            num_micro_batches: The number of micro-batches in the update.
            by_layer: Whether the update is measured by layer, a boolean scalar; None if none is.
        """
        setting = Setting(num_micro_batches, weights.depend_on_losses, by_layer is not None, can_loop(), in_xla())
        passes = self.passes(setting)
        if passes.per_head:
            return PassPerHead(self.measure)
        if self.repeatable is not None and passes.num_forward == 2:
            return TwoPasses(self.measure, self.repeatable)
        return CombinedPass(self.at_representation, weights, self.measure is not None, by_layer)

    def combine(self, network: Network, gathered: Gathered, losses: Losses) -> Combined:
        """Combines the heads over all micro-batches and replicas.

        Args:
            network: The encoder and the heads.
            gathered: The sums over this replica's micro-batches.
            losses: The losses over all replicas, and their weights.
        """
        if isinstance(gathered, GradientsPerHead | AtRepresentation):
            return self.combine_heads(network, gathered, losses)
        encoder = replicas.all_reduce_sum(gathered.encoder)
        if isinstance(gathered, SummedGradients):
            return _sum(encoder, losses, gathered.gramian)
        return gathered.combined._replace(gradients=encoder)

    @abstractmethod
    def combine_heads(self, network: Network, gathered: Any, losses: Losses) -> Combined:
        """Combines the heads' encoder gradients; the arguments are those of `combine`."""


@dataclass(frozen=True)
class SumHeads(Combiner):
    """The plain sum: the coefficient of every active head is 1.

    Attributes:
        measure: Computes inner products at the representation, or None.
        repeatable: As in `Combiner`.
    """

    measure: Measure | None = None
    repeatable: Repeatable | None = None

    def waits(self, num_micro_batches: int, depend_on_losses: bool) -> bool:
        return depend_on_losses and super().waits(num_micro_batches, depend_on_losses)

    def encoder_pass(
        self, weights: LossWeights, num_micro_batches: int, by_layer: tf.Tensor | None
    ) -> EncoderPass | TwoPasses:
        if not weights.depend_on_losses:
            return SummedPass(self.measure, by_layer)
        return super().encoder_pass(weights, num_micro_batches, by_layer)

    def at_representation(self, gradients: RepresentationGradients, losses: Losses) -> Combined:
        """Adds up the heads' representation gradients, times their loss-dependent factors."""
        gradients = gradients.times(losses.factors)
        return _sum(gradients.total(), losses, None if self.measure is None else self.measure(gradients))

    def combine_heads(self, network: Network, gathered: Any, losses: Losses) -> Combined:
        encoder = replicas.all_reduce_sum(gathered.combined(losses.factors))
        return _sum(encoder, losses, gathered.gramian, losses.factors)


@dataclass(frozen=True)
class BalanceAtRepresentation(Combiner):
    """A balancer on the representation gradients.

    Attributes:
        balancer: The balancer.
        repeatable: As in `Combiner`.
    """

    balancer: Balancer
    repeatable: Repeatable | None = None
    measure = staticmethod(RepresentationGradients.gramian)

    def at_representation(self, gradients: RepresentationGradients, losses: Losses) -> Combined:
        """Combines the heads' representation gradients."""
        gradients = gradients.times(losses.factors)
        products = replicas.all_reduce_sum(gradients.gramian())
        if "gradients" in self.balancer.uses:
            found = _combine_rows(self.balancer, losses, gradients.rows(), products)
            combined, coefficients, square = found.gradients, found.coefficients, found.square
        else:
            coefficients, square = _coefficients(self.balancer, losses, products), None
            combined = gradients.times(coefficients).total()
        return Combined(combined, coefficients, gramian=products, at_representation=products, square=square)

    def combine_heads(self, network: Network, gathered: Any, losses: Losses) -> Combined:
        products = _reduced(gathered.gramian, losses.factors)
        coefficients = _coefficients(self.balancer, losses, products)
        encoder = replicas.all_reduce_sum(gathered.combined(times_factors(coefficients, losses)))
        return Combined(encoder, coefficients, gramian=products, at_representation=products)


@dataclass(frozen=True)
class BalanceAtParameters(Combiner):
    """A balancer on the gradients of the encoder's parameters.

    Attributes:
        balancer: The balancer.
        measure: Computes inner products at the representation, or None.
        may_reuse: As in `Combiner`.
        reused: In an update that may reuse coefficients, what `Balancer.reused` returns, with 0 for idle heads; or None.
    """

    balancer: Balancer
    measure: Measure | None = None
    may_reuse: bool = False
    reused: tuple[tf.Tensor, tf.Tensor] | None = None

    def passes(self, setting: Setting) -> Passes:
        return Passes(per_head=True, may_reuse=self._reuses(setting.depend_on_losses, setting.in_xla))

    def _reuses(self, depend_on_losses: bool, is_in_xla: bool) -> bool:
        """Whether there are updates that reuse coefficients; arguments as in `Setting`."""
        return self.may_reuse and not depend_on_losses and not is_in_xla

    def of_update(self, weights: LossWeights) -> BalanceAtParameters:
        reuses = self._reuses(weights.depend_on_losses, in_xla())
        found = self.balancer.reused(weights.step, weights.meeting) if reuses else None
        return self if found is None else replace(self, reused=(found[0], where(weights.meeting, found[1], 0.0)))

    def encoder_pass(self, weights: LossWeights, num_micro_batches: int, by_layer: tf.Tensor | None) -> EncoderPass:
        reused = self.reused
        if reused is not None and by_layer is not None:
            reused = reused[0] | by_layer, reused[1]
        return PassPerHead(self.measure, reused=reused)

    def combine_heads(self, network: Network, gathered: Any, losses: Losses) -> Combined:
        factors = losses.factors
        measured = None if gathered.gramian is None else _reduced(gathered.gramian, factors)
        rest = replicas.all_reduce_sum(gathered.added)
        rows = [replicas.all_reduce_sum(row) for row in gathered.per_head]
        if "gradients" in self.balancer.uses:
            is_measured = None
            matrices = [matrix.times(factors) for matrix in _dense_rows(rows, network.encoder_tensors)]
            products = gramian([matrix.values for matrix in matrices], len(rows))
            found = _combine_rows(self.balancer, losses, matrices, products)
            coefficients, square = found.coefficients, found.square
            encoder = [added(a, b) for a, b in zip(rest, found.gradients)]
        else:
            square = None
            is_measured = None if self.reused is None else self.reused[0]
            products = weighted(_products_if(is_measured, rows), factors)
            coefficients = _coefficients(self.balancer, losses, products)
            encoder = plus_heads(rest, rows, times_factors(coefficients, losses))
        return Combined(encoder, coefficients, products, measured, square, is_measured)


def _products_if(condition: tf.Tensor | None, rows: Sequence[list[Gradient]]) -> tf.Tensor:
    """The inner products of the heads' gradients; zeros if a condition does not hold."""
    if condition is None:
        return products_of(rows)
    return tf.cond(condition, lambda: products_of(rows), lambda: tf.zeros([len(rows)] * 2, tf.float64))


def _sum(encoder: list[Gradient], losses: Losses, products: tf.Tensor | None, factors: tf.Tensor | None = None) -> Combined:
    """The plain sum: the encoder's gradients over all replicas, and this replica's inner products of the heads', or None."""
    products = None if products is None else _reduced(products, factors)
    coefficients = tf.cast(losses.given.meeting, tf.float32)
    return Combined(gradients=encoder, coefficients=coefficients, gramian=products, at_representation=products)


def _reduced(products: tf.Tensor, factors: tf.Tensor | None) -> tf.Tensor:
    """Inner products over all replicas, after each row is multiplied by its factor."""
    return weighted(replicas.all_reduce_sum(products), factors)


def _coefficients(balancer: Balancer, losses: Losses, products: tf.Tensor) -> tf.Tensor:
    """`[num_heads]` coefficients from reduced inner products; 0 for idle heads."""
    used = balancer.used(step=losses.given.step, losses=lambda: losses.means)
    return where(losses.given.meeting, tf.cast(balancer.coefficients(products, **used), tf.float32), 0.0)


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
    active, present = losses.given.meeting, [matrix for matrix in matrices if matrix is not None]
    if not present:
        return CombinedRows(gradients=[None] * len(matrices), coefficients=tf.zeros([len(active)]), square=tf.zeros([]))
    used = balancer.used(step=losses.given.step, losses=lambda: losses.means)
    masked = [where(active[:, tf.newaxis], matrix.values, tf.zeros_like(matrix.values)) for matrix in present]
    combined = balancer.combine(masked, **used)
    # Matrices of a float64 network's variables are float64.
    along = tf.add_n([tf.cast(tf.linalg.matvec(values, d), tf.float32) for values, d in zip(masked, combined)])
    squares = tf.cast(tf.linalg.diag_part(products), tf.float32)
    return CombinedRows(
        gradients=with_none([matrix.restore(vector) for matrix, vector in zip(present, combined)], like=matrices),
        coefficients=tf.math.divide_no_nan(along, where(active, squares, 0.0)),
        square=tf.add_n([tf.reduce_sum(tf.square(tf.cast(vector, tf.float64))) for vector in combined]),
    )


def _dense_rows(rows: Sequence[list[Gradient]], variables: Sequence[tf.Variable]) -> list[Rows]:
    """The heads' gradients as dense matrices with zeros for None, as methods with state per parameter need them."""
    dense = [
        [tf.zeros(v.shape, tf.float32) if g is None else tf.convert_to_tensor(g) for g, v in zip(row, variables)]
        for row in rows
    ]
    return [matrix for column in zip(*dense) if (matrix := as_rows(column)) is not None]
