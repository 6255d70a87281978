"""An update of several micro-batches in two passes, with one backward pass through the encoder for any number of heads.

The first pass ends at the representation. The heads' gradients there are kept, and combined once those of all micro-batches
are known; the second pass repeats the encoder's forward pass, and carries the combined gradient back through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from multihead._ground.tensors import added, scaled
from multihead._ground.types import Gradient
from multihead._update.backward import Factors, Measure, Sums, shapes_of
from multihead._update.encoder_gradients import Encoded, HeadsPass
from multihead._update.micro_batches import MicroBatch, MicroBatches, Repeated, gather, gather_again
from multihead._update.network import Network
from multihead._update.representation import RepresentationGradients


class Repeatable(NamedTuple):
    """What it takes to repeat the encoder's forward pass exactly.

    Attributes:
        seeds: The variables from which it draws random numbers: set back, they give the same ones.
        leaves: The shapes of the floating-point leaves of the representation, as far as they are known.
    """

    seeds: tuple[tf.Variable, ...]
    leaves: tuple[tf.TensorShape, ...]


class Kept(NamedTuple):
    """What a micro-batch keeps for the second pass.

    Attributes:
        of_losses: The representation gradients: for each head one tensor per leaf, or None.
        of_added: The gradients of the losses that the heads' modules add: one tensor per leaf, or None.
        seeds: The values of the encoder's seeds before its forward pass.
    """

    of_losses: list[list[tf.Tensor | None]]
    of_added: list[tf.Tensor | None]
    seeds: list[tf.Tensor]


class FirstSums(NamedTuple):
    """The sums of the first pass.

    Attributes:
        sums: The sums that do not depend on how the heads are combined.
        shared: For each head, the gradients of its loss with respect to the encoder's variables that its module contains.
        added_shared: The same of the losses that its module adds.
        gramian: Inner products measured at the representation, `[num_heads, num_heads]`, or None.
    """

    sums: Sums
    shared: list[list[Gradient]]
    added_shared: list[list[Gradient]]
    gramian: tf.Tensor | None


@dataclass(frozen=True)
class AtRepresentation:
    """The gradients of an update whose heads are combined between two passes.

    Attributes:
        first: The sums of the first pass.
        combined: From the heads' factors, `[num_heads]`, to one gradient per encoder variable, of the combined losses and of
            all added losses. It makes the second pass, so it is called once.
        per_head: Empty: no head's encoder gradient is known.
    """

    first: FirstSums
    combined: Callable[[tf.Tensor], list[Gradient]]
    per_head: tuple[()] = ()

    @property
    def sums(self) -> Sums:
        """The sums that do not depend on how the heads are combined."""
        return self.first.sums

    @property
    def gramian(self) -> tf.Tensor | None:
        """Inner products measured at the representation, `[num_heads, num_heads]`, or None."""
        return self.first.gramian


@dataclass(frozen=True)
class TwoPasses:
    """Two passes over the micro-batches; in a graph that can loop.

    Attributes:
        measure: Computes inner products at the representation, or None.
        repeatable: What it takes to repeat the encoder's forward pass.
    """

    measure: Measure | None
    repeatable: Repeatable

    def gather(
        self,
        network: Network,
        micro_batches: MicroBatches,
        factors_of: Factors,
        active: tf.Tensor,
        conditional: Sequence[bool],
    ) -> AtRepresentation:
        """The first pass, and the function that makes the second; the arguments are those of `EncoderPass.gather`."""

        def first(micro_batch: MicroBatch) -> tuple[FirstSums, Kept]:
            seeds = [tf.identity(seed.read_value()) for seed in self.repeatable.seeds]
            factors = factors_of(micro_batch.inputs)
            return self._first(HeadsPass.of(network, micro_batch, factors, active, conditional), seeds)

        sums, groups = gather(first, micro_batches, self.shapes(network), self._kept_shapes(network))

        def second(factors: tf.Tensor) -> list[Gradient]:
            after = [tf.identity(seed.read_value()) for seed in self.repeatable.seeds]

            def backward(repeated: Repeated) -> list[Gradient]:
                return self._second(network, repeated, factors_of, factors)

            total = [None] * len(network.encoder_tensors)
            if any(network.trains_encoder):
                total = gather_again(backward, groups, shapes_of(network.encoder_tensors))
            for seed, value in zip(self.repeatable.seeds, after):
                seed.assign(value)
            return _with_shared(total, network, sums, factors)

        return AtRepresentation(sums, second)

    def _first(self, passed: HeadsPass, seeds: list[tf.Tensor]) -> tuple[FirstSums, Kept]:
        gradients, shared = passed.at_representation, passed.encoded.network.shared
        nothing: list[list[Gradient]] = [[None] * len(positions) for positions in shared]
        sums = FirstSums(
            sums=Sums.of(passed),
            shared=[none if head is None else head.of_loss.shared for none, head in zip(nothing, passed.heads)],
            added_shared=[none if head is None else head.of_added.shared for none, head in zip(nothing, passed.heads)],
            gramian=None if self.measure is None else self.measure(gradients),
        )
        return sums, Kept(of_losses=list(gradients.by_head), of_added=passed.of_added, seeds=seeds)

    def _second(self, network: Network, repeated: Repeated, factors_of: Factors, factors: tf.Tensor) -> list[Gradient]:
        """One micro-batch's forward and backward pass through the encoder."""
        kept: Kept = repeated.kept
        for seed, value in zip(self.repeatable.seeds, kept.seeds):
            seed.assign(value)
        encoded = Encoded.of(network, repeated.inputs, factors_of(repeated.inputs), num_backward=1)
        combined = RepresentationGradients(kept.of_losses).times(factors).total()
        return encoded.gradients([added(a, b) for a, b in zip(combined, kept.of_added)], with_added=True)

    def shapes(self, network: Network) -> FirstSums:
        """The dense shapes of the sums of the first pass."""
        num_heads = len(network.heads)
        shared = [shapes_of(network.shared_tensors(k)) for k in range(num_heads)]
        gramian = None if self.measure is None else tf.constant([num_heads, num_heads])
        return FirstSums(sums=Sums.shapes(network), shared=shared, added_shared=shared, gramian=gramian)

    def _kept_shapes(self, network: Network) -> Kept:
        """The shapes of what a micro-batch without examples keeps."""
        leaves = [
            tf.constant([0, *(size or 0 for size in shape[1:])][: len(shape)], tf.int32) for shape in self.repeatable.leaves
        ]
        seeds = shapes_of(self.repeatable.seeds)
        return Kept(of_losses=[leaves] * len(network.heads), of_added=leaves, seeds=seeds)


def _with_shared(encoder: Sequence[Gradient], network: Network, sums: FirstSums, factors: tf.Tensor) -> list[Gradient]:
    """The encoder's gradients with those that come from the heads' use of its variables."""
    total = list(encoder)
    for k, positions in enumerate(network.shared):
        for i, of_loss, of_added in zip(positions, sums.shared[k], sums.added_shared[k]):
            total[i] = added(added(total[i], scaled(of_loss, factors[k])), of_added)
    return total
