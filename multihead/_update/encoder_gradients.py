"""Forward and backward pass of a micro-batch through the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground.gradients import added, computed_if, scaled
from multihead._ground.keras import Gradient, frozen_normalization
from multihead._update.encode import call_encoder
from multihead._update.head_gradients import HeadGradients, LossFactors, sum_of, trained, with_none
from multihead._update.network import Network
from multihead._update.representation import DetachedRepresentation, RepresentationGradients


class Encoded(NamedTuple):
    """The encoder's forward pass on a micro-batch.

    Attributes:
        network: The encoder and the heads.
        factors: The factors of the losses.
        tape: The tape that recorded the pass.
        representation: The detached representation.
        losses: The encoder's regularization and `add_loss` losses.
        added_loss: Their sum, float32.
    """

    network: Network
    factors: LossFactors
    tape: tf.GradientTape
    representation: DetachedRepresentation
    losses: list[tf.Tensor]
    added_loss: tf.Tensor

    @classmethod
    def of(cls, network: Network, inputs: Any, factors: LossFactors, *, persistent: bool) -> Encoded:
        """Runs the encoder.

        Args:
            network: The encoder and the heads.
            inputs: The micro-batch's inputs.
            factors: The factors of the losses.
            persistent: Whether there is more than one backward pass.
        """
        with tf.GradientTape(watch_accessed_variables=False, persistent=persistent) as tape:
            tape.watch(trained(network.encoder_tensors, network.trains_encoder))
            with frozen_normalization(network.frozen_normalization):
                representation = call_encoder(network.encoder, inputs, training=True)
            losses = list(getattr(network.encoder, "losses", []))
            added_loss = sum_of(losses)
        return cls(network, factors, tape, DetachedRepresentation(representation), losses, added_loss)

    def gradients(self, of_leaves: Sequence[tf.Tensor | None], *, with_added: bool) -> list[Gradient]:
        """The encoder's backward pass: one gradient per encoder variable.

        Args:
            of_leaves: One gradient per leaf of the representation, or None.
            with_added: Whether the gradients of the encoder's added losses are included.
        """
        network, factor = self.network, self.factors.scaled_up(1.0)
        variables = trained(network.encoder_tensors, network.trains_encoder)
        pairs = [
            (leaf, tf.cast(gradient * tf.cast(factor, gradient.dtype), leaf.dtype))
            for leaf, gradient in zip(self.representation.attached, of_leaves)
            if gradient is not None
        ]
        if with_added and self.losses:
            pairs.append((self.added_loss, self.factors.scaled_up(self.factors.added)))
        if not pairs or not variables:
            return [None] * len(network.encoder_tensors)
        outputs, cotangents = zip(*pairs)
        found = self.tape.gradient(list(outputs), variables, output_gradients=list(cotangents))
        return with_none(self.factors.scaled_down(found), network.trains_encoder)

    def of_each_head(
        self, heads: Sequence[HeadGradients | None], at_representation: RepresentationGradients
    ) -> list[list[Gradient]]:
        """For each head, one gradient of its loss per encoder variable, in a backward pass for each.

        Args:
            heads: The heads' gradients.
            at_representation: Those of their losses at the representation.
        """
        rows = [self.gradients(each, with_added=False) for each in at_representation.by_head]
        for k, head in enumerate(heads):
            if head is not None:
                for i, of_loss in zip(self.network.shared[k], head.of_loss.shared):
                    rows[k][i] = added(rows[k][i], of_loss)
        return rows

    def of_each_head_if(
        self, condition: tf.Tensor, heads: Sequence[HeadGradients | None], at_representation: RepresentationGradients
    ) -> list[list[Gradient]]:
        """`of_each_head` if the condition holds; otherwise no backward pass runs, and all gradients are zero."""
        shapes = [tf.shape(tensor) for tensor in self.network.encoder_tensors]

        def flat() -> list[Gradient]:
            return [each for row in self.of_each_head(heads, at_representation) for each in row]

        found = iter(computed_if(condition, flat, shapes * len(heads)))
        return [[next(found) for _ in shapes] for _ in heads]


def add_shared(
    encoder: list[Gradient], network: Network, heads: Sequence[HeadGradients | None], factors: Sequence[Any] | None
) -> None:
    """Adds the gradients of the encoder's variables that a head's module also contains.

    Args:
        encoder: The encoder's gradients, which are changed.
        network: The network.
        heads: The heads' gradients.
        factors: The heads' factors in the combined gradient; None leaves their losses out.
    """
    for k, head in enumerate(heads):
        if head is None:
            continue
        for i, of_loss, of_added in zip(network.shared[k], head.of_loss.shared, head.of_added.shared):
            if factors is not None:
                encoder[i] = added(encoder[i], scaled(of_loss, factors[k]))
            encoder[i] = added(encoder[i], of_added)
