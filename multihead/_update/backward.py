"""Forward and backward pass of one micro-batch: each head's loss, its own gradients, and its encoder gradients.

The results are sums over the micro-batch's elements, already divided by the counts of the whole update, so that
micro-batches add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground.gradients import added, scaled
from multihead._ground.keras import Gradient
from multihead._update.encoder_gradients import Encoded, add_shared
from multihead._update.head_gradients import LossFactors, gradients_of_heads
from multihead._update.labels import count_labels
from multihead._update.micro_batches import MicroBatch
from multihead._update.network import Network
from multihead._update.representation import RepresentationGradients


class Balanced(NamedTuple):
    """The result of a balancer at the representation.

    Attributes:
        coefficients: `[num_heads]`; 0 for idle heads.
        gramian: `[num_heads, num_heads]`, over all replicas.
        square: The squared norm of the combined gradient where it is no sum of the heads' gradients, or None.
    """

    coefficients: tf.Tensor
    gramian: tf.Tensor
    square: tf.Tensor | None = None


class CombinedAtRepresentation(NamedTuple):
    """The heads' representation gradients, combined before the encoder's backward pass.

    Attributes:
        gradients: The combined gradient, one tensor per leaf or None.
        factors: `[num_heads]`: the factor of each head's gradient.
        gramian: The inner products measured on this replica, `[num_heads, num_heads]`, or None.
        balanced: The result of the balancer, or None for the plain sum.
    """

    gradients: list[tf.Tensor | None]
    factors: tf.Tensor
    gramian: tf.Tensor | None
    balanced: Balanced | None


Combine = Callable[[RepresentationGradients, tf.Tensor], CombinedAtRepresentation]
"""Combines the representation gradients, given these and the `[num_heads]` loss sums."""

Measure = Callable[[RepresentationGradients], tf.Tensor]
"""Computes the inner products of the representation gradients, `[num_heads, num_heads]`, or only their diagonal."""


class EncoderPass(NamedTuple):
    """How the heads' representation gradients go through the encoder.

    Attributes:
        combine: Combines the heads at the representation, so that one backward pass through the encoder is enough; None
            computes the encoder gradients of each head.
        measure: Computes inner products at the representation if `combine` is None; or None.
        by_layer: Whether the heads' encoder gradients are computed beside the combined one, a boolean scalar; or None.
    """

    combine: Combine | None
    measure: Measure | None
    by_layer: tf.Tensor | None = None


class MicroBatchGradients(NamedTuple):
    """The sums that a micro-batch contributes to an update.

    Attributes:
        loss_sums: `[num_heads]` loss sums, not divided by counts.
        counts: `[num_heads]` counts of labelled elements.
        added_loss: Regularization and `add_loss` losses, times the micro-batch's factor.
        own: For each head, the gradients of its loss with respect to its own variables.
        added_own: For each head, the gradients of the losses added by its module with respect to its own variables.
        encoder: One gradient per encoder variable: of the combined losses and all added losses, or, while the heads are
            not combined yet, of the added losses only.
        per_head: For each head, one gradient of its loss per encoder variable; empty if the heads are combined.
        gramian: Inner products measured at the representation, `[num_heads, num_heads]`, or None.
        balanced: The result of a balancer at the representation, or None.
        beside: As `per_head`, computed beside the combined gradient in an update that is measured by layer, and zeros in
            the others; empty if `per_head` is not, or if nothing is measured by layer.
        broken: `[num_heads]`: in how many micro-batches a gradient at the representation, or of a shared variable, is not
            finite.
    """

    loss_sums: tf.Tensor
    counts: tf.Tensor
    added_loss: tf.Tensor
    own: list[list[Gradient]]
    added_own: list[list[Gradient]]
    encoder: list[Gradient]
    per_head: list[list[Gradient]]
    gramian: tf.Tensor | None
    balanced: Balanced | None
    beside: list[list[Gradient]]
    broken: tf.Tensor

    @classmethod
    def shapes(cls, network: Network, encoder_pass: EncoderPass) -> MicroBatchGradients:
        """The dense shapes of all sums, for a micro-batch without examples.

        Args:
            network: The network.
            encoder_pass: How the heads' gradients go through the encoder.
        """

        def of(variables: Sequence[Any]) -> list[Any]:
            return [tf.constant(tf.TensorShape(variable.shape).as_list(), tf.int32) for variable in variables]

        num_heads = len(network.heads)
        vector, scalar = tf.constant([num_heads]), tf.constant([], tf.int32)
        own = [of(network.own_tensors(k)) for k in range(num_heads)]
        encoder = of(network.variables.encoder)
        of_each_head = [encoder] * num_heads
        per_head = of_each_head if encoder_pass.combine is None else []
        beside = [] if encoder_pass.combine is None or encoder_pass.by_layer is None else of_each_head
        gramian = None if encoder_pass.measure is None else tf.constant([num_heads, num_heads])
        return cls(vector, vector, scalar, own, own, encoder, per_head, gramian, None, beside, vector)

    def of_heads(self, network: Network, factors: tf.Tensor | None) -> list[Gradient]:
        """The gradients of `network.variables.heads`; where heads share a variable, their gradients are added.

        Args:
            network: The network.
            factors: `[num_heads]` loss-dependent factors of the heads' gradients, or None.
        """
        totals: list[Gradient] = [None] * len(network.variables.heads)
        for k, positions in enumerate(network.own):
            for i, of_loss, of_added in zip(positions, self.own[k], self.added_own[k]):
                of_loss = of_loss if factors is None else scaled(of_loss, factors[k])
                totals[i] = added(totals[i], added(of_loss, of_added))
        return totals


def micro_batch_gradients(
    network: Network,
    micro_batch: MicroBatch,
    factors: LossFactors,
    active: tf.Tensor,
    conditional: Sequence[bool],
    encoder_pass: EncoderPass,
) -> MicroBatchGradients:
    """Forward and backward pass of a micro-batch through the encoder and every head with labels.

    Args:
        network: The encoder and the heads.
        micro_batch: Inputs and labels.
        factors: The factors of the losses.
        active: `[num_heads]` booleans.
        conditional: For each head, whether it is computed only if it is active.
        encoder_pass: How the heads' gradients go through the encoder.
    """
    combine, measure, by_layer = encoder_pass
    encoded = Encoded.of(network, micro_batch.inputs, factors, persistent=combine is None or by_layer is not None)
    heads = gradients_of_heads(network, encoded.representation, micro_batch, factors, active, conditional)
    present = [head for head in heads if head is not None]
    nothing: list[tf.Tensor | None] = [None] * len(encoded.representation.leaves)
    gradients = RepresentationGradients([nothing if head is None else head.of_loss.representation for head in heads])
    of_added = RepresentationGradients([head.of_added.representation for head in present] or [nothing]).total()
    loss_sums = tf.stack([tf.constant(0.0) if head is None else head.loss_sum for head in heads])
    # No annotation inside a branch: AutoGraph, which Keras 2 may apply here, cannot convert it.
    per_head: list[list[Gradient]] = []
    beside: list[list[Gradient]] = []
    if combine is None:
        encoder = encoded.gradients(of_added, with_added=True)
        per_head = encoded.of_each_head(heads, gradients)
        given, gramian, balanced = None, None if measure is None else measure(gradients), None
    else:
        combined, given, gramian, balanced = combine(gradients, loss_sums)
        encoder = encoded.gradients([added(a, b) for a, b in zip(combined, of_added)], with_added=True)
        if by_layer is not None:
            beside = encoded.of_each_head_if(by_layer, heads, gradients)
    add_shared(encoder, network, heads, given)
    empty = [[None] * len(positions) for positions in network.own]
    return MicroBatchGradients(
        loss_sums,
        count_labels(micro_batch.labels),
        tf.add_n([encoded.added_loss * factors.added] + [head.added_loss for head in present]),
        [empty[k] if head is None else head.of_loss.own for k, head in enumerate(heads)],
        [empty[k] if head is None else head.of_added.own for k, head in enumerate(heads)],
        encoder,
        per_head,
        gramian,
        balanced,
        beside,
        tf.stack([tf.constant(0.0) if head is None else head.is_broken() for head in heads]),
    )
