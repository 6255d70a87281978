"""Forward and backward pass of a micro-batch through the encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground.calls import in_inference_mode
from multihead._ground.tensors import added, computed_if, scaled
from multihead._ground.types import Gradient
from multihead._update.added_losses import loss_of_call
from multihead._update.encode import call_encoder
from multihead._update.evaluate import measure
from multihead._update.head_gradients import HeadGradients, LossFactors, gradients_of_heads, of_all, trained
from multihead._update.micro_batches import MicroBatch
from multihead._update.network import Network
from multihead._update.representation import DetachedRepresentation, RepresentationGradients


class Encoded(NamedTuple):
    """The encoder's forward pass on a micro-batch.

    Attributes:
        network: The encoder and the heads.
        factors: The factors of the losses.
        tape: The tape that recorded the pass.
        representation: The detached representation.
        added_loss: The sum of the losses that the call of the encoder has added, float32; None without any.
    """

    network: Network
    factors: LossFactors
    tape: tf.GradientTape
    representation: DetachedRepresentation
    added_loss: tf.Tensor | None

    @classmethod
    def of(cls, network: Network, inputs: Any, factors: LossFactors, *, num_backward: int = 0) -> Encoded:
        """Runs the encoder.

        Args:
            network: The encoder and the heads.
            inputs: The micro-batch's inputs.
            factors: The factors of the losses.
            num_backward: The number of backward passes: 0, 1, or 2 for any larger number.
        """
        with tf.GradientTape(watch_accessed_variables=False, persistent=num_backward > 1) as tape:
            if num_backward:
                tape.watch(trained(network.encoder_tensors, network.trains_encoder))
            with in_inference_mode(network.frozen_layers):
                representation = call_encoder(network.encoder, inputs, training=True)
            added_loss = loss_of_call(network.encoder)
        return cls(
            network=network,
            factors=factors,
            tape=tape,
            representation=DetachedRepresentation(representation),
            added_loss=added_loss,
        )

    @property
    def added_loss_of_part(self) -> tf.Tensor | None:
        """`added_loss` times the micro-batch's factor."""
        return None if self.added_loss is None else self.added_loss * self.factors.added

    def gradients(self, of_leaves: Sequence[tf.Tensor | None], *, with_added: bool) -> list[Gradient]:
        """The encoder's backward pass: one gradient per encoder variable.

        Args:
            of_leaves: One gradient per leaf of the representation, or None.
            with_added: Whether the gradients of the encoder's added losses are included.
        """
        network = self.network
        variables = trained(network.encoder_tensors, network.trains_encoder)
        pairs = [
            (leaf, tf.cast(self.factors.scaled_up(gradient), leaf.dtype))
            for leaf, gradient in zip(self.representation.attached, of_leaves)
            if gradient is not None
        ]
        if with_added and self.added_loss is not None:
            pairs.append((self.added_loss, self.factors.scaled_up(self.factors.added)))
        if not pairs or not variables:
            return [None] * len(network.encoder_tensors)
        outputs, cotangents = zip(*pairs)
        found = self.tape.gradient(list(outputs), variables, output_gradients=list(cotangents))
        return of_all(self.factors.scaled_down(found), network.trains_encoder)


class HeadsPass(NamedTuple):
    """The forward pass of a micro-batch, and the backward passes of the heads down to the representation.

    Attributes:
        encoded: The encoder's forward pass.
        heads: The heads' losses and gradients; None for a head without targets in the micro-batch.
    """

    encoded: Encoded
    heads: list[HeadGradients | None]

    @classmethod
    def of(
        cls,
        network: Network,
        micro_batch: MicroBatch,
        factors: LossFactors,
        active: tf.Tensor,
        conditional: Sequence[bool],
        num_backward: int = 0,
    ) -> HeadsPass:
        """Runs the encoder and every head with labels.

        Args:
            network: The encoder and the heads.
            micro_batch: Inputs and labels.
            factors: The factors of the losses.
            active: `[num_heads]` booleans.
            conditional: For each head, whether it is computed only if it is active.
            num_backward: As for `Encoded.of`.
        """
        encoded = Encoded.of(network, micro_batch.inputs, factors, num_backward=num_backward)
        measure(network.measured, encoded.representation.nest, micro_batch.measured)
        return cls(encoded, gradients_of_heads(network, encoded.representation, micro_batch, factors, active, conditional))

    @property
    def present(self) -> list[HeadGradients]:
        """The heads with targets in the micro-batch."""
        return [head for head in self.heads if head is not None]

    @property
    def at_representation(self) -> RepresentationGradients:
        """The gradients of the heads' losses at the representation."""
        nothing = self._nothing
        return RepresentationGradients([nothing if head is None else head.of_loss.representation for head in self.heads])

    @property
    def _nothing(self) -> list[tf.Tensor | None]:
        return [None] * len(self.encoded.representation.leaves)

    @property
    def of_added(self) -> list[tf.Tensor | None]:
        """The gradients of the losses that the heads' modules add, at the representation."""
        return RepresentationGradients([head.of_added.representation for head in self.present] or [self._nothing]).total()

    def combined(self, at_representation: Sequence[tf.Tensor | None], factors: tf.Tensor) -> list[Gradient]:
        """One gradient per encoder variable: of the combined losses and of all added losses, in one backward pass.

        Args:
            at_representation: The heads' combined gradient, one tensor per leaf or None.
            factors: `[num_heads]`: the factors of the heads' losses in it.
        """
        leaves = [added(a, b) for a, b in zip(at_representation, self.of_added)]
        total = self.encoded.gradients(leaves, with_added=True)
        for k, i, of_loss, of_added in self._shared():
            total[i] = added(added(total[i], scaled(of_loss, factors[k])), of_added)
        return total

    def added(self) -> list[Gradient]:
        """One gradient per encoder variable: of all added losses."""
        total = self.encoded.gradients(self.of_added, with_added=True)
        for _, i, _, of_added in self._shared():
            total[i] = added(total[i], of_added)
        return total

    def apart_or_combined(self, condition: tf.Tensor, factors: tf.Tensor) -> tuple[list[Gradient], list[list[Gradient]]]:
        """`added` and `by_head` if a condition holds; otherwise `combined`, of the heads' gradients times some factors.

        The heads' own gradients are then zeros in a graph, and None in eager mode.
        """

        def combined() -> list[Gradient]:
            return self.combined(self.at_representation.times(factors).total(), factors)

        tensors = self.encoded.network.encoder_tensors
        if tf.executing_eagerly():  # where a gradient that does not exist stays None
            return (self.added(), self.by_head()) if condition else (combined(), [[None] * len(tensors)] * len(self.heads))
        shapes = [tf.shape(tensor) for tensor in tensors]
        both = computed_if(condition, self.added, shapes), computed_if(~condition, combined, shapes)
        return [added(a, b) for a, b in zip(*both)], self.by_head_if(condition)

    def by_head(self) -> list[list[Gradient]]:
        """For each head, one gradient of its loss per encoder variable, in a backward pass for each."""
        rows = [self.encoded.gradients(each, with_added=False) for each in self.at_representation.by_head]
        for k, i, of_loss, _ in self._shared():
            rows[k][i] = added(rows[k][i], of_loss)
        return rows

    def by_head_if(self, condition: tf.Tensor | None) -> list[list[Gradient]]:
        """`by_head` if the condition holds; otherwise no backward pass runs, and all gradients are zero.

        Args:
            condition: A boolean scalar; None if it never holds, and then there are no gradients.
        """
        if condition is None:
            return []
        shapes = [tf.shape(tensor) for tensor in self.encoded.network.encoder_tensors]
        found = iter(computed_if(condition, lambda: list(chain(*self.by_head())), shapes * len(self.heads)))
        return [[next(found) for _ in shapes] for _ in self.heads]

    def _shared(self) -> Iterator[tuple[int, int, Gradient, Gradient]]:
        """The encoder's variables that a head's module also contains: head, position, gradients of its loss and of added."""
        for k, head in enumerate(self.heads):
            if head is not None:
                for i, of_loss, of_added in zip(self.encoded.network.shared[k], head.of_loss.shared, head.of_added.shared):
                    yield k, i, of_loss, of_added
