"""The strategy for several micro-batches whose coefficients come from inner products at the representation.

The first pass over the micro-batches ends at the representation. The gradients of the heads there are kept, and combined
once those of all micro-batches are known; the second pass repeats the forward pass of the encoder, and carries the combined
gradient back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from multihead._data.batch import batch_size
from multihead._ground import replicas
from multihead._ground.calls import graph_function, in_inference_mode
from multihead._ground.graphs import kinds_with_state, written_resources
from multihead._ground.layers import state_variables, use_seed_variables
from multihead._ground.random import random_numbers
from multihead._ground.tensors import as_real, in_xla
from multihead._ground.types import Gradient, Nested
from multihead._update import strategies
from multihead._update.micro_batches import MicroBatch, MicroBatches, accumulate, plus
from multihead._update.network import Network
from multihead._update.passes import ByLoss, EncoderPass, HeadsPass, shapes_of, with_losses
from multihead._update.representation import DetachedRepresentation, Rows, call_encoder, times, total
from multihead._update.strategies import BackwardStrategy
from multihead._update.update import Combined, RollBack
from multihead._update.weights import Losses, LossWeights


class Repeatable(NamedTuple):
    """What it takes to repeat the encoder's forward pass exactly."""

    leaves: tuple[tf.TensorShape, ...]  # the shapes of gradients of the floating-point leaves of the representation
    state: tuple[tf.Variable, ...]  # the variables that it changes: once they are restored, it repeats

    @classmethod
    def of(cls, network: Network, inputs: Nested) -> Repeatable | None:
        """From a trace in training mode; None if an operation has another state, or a head changes the same variables."""
        use_seed_variables(network.encoder)
        before, leaves = random_numbers(), list[tf.Tensor]()

        def forward(inputs: Nested) -> list[tf.Tensor]:
            with in_inference_mode(network.frozen_layers):
                step = tf.zeros([], tf.int64)  # any
                outputs = DetachedRepresentation(call_encoder(network.encoder, inputs, training=True, step=step)).attached
            leaves[:] = map(as_real, outputs)
            return leaves

        try:
            graph = graph_function(forward).get_concrete_function(inputs).graph
        except Exception:  # noqa: BLE001 - the step itself says what is wrong with the encoder
            return None
        names = {id(outside): inside.name for outside, inside in graph.captures}
        heads = (*network.heads, *network.measured)
        others = {id(variable) for head in heads for variable in state_variables(head.module)}
        own = [one for one in state_variables(network.encoder) if id(one) not in others and hasattr(one, "handle")]
        held = {names[id(variable.handle)]: variable for variable in own if id(variable.handle) in names}
        written = written_resources(graph.get_operations())
        is_exact = not kinds_with_state(graph) and written <= held.keys() and random_numbers() == before
        is_exact &= all(leaf.shape.rank is not None for leaf in leaves)
        # Inside of replicas, a variable cannot be assigned under a condition.
        if not is_exact or (written and tf.distribute.get_strategy().num_replicas_in_sync > 1):
            return None
        return cls(tuple(leaf.shape for leaf in leaves), tuple(held[name] for name in sorted(written)))


class _Sums(NamedTuple):
    """The sums of the first pass."""

    common: Nested  # the sums that do not depend on how the heads are combined
    encoder: list[Gradient]  # one per encoder variable, where coefficients are reused; None elsewhere
    shared: ByLoss  # with respect to the encoder's variables that the heads' modules also contain
    products: tf.Tensor | None  # inner products


class _Kept(NamedTuple):
    """The gradients at the representation that a micro-batch keeps."""

    heads: Rows  # of the heads' losses
    added: list[Gradient]  # of the losses that the heads' modules have added


@dataclass(frozen=True)
class TwoPasses(BackwardStrategy):
    """Runs all micro-batches through the encoder forward, and then, with the combined gradient, forward and backward."""

    repeatable: Repeatable = Repeatable((), ())
    passes = "forward twice and backward once"

    def gradients(self, network: Network, micro_batches: MicroBatches, weights: LossWeights) -> strategies.Gathered:
        if len(micro_batches) == 1 or in_xla():  # in XLA, micro-batches that are empty have no size that is known
            strategy = strategies.CombinedFirst if len(micro_batches) == 1 else strategies.PassPerHead
            return strategy(self.balancer, self.measure).gradients(network, micro_batches, weights)
        reuse = self._reuse(weights)
        before, kept, nothing = RollBack(self.repeatable.state), list[Nested](), [None] * len(network.encoder_tensors)

        def first(micro_batch: MicroBatch) -> Nested:
            heads = HeadsPass(network, micro_batch, weights)
            rows, encoder = heads.at_representation, nothing
            if reuse is not None:
                known = reuse.coefficients
                combined = lambda: heads.backward(total(times(rows, known)), known)  # noqa: E731
                encoder = strategies.computed_or_none(~reuse.solves, combined, network.encoder_tensors)
            sums = heads.sums(is_measured=self.measure is not None)
            return _Sums(sums, encoder, heads.shared, self._measured(rows)), _Kept(rows, heads.added_at_representation)

        def second(repeated: MicroBatch) -> Nested:
            gradients: Nested = repeated.labels  # a `_Kept`
            leaves = total([*times(gradients.heads, loss_coefficients), gradients.added])
            return EncoderPass(network, repeated.inputs, weights).through_encoder(leaves, with_added=True)

        def again() -> list[Gradient]:
            after, encoder, shapes = RollBack(self.repeatable.state), nothing, shapes_of(network.encoder_tensors)
            if network.trained(network.encoder_tensors):
                before.restore()
                encoder = accumulate(second, MicroBatches(list(map(MicroBatch, inputs, kept)), 1), shapes)
                after.restore()
            return with_losses(encoder, network.shared, sums.shared, loss_coefficients)

        parts = list(micro_batches)
        if tf.executing_eagerly():
            parts = [part for part in parts if batch_size(part.inputs) > 0] or parts[:1]
        inputs = [part.inputs for part in parts]
        sums = accumulate(first, MicroBatches(parts, 1), self._shapes_of_first(network, reuse is not None), kept)
        losses = Losses(weights, sums.common.losses)
        products = strategies.reduced(sums.products, losses.factors)
        coefficients = strategies.coefficients_of(self.balancer, losses, products)
        loss_coefficients = losses.times_factors(coefficients)
        if reuse is None:
            encoder = again()
        else:
            encoder = plus(sums.encoder, strategies.computed_or_none(reuse.solves, again, network.encoder_tensors))
        return sums.common, losses, Combined(replicas.all_reduce_sum(encoder), coefficients, products, products)

    def _shapes_of_first(self, network: Network, may_reuse: bool) -> tuple[_Sums, _Kept]:
        common, encoder, _, products = self._shapes(network, has_rows=False)
        head_shapes = [shapes_of(network.shared_tensors(k)) for k in range(len(network.heads))]
        leaves = [tf.constant([size or 0 for size in shape], tf.int32) for shape in self.repeatable.leaves]
        encoder, shared = encoder if may_reuse else [None] * len(encoder), [(shapes, shapes) for shapes in head_shapes]
        return _Sums(common, encoder, shared, products), _Kept([leaves] * len(network.heads), leaves)
