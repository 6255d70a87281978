"""Forward and backward passes of one micro-batch: through the encoder, through the heads, and back.

The results are sums over elements, already divided by the counts of the whole update, so that micro-batches add up.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from multihead._data.batch import batch_size
from multihead._ground import replicas
from multihead._ground.calls import graph_function, in_inference_mode
from multihead._ground.tape import PersistentTape
from multihead._ground.tensors import added, all_hold, as_real, computed_if, is_finite, like_complex, scaled, where
from multihead._ground.types import Gradient, Nested, Tensor
from multihead._update.labels import Labels, measure, rows_for, runs
from multihead._update.micro_batches import MicroBatch
from multihead._update.network import Network, loss_of_call, sum_of
from multihead._update.representation import DetachedRepresentation, Rows, call_encoder, total
from multihead._update.weights import LossWeights
from multihead.heads._named import sum_of_losses


class LossGradients(NamedTuple):
    """A loss of one head on a micro-batch, and its gradients, without loss scaling; None where there is none."""

    # A scalar: the loss summed over elements, `sum_i s_i * loss_i`; of losses that the module has added, their sum times the
    # micro-batch's fraction of the update's examples
    value: tf.Tensor | None
    # One dense gradient per floating-point leaf of the representation; of complex numbers, pairs along another axis
    representation: list[tf.Tensor | None]
    own: list[Gradient]  # one per variable that belongs only to the head
    shared: list[Gradient]  # one per variable of the encoder that the head's module also contains


ByLoss = Sequence[tuple[list[Gradient], list[Gradient]]]
"""By head, the gradients of its loss, and those of the losses that its module has added, one per variable."""

HeadLosses = tuple[LossGradients, LossGradients]
"""The loss of a head, weighted by element, and the losses that its module has added."""


class Sums(NamedTuple):
    """The sums of micro-batches that do not depend on how the heads are combined."""

    losses: tf.Tensor  # `[num_heads]` loss sums, not divided by counts
    added_loss: tf.Tensor | None  # the losses that calls have added, times the micro-batch's fraction; None without any
    own: ByLoss  # with respect to the heads' own variables
    # `[num_heads]`: in how many micro-batches a gradient at the representation, unless it is measured there, or of a shared
    # variable is not finite
    broken: tf.Tensor

    def of_heads(self, network: Network, factors: tf.Tensor | None) -> list[Gradient]:
        """The gradients of the heads' variables, as in `network.variables.heads`, over all replicas.

        `factors`, `[num_heads]`, are the loss-dependent ones; None if there are none.
        """
        nothing: list[Gradient] = [None] * len(network.variables.heads)
        return list(replicas.all_reduce_sum(with_losses(nothing, network.own, self.own, factors)))


class EncoderPass:
    """The forward pass of a micro-batch through the encoder, and any number of backward passes."""

    def __init__(self, network: Network, inputs: Nested, weights: LossWeights) -> None:
        self.network, self._inputs, self._weights = network, inputs, weights
        self._variables = network.trained(network.encoder_tensors)
        with PersistentTape(self._variables) as self._tape:
            with in_inference_mode(network.frozen_layers):
                representation = call_encoder(network.encoder, inputs, training=True, step=weights.step)
            self._added_loss = loss_of_call(network.encoder)
        self._representation = DetachedRepresentation(representation)

    def through_encoder(self, leaf_gradients: Sequence[tf.Tensor | None], *, with_added: bool) -> list[Gradient]:
        """A backward pass: one gradient per encoder variable, from one per leaf; with the losses that the encoder adds."""
        leaves = zip(self._representation.attached, leaf_gradients)
        pairs = [(leaf, like_complex(gradient, leaf)) for leaf, gradient in leaves if gradient is not None]
        if with_added and self._added_loss is not None:
            pairs.append((self._added_loss, self._fraction_of_encoder()))
        outputs, upstream = [output for output, _ in pairs], [gradient for _, gradient in pairs]
        gradients = self._gradients(self._tape, self._variables, outputs, upstream) if pairs else {}
        return [gradients.get(id(tensor)) for tensor in self.network.encoder_tensors]

    def _fraction(self) -> tf.Tensor:
        """The micro-batch's fraction of the update's examples, which multiplies losses that count once per update."""
        return tf.math.divide_no_nan(tf.cast(batch_size(self._inputs), self._weights.examples.dtype), self._weights.examples)

    def _fraction_of_encoder(self) -> tf.Tensor:
        """The same for losses that the encoder adds: 0 where the update leaves it out."""
        fraction, is_trained = self._fraction(), self._weights.participation.encoder
        return fraction if is_trained is None else where(is_trained, fraction, 0.0)

    def _gradients(
        self, tape: PersistentTape, sources: Sequence[Tensor], outputs: Sequence[tf.Tensor], upstream: Sequence[tf.Tensor]
    ) -> dict[int, Gradient]:
        """Gradients by the identity of a source, from those at outputs; loss scaling is undone at the end."""
        scale = self._weights.scale
        if scale is not None:
            upstream = [gradient * tf.cast(scale, gradient.dtype) for gradient in upstream]
        cast = [tf.cast(gradient, output.dtype) for gradient, output in zip(upstream, outputs)]
        gradients = tape.gradient(outputs, cast)
        if scale is not None:
            gradients = [scaled(gradient, 1.0 / scale) for gradient in gradients]
        return dict(zip(map(id, sources), gradients))


class HeadsPass(EncoderPass):
    """The forward pass of a micro-batch, and the backward passes of the heads down to the representation."""

    def __init__(self, network: Network, micro_batch: MicroBatch, weights: LossWeights) -> None:
        super().__init__(network, micro_batch.inputs, weights)
        measure(network.measured, self._representation.nest, micro_batch.measured)
        self._element_weights = tf.unstack(weights.per_element)
        self._heads = [self._losses_of(k, labels) for k, labels in enumerate(micro_batch.labels)]
        self.at_representation: Rows = [head_loss.representation for head_loss, _ in self._heads]
        # One tensor per leaf of the representation, or None: of the losses that the heads' modules have added
        self.added_at_representation = total([module_loss.representation for _, module_loss in self._heads])

    def sums(self, *, is_measured: bool) -> Sums:
        """The sums; if the micro-batch `is_measured`, norms show gradients at the representation that are not finite."""
        broken, encoder_loss, dtype = [], self._added_loss, self._weights.counts.dtype
        encoder_loss = None if encoder_loss is None else tf.cast(encoder_loss, dtype) * self._fraction_of_encoder()
        for head_loss, module_loss in self._heads:
            gradients = [*module_loss.representation, *head_loss.shared, *module_loss.shared]
            gradients += [] if is_measured else head_loss.representation
            broken.append(~all_hold([is_finite(gradient) for gradient in gradients if gradient is not None]))
        return Sums(
            losses=tf.stack([tf.cast(head_loss.value, dtype) for head_loss, _ in self._heads]),
            added_loss=sum_of([encoder_loss, *(module_loss.value for _, module_loss in self._heads)]),
            own=[(head_loss.own, module_loss.own) for head_loss, module_loss in self._heads],
            broken=tf.cast(tf.stack(broken), tf.float32),
        )

    def _losses_of(self, k: int, labels: Labels | None) -> HeadLosses:
        """The pass of head `k`: zeros and None without targets; under a condition if the head may be idle."""
        network, leaves = self.network, self._representation.leaves
        computed = self._weights.participation.computed[k]
        if labels is None:
            own, shared = ([None] * len(of[k]) for of in (network.own, network.shared))
            head_loss = LossGradients(tf.constant(0.0), [None] * len(leaves), own, shared)
            return head_loss, head_loss._replace(value=None)
        if computed is None:
            return self._computed_losses_of(k, labels)
        real = [as_real(leaf) for leaf in leaves]
        sources = real, network.own_tensors(k), network.shared_tensors(k)
        shapes = ([tf.shape(tensor) for tensor in tensors] for tensors in sources)
        scalar = tf.zeros([0], tf.int32)
        head_loss = LossGradients(scalar, *shapes)
        # In eager mode nobody knows whether a head that is not called would add a loss, and zeros would be logged.
        both = head_loss, head_loss._replace(value=None if tf.executing_eagerly() else scalar)
        flat = computed_if(
            runs(network.heads[k], computed, labels),
            lambda: tf.nest.flatten(self._computed_losses_of(k, labels)),
            tf.nest.flatten(both),
        )
        head_loss, module_loss = tf.nest.pack_sequence_as(both, flat)
        return head_loss, module_loss

    def _computed_losses_of(self, k: int, labels: Labels) -> HeadLosses:
        """Forward and backward pass of head `k`, down to the representation; also updates its metrics."""
        network, representation, element_weight = self.network, self._representation, self._element_weights[k]
        head, own, shared = network.heads[k], network.own_tensors(k), network.shared_tensors(k)
        sources = [*(representation.leaves if head.trains_encoder else []), *network.trained([*own, *shared])]
        with PersistentTape(sources) as tape:
            with in_inference_mode(network.frozen_layers):
                read, labels = rows_for(head, representation.nest, labels)
                predictions = head.predict(read, labels.targets, training=True, step=self._weights.step)
            losses, weights = head.losses(labels.targets, predictions, labels.weights)
            added_loss = loss_of_call(head.module)

        def with_gradients(value: tf.Tensor, loss: tf.Tensor, upstream: tf.Tensor) -> LossGradients:
            by_source = self._gradients(tape, sources, [loss], [upstream])
            at_leaves = [by_source.get(id(leaf)) for leaf in representation.leaves]
            return LossGradients(
                value=value,
                representation=[None if leaf is None else as_real(tf.convert_to_tensor(leaf)) for leaf in at_leaves],
                own=[by_source.get(id(tensor)) for tensor in own],
                shared=[by_source.get(id(tensor)) for tensor in shared],
            )

        # Elements without a label have a weight of 0, so that nothing of their loss counts.
        weighted = tf.cast(element_weight, weights.dtype) * weights
        head_loss = with_gradients(sum_of_losses(losses, weights), losses, weighted)
        module_loss = tf.nest.map_structure(lambda _: None, head_loss)
        if added_loss is not None:  # it counts once per update, without a weight, but not for an idle head
            fraction = where(element_weight > 0, self._fraction(), 0.0)
            module_loss = with_gradients(tf.cast(added_loss, fraction.dtype) * fraction, added_loss, fraction)
        head.update_metrics(labels.in_units, predictions, labels.weights, read)
        reaches_encoder = any(gradient is not None for gradient in (*head_loss.representation, *shared))
        if head.reads_floats(representation.nest) and not reaches_encoder:
            _refuse_or_warn(head.name, trains_own=any(gradient is not None for gradient in head_loss.own))
        return head_loss, module_loss

    def backward(self, at_leaves: list[Gradient] | None = None, coefficients: tf.Tensor | None = None) -> list[Gradient]:
        """One gradient per encoder variable, in one backward pass: of all added losses and the heads' combined losses.

        `at_leaves` is the combined gradient at the representation, one tensor per leaf or None; without it, only the added
        losses count. `coefficients`, `[num_heads]`, are those of the heads' gradients in it; None for 1.
        """
        leaves, shared = self.added_at_representation, self.shared
        if at_leaves is None:
            shared = [([None] * len(module_loss), module_loss) for _, module_loss in shared]
        else:
            leaves = total([at_leaves, leaves])
        return with_losses(self.through_encoder(leaves, with_added=True), self.network.shared, shared, coefficients)

    def by_head(self) -> list[list[Gradient]]:
        """By head, one gradient of its loss per encoder variable, in one backward pass per head."""
        through = partial(self.through_encoder, with_added=False)
        backward = through if tf.executing_eagerly() else graph_function(through)  # traced once for all heads
        rows = [list(backward(row)) for row in self.at_representation]
        for k, (head_loss, _) in enumerate(self.shared):
            for i, gradient in zip(self.network.shared[k], head_loss):
                rows[k][i] = added(rows[k][i], gradient)
        return rows

    @property
    def shared(self) -> ByLoss:
        """The heads' gradients of the encoder's variables that their modules also contain."""
        return [(head_loss.shared, module_loss.shared) for head_loss, module_loss in self._heads]


def with_losses(
    gradients: list[Gradient], positions: Sequence[Sequence[int]], by_loss: ByLoss, coefficients: tf.Tensor | None
) -> list[Gradient]:
    """Gradients by variable, plus those of the heads' losses times `coefficients`, None for 1, and of added losses.

    `positions` are, by head, those of its variables among the gradients.
    """
    sums = list(gradients)
    for k, (head_gradients, module_gradients) in enumerate(by_loss):
        for i, by_head, by_module in zip(positions[k], head_gradients, module_gradients):
            by_head = by_head if coefficients is None else scaled(by_head, coefficients[k])
            sums[i] = added(sums[i], added(by_head, by_module))
    return sums


def _refuse_or_warn(name: str, *, trains_own: bool) -> None:
    """Says that the encoder learns nothing from a head: an error if the head's own variables do not, either."""
    if not trains_own:
        raise ValueError(
            f"Head {name!r} must have a loss that trains something. Received: a loss without a gradient with respect "
            "to the encoder's floating-point outputs and to the module's own variables. Leave out operations that have no "
            "gradient, such as `argmax`; a head that is not to train the encoder has `trains_encoder=False`."
        )
    text = (
        f"The encoder learns nothing from head {name!r}, whose loss has no gradient with respect to its outputs. Pass "
        "`trains_encoder=False` to `add_head`, or leave out `stop_gradient` and operations that have no gradient."
    )
    warnings.warn(text, UserWarning, stacklevel=2)


def shapes_of(tensors: Sequence[Tensor]) -> list[tf.Tensor]:
    """The shapes of some tensors of known shapes, as tensors."""
    return [tf.constant(tf.TensorShape(tensor.shape).as_list(), tf.int32) for tensor in tensors]
