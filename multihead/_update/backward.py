"""Forward and backward pass of one micro-batch: each head's loss, its own gradients, and its encoder gradients.

The results are sums over the micro-batch's elements, already divided by the counts of the whole update, so that
micro-batches add up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.tensors import added, scaled
from multihead._ground.types import Gradient
from multihead._update.added_losses import sum_of
from multihead._update.combined import Combined
from multihead._update.encoder_gradients import HeadsPass
from multihead._update.head_gradients import LossFactors
from multihead._update.micro_batches import MicroBatch, MicroBatches, accumulate
from multihead._update.network import Network
from multihead._update.representation import RepresentationGradients
from multihead._update.weights import Losses, LossWeights, times_factors


class Sums(NamedTuple):
    """The sums of micro-batches that do not depend on how the heads are combined.

    Attributes:
        losses: `[num_heads]` loss sums, not divided by counts.
        added_loss: The losses that calls have added, times the micro-batch's factor; None without any.
        own: For each head, the gradients of its loss with respect to its own variables.
        added_own: For each head, the gradients of the losses added by its module with respect to its own variables.
        broken: `[num_heads]`: in how many micro-batches a gradient at the representation that is not measured there, or of
            a shared variable, is not finite.
    """

    losses: tf.Tensor
    added_loss: tf.Tensor | None
    own: list[list[Gradient]]
    added_own: list[list[Gradient]]
    broken: tf.Tensor

    @classmethod
    def of(cls, passed: HeadsPass, *, is_measured: bool = False) -> Sums:
        """The sums of one micro-batch.

        Args:
            passed: Its forward pass, and the heads' backward passes.
            is_measured: Whether the update's norms at the representation show gradients that are not finite there.
        """
        zero, heads, encoded = tf.constant(0.0), passed.heads, passed.encoded
        nothing: list[list[Gradient]] = [[None] * len(positions) for positions in encoded.network.own]
        return cls(
            losses=tf.stack([zero if head is None else head.loss_sum for head in heads]),
            added_loss=sum_of([encoded.added_loss_of_part, *(head.added_loss for head in passed.present)]),
            own=[none if head is None else head.of_loss.own for none, head in zip(nothing, heads)],
            added_own=[none if head is None else head.of_added.own for none, head in zip(nothing, heads)],
            broken=tf.cast(~tf.stack([True if head is None else head.is_whole(is_measured) for head in heads]), tf.float32),
        )

    @classmethod
    def shapes(cls, network: Network) -> Sums:
        """The dense shapes of the sums."""
        vector, own = (
            tf.constant([len(network.heads)]),
            [shapes_of(network.own_tensors(k)) for k in range(len(network.heads))],
        )
        added_loss = None if tf.executing_eagerly() else tf.constant([], tf.int32)  # as in `head_gradients_if`
        return cls(losses=vector, added_loss=added_loss, own=own, added_own=own, broken=vector)

    def of_heads(self, network: Network, factors: tf.Tensor | None) -> list[Gradient]:
        """The gradients of `network.variables.heads` over all replicas; those of heads that share a variable are added.

        Args:
            network: The network.
            factors: `[num_heads]` loss-dependent factors of the heads' gradients, or None.
        """
        totals: list[Gradient] = [None] * len(network.variables.heads)
        for k, positions in enumerate(network.own):
            for i, of_loss, of_added in zip(positions, self.own[k], self.added_own[k]):
                of_loss = of_loss if factors is None else scaled(of_loss, factors[k])
                totals[i] = added(totals[i], added(of_loss, of_added))
        return replicas.all_reduce_sum(totals)


Combine = Callable[[RepresentationGradients, Losses], Combined]
"""Combines the representation gradients of a whole update, given these and the losses."""

Factors = Callable[[Any], LossFactors]
"""The factors of the losses of a micro-batch, from its inputs."""

Measure = Callable[[RepresentationGradients], tf.Tensor]
"""Computes the inner products of the representation gradients, `[num_heads, num_heads]`, or only their diagonal."""


class CombinedGradients(NamedTuple):
    """The gradients of an update of one micro-batch, whose heads are combined at the representation.

    Attributes:
        sums: The sums that do not depend on how the heads are combined.
        encoder: One gradient per encoder variable, of the combined losses and all added losses.
        per_head: For each head, one gradient of its loss per encoder variable; zeros in updates that are not measured by
            layer, and none if no update is.
        losses: The losses over all replicas, and their weights.
        combined: The heads combined at the representation.
    """

    sums: Sums
    encoder: list[Gradient]
    per_head: list[list[Gradient]]
    losses: Losses
    combined: Combined


class SummedGradients(NamedTuple):
    """The gradients of a micro-batch whose heads are added up.

    Attributes:
        sums: As in `CombinedGradients`.
        encoder: As in `CombinedGradients`.
        per_head: As in `CombinedGradients`.
        gramian: Inner products measured at the representation, `[num_heads, num_heads]`, or None.
    """

    sums: Sums
    encoder: list[Gradient]
    per_head: list[list[Gradient]]
    gramian: tf.Tensor | None


class GradientsPerHead(NamedTuple):
    """The gradients of a micro-batch whose heads are combined after the last one.

    Attributes:
        sums: As in `CombinedGradients`.
        added: One gradient per encoder variable, of the added losses.
        per_head: For each head, one gradient of its loss per encoder variable.
        gramian: As in `SummedGradients`.
    """

    sums: Sums
    added: list[Gradient]
    per_head: list[list[Gradient]]
    gramian: tf.Tensor | None

    def combined(self, factors: tf.Tensor | None) -> list[Gradient]:
        """One gradient per encoder variable: of the losses times the heads' factors, `[num_heads]`, and of all added losses.

        Args:
            factors: The factors; None means factors of 1.
        """
        return plus_heads(self.added, self.per_head, factors)


MicroBatchGradients = CombinedGradients | SummedGradients | GradientsPerHead


class EncoderPass(ABC):
    """How the heads' representation gradients go through the encoder.

    Attributes:
        by_layer: Whether the update is measured by layer, a boolean scalar; None if none is.
    """

    by_layer: tf.Tensor | None = None

    @property
    def is_repeated(self) -> bool:
        """Whether there may be several backward passes through the encoder."""
        return self.by_layer is not None

    def gather(
        self,
        network: Network,
        micro_batches: MicroBatches,
        factors_of: Factors,
        active: tf.Tensor,
        conditional: Sequence[bool],
    ) -> MicroBatchGradients:
        """The sums over the micro-batches of an update.

        Args:
            network: The encoder and the heads.
            micro_batches: The micro-batches.
            factors_of: The factors of the losses of a micro-batch, from its inputs.
            active: `[num_heads]` booleans.
            conditional: For each head, whether it is computed only if it is active.
        """

        def gradients(micro_batch: MicroBatch) -> MicroBatchGradients:
            factors = factors_of(micro_batch.inputs)
            return micro_batch_gradients(network, micro_batch, factors, active, conditional, self)

        shapes = self.shapes(network) if len(micro_batches) > 1 else None
        return accumulate(gradients, micro_batches, shapes)

    @abstractmethod
    def gradients(self, micro_batch: MicroBatch, passed: HeadsPass) -> MicroBatchGradients:
        """The backward pass, or passes, of a micro-batch.

        Args:
            micro_batch: Inputs and labels.
            passed: The forward pass, and the heads' backward passes.
        """

    @abstractmethod
    def shapes(self, network: Network) -> Any:
        """The dense shapes of the result, for a micro-batch without examples."""


@dataclass(frozen=True)
class CombinedPass(EncoderPass):
    """Combines the heads before one backward pass, for an update of one micro-batch.

    Attributes:
        combine: Combines the heads.
        weights: The weights of their losses.
        is_measured: Whether it computes the heads' norms.
        by_layer: As in `EncoderPass`.
    """

    combine: Combine
    weights: LossWeights
    is_measured: bool
    by_layer: tf.Tensor | None = None

    def gradients(self, micro_batch: MicroBatch, passed: HeadsPass) -> CombinedGradients:
        sums = Sums.of(passed, is_measured=self.is_measured)
        losses = self.weights.weigh(sums.losses)
        combined = self.combine(passed.at_representation, losses)
        encoder = passed.combined(combined.gradients, times_factors(combined.coefficients, losses))
        per_head = passed.by_head_if(self.by_layer)
        return CombinedGradients(sums=sums, encoder=encoder, per_head=per_head, losses=losses, combined=combined)

    def shapes(self, network: Network) -> None:
        """None, since an only micro-batch is computed even if it has no examples."""


@dataclass(frozen=True)
class SummedPass(EncoderPass):
    """Adds the heads up before one backward pass.

    Attributes:
        measure: Computes inner products at the representation, or None.
        by_layer: As in `EncoderPass`.
    """

    measure: Measure | None
    by_layer: tf.Tensor | None = None

    def gradients(self, micro_batch: MicroBatch, passed: HeadsPass) -> SummedGradients:
        at_representation = passed.at_representation
        return SummedGradients(
            sums=Sums.of(passed, is_measured=self.measure is not None),
            encoder=passed.combined(at_representation.total(), tf.ones([len(passed.heads)])),
            per_head=passed.by_head_if(self.by_layer),
            gramian=None if self.measure is None else self.measure(at_representation),
        )

    def shapes(self, network: Network) -> SummedGradients:
        encoder, num_heads = shapes_of(network.encoder_tensors), len(network.heads)
        gramian = None if self.measure is None else tf.constant([num_heads, num_heads])
        per_head = [] if self.by_layer is None else [encoder] * num_heads
        return SummedGradients(sums=Sums.shapes(network), encoder=encoder, per_head=per_head, gramian=gramian)


@dataclass(frozen=True)
class PassPerHead(EncoderPass):
    """One backward pass for each head, whose gradients are combined later; or one for all, where coefficients are reused.

    Attributes:
        measure: Computes inner products at the representation, or None.
        reused: A pair: a boolean scalar, whether each head has a pass of its own, and `[num_heads]` coefficients for a
            single pass otherwise. `added` is then the combined gradient, and the heads' own are zeros. None: each head has a
            pass of its own in every update.
    """

    measure: Measure | None
    reused: tuple[tf.Tensor, tf.Tensor] | None = None

    @property
    def is_repeated(self) -> bool:
        return True

    def gradients(self, micro_batch: MicroBatch, passed: HeadsPass) -> GradientsPerHead:
        sums = Sums.of(passed)
        gramian = None if self.measure is None else self.measure(passed.at_representation)
        if self.reused is None:
            total, per_head = passed.added(), passed.by_head()
        else:
            total, per_head = passed.apart_or_combined(*self.reused)
        return GradientsPerHead(sums=sums, added=total, per_head=per_head, gramian=gramian)

    def shapes(self, network: Network) -> GradientsPerHead:
        added, num_heads = shapes_of(network.encoder_tensors), len(network.heads)
        gramian = None if self.measure is None else tf.constant([num_heads, num_heads])
        return GradientsPerHead(sums=Sums.shapes(network), added=added, per_head=[added] * num_heads, gramian=gramian)


def plus_heads(total: Sequence[Gradient], rows: Sequence[list[Gradient]], factors: tf.Tensor | None) -> list[Gradient]:
    """Adds each head's gradients, multiplied by its factor, to a list of gradients; None means factors of 1."""
    total = list(total)
    for k, row in enumerate(rows):
        total = [added(a, b if factors is None else scaled(b, factors[k])) for a, b in zip(total, row)]
    return total


def shapes_of(tensors: Sequence[Any]) -> list[Any]:
    """The shapes of some tensors of known shapes, as tensors."""
    return [tf.constant(tf.TensorShape(tensor.shape).as_list(), tf.int32) for tensor in tensors]


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
    num_backward = 2 if encoder_pass.is_repeated else 1
    passed = HeadsPass.of(network, micro_batch, factors, active, conditional, num_backward)
    return encoder_pass.gradients(micro_batch, passed)
