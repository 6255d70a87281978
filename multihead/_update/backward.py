"""Forward and backward pass of one micro-batch: each head's loss, its own gradients, and its encoder gradients.

The results are sums over the micro-batch's elements, already divided by the counts of the whole update, so that
micro-batches add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._gradients import added, computed_if, is_finite, scaled
from multihead._keras import Gradient, call_module, frozen_normalization
from multihead._update.labels import Labels, count_labels
from multihead._update.micro_batches import MicroBatch
from multihead._update.network import Network
from multihead._update.representation import DetachedRepresentation, RepresentationGradients


class LossFactors(NamedTuple):
    """The factors of the losses of a micro-batch.

    Attributes:
        heads: `[num_heads]`: weight divided by the count of the whole update for an active head, 0 for an idle one.
        added: For losses that count once per update: the micro-batch's fraction of the update's examples.
        scale: The factor of loss scaling, or None.
    """

    heads: tf.Tensor
    added: tf.Tensor
    scale: tf.Tensor | None


class LossGradients(NamedTuple):
    """The gradients of one loss of one head, in float32, without loss scaling; None where there is no gradient.

    Attributes:
        representation: One dense tensor per floating-point leaf of the representation.
        own: One per variable that belongs only to the head.
        shared: One per variable of the encoder that the head's module also contains.
    """

    representation: list[tf.Tensor | None]
    own: list[Gradient]
    shared: list[Gradient]


class HeadGradients(NamedTuple):
    """Losses and gradients of one head on one micro-batch.

    Attributes:
        loss_sum: `sum_i s_i * loss_i`, float32.
        added_loss: The sum of its regularization and `add_loss` losses times the micro-batch's factor, float32.
        of_loss: The gradients of the loss sum times the head's factor.
        of_added: The gradients of `added_loss`.
    """

    loss_sum: tf.Tensor
    added_loss: tf.Tensor
    of_loss: LossGradients
    of_added: LossGradients


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
        per_head, beside = ([list(encoder) for _ in range(num_heads)] for _ in range(2))
        gramian = None if encoder_pass.measure is None else tf.constant([num_heads, num_heads])
        if encoder_pass.combine is None:
            beside = []
        else:
            per_head, beside = [], [] if encoder_pass.by_layer is None else beside
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


def _sum(losses: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([tf.cast(loss, tf.float32) for loss in losses]) if losses else tf.constant(0.0)


def _is_broken(head: HeadGradients) -> tf.Tensor:
    """1 if a gradient of a head, other than of its own variables, is not finite, else 0."""
    found = [*head.of_loss.representation, *head.of_loss.shared, *head.of_added.representation, *head.of_added.shared]
    finite = [is_finite(gradient) for gradient in found if gradient is not None]
    return 1.0 - tf.cast(tf.reduce_all(tf.stack(finite)), tf.float32) if finite else tf.constant(0.0)


class Encoded(NamedTuple):
    """The encoder's forward pass on a micro-batch.

    Attributes:
        tape: The tape that recorded it.
        representation: The detached representation.
        losses: The encoder's regularization and `add_loss` losses.
        added_loss: Their sum, float32.
    """

    tape: tf.GradientTape
    representation: DetachedRepresentation
    losses: list[tf.Tensor]
    added_loss: tf.Tensor


def trained(tensors: Sequence[Any], is_trained: Sequence[bool]) -> list[Any]:
    """Those of some tensors that are trained."""
    return [tensor for tensor, is_one in zip(tensors, is_trained) if is_one]


def with_none(gradients: Sequence[Gradient], is_trained: Sequence[bool]) -> list[Gradient]:
    """The gradients of all tensors, from those of the trained ones; None for the others."""
    found = iter(gradients)
    return [next(found) if is_one else None for is_one in is_trained]


def encode(network: Network, inputs: Any, *, persistent: bool) -> Encoded:
    """Runs the encoder; with `persistent`, `encoder_gradients` can be called more than once."""
    with tf.GradientTape(watch_accessed_variables=False, persistent=persistent) as tape:
        tape.watch(trained(network.encoder_tensors, network.trains_encoder))
        with frozen_normalization(network.frozen_normalization):
            representation = call_module(network.encoder, inputs, training=True)
        losses = list(getattr(network.encoder, "losses", []))
        added_loss = _sum(losses)
    return Encoded(tape, DetachedRepresentation(representation), losses, added_loss)


def encoder_gradients(
    network: Network, encoded: Encoded, gradients: Sequence[tf.Tensor | None], factors: LossFactors, *, with_added: bool
) -> list[Gradient]:
    """The encoder's backward pass, from one gradient per leaf and, if `with_added`, the encoder's added losses."""
    variables = trained(network.encoder_tensors, network.trains_encoder)
    scale = tf.ones([]) if factors.scale is None else factors.scale
    pairs = [
        (leaf, tf.cast(gradient * tf.cast(scale, gradient.dtype), leaf.dtype))
        for leaf, gradient in zip(encoded.representation.attached, gradients)
        if gradient is not None
    ]
    if with_added and encoded.losses:
        pairs.append((encoded.added_loss, factors.added * scale))
    if not pairs or not variables:
        return [None] * len(network.encoder_tensors)
    outputs, cotangents = zip(*pairs)
    found = encoded.tape.gradient(list(outputs), variables, output_gradients=list(cotangents))
    if factors.scale is not None:
        found = [scaled(gradient, 1.0 / scale) for gradient in found]
    return with_none(found, network.trains_encoder)


def head_gradients(
    network: Network, k: int, representation: DetachedRepresentation, labels: Labels, factors: LossFactors
) -> HeadGradients:
    """Forward and backward pass of one head, down to the representation; also updates the head's metrics.

    Raises:
        ValueError: The head's loss has no gradient with respect to the representation.
    """
    head, trains_own, trains_shared = network.heads[k], network.trains_own(k), network.trains_shared(k)
    own, shared = trained(network.own_tensors(k), trains_own), trained(network.shared_tensors(k), trains_shared)
    sources: list[Any] = [*representation.leaves, *own, *shared]
    with tf.GradientTape(watch_accessed_variables=False, persistent=True) as tape:
        tape.watch(sources)
        with frozen_normalization(network.frozen_normalization):
            predictions = head.predict(representation.nest, labels.targets, training=True)
        loss_sum = head.loss_sum(labels.targets, predictions, labels.weights)
        added_losses = head.added_losses
        added_loss = _sum(added_losses)
    # Added losses count once per update, without a weight, but not for an idle head.
    added_factor = tf.where(factors.heads[k] > 0, factors.added, 0.0)

    def gradients(loss: tf.Tensor, factor: tf.Tensor) -> LossGradients:
        scale = tf.ones([]) if factors.scale is None else factors.scale
        found = tape.gradient(loss, sources, output_gradients=factor * scale)
        if factors.scale is not None:
            found = [scaled(gradient, 1.0 / scale) for gradient in found]
        num_leaves, end = len(representation.leaves), len(representation.leaves) + len(own)
        dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in found[:num_leaves]]
        return LossGradients(dense, with_none(found[num_leaves:end], trains_own), with_none(found[end:], trains_shared))

    of_loss = gradients(loss_sum, factors.heads[k])
    nothing = LossGradients([None] * len(representation.leaves), [None] * len(trains_own), [None] * len(trains_shared))
    of_added = gradients(added_loss, added_factor) if added_losses else nothing
    head.update_metrics(labels.targets, predictions, labels.weights)
    if all(gradient is None for gradient in of_loss.representation) and not trains_shared:
        raise ValueError(
            f"Head {head.name!r} must depend on the representation. Received: a module whose loss has no gradient with "
            "respect to any of the encoder's floating-point outputs. Make the module read them, without `stop_gradient` "
            "and operations that have no gradient."
        )
    return HeadGradients(loss_sum, added_loss * added_factor, of_loss, of_added)


def head_gradients_if(
    active: tf.Tensor,
    network: Network,
    k: int,
    representation: DetachedRepresentation,
    labels: Labels,
    factors: LossFactors,
) -> HeadGradients:
    """`head_gradients` if the head is active; otherwise nothing is computed, and all sums are zero."""
    sources = (representation.leaves, network.own_tensors(k), network.shared_tensors(k))
    of_loss = LossGradients(*([tf.shape(source) for source in group] for group in sources))
    scalar = tf.zeros([0], tf.int32)
    shapes = HeadGradients(scalar, scalar, of_loss, of_loss)

    def flat() -> list[Any]:
        return tf.nest.flatten(head_gradients(network, k, representation, labels, factors))

    return tf.nest.pack_sequence_as(shapes, computed_if(active, flat, tf.nest.flatten(shapes)))


def _run_heads(
    network: Network,
    representation: DetachedRepresentation,
    micro_batch: MicroBatch,
    factors: LossFactors,
    active: tf.Tensor,
    conditional: Sequence[bool],
) -> list[HeadGradients | None]:
    """Every head that has targets in a micro-batch; see `micro_batch_gradients`."""
    heads: list[HeadGradients | None] = []
    for k, labels in enumerate(micro_batch.labels):
        if labels is None:
            heads.append(None)
        elif conditional[k]:
            heads.append(head_gradients_if(active[k], network, k, representation, labels, factors))
        else:
            heads.append(head_gradients(network, k, representation, labels, factors))
    return heads


def _of_each_head(
    network: Network,
    encoded: Encoded,
    heads: Sequence[HeadGradients | None],
    gradients: RepresentationGradients,
    factors: LossFactors,
) -> list[list[Gradient]]:
    """For each head, one gradient of its loss per encoder variable, in a backward pass for each."""
    rows = [encoder_gradients(network, encoded, each, factors, with_added=False) for each in gradients.by_head]
    for k, head in enumerate(heads):
        if head is not None:
            for i, of_loss in zip(network.shared[k], head.of_loss.shared):
                rows[k][i] = added(rows[k][i], of_loss)
    return rows


def _beside(
    by_layer: tf.Tensor,
    network: Network,
    encoded: Encoded,
    heads: Sequence[HeadGradients | None],
    gradients: RepresentationGradients,
    factors: LossFactors,
) -> list[list[Gradient]]:
    """`_of_each_head` if the condition holds; otherwise no backward pass runs, and all gradients are zero."""
    num_heads = len(gradients.by_head)
    shapes = [tf.shape(tensor) for tensor in network.encoder_tensors]

    def flat() -> list[Gradient]:
        return [each for row in _of_each_head(network, encoded, heads, gradients, factors) for each in row]

    found = computed_if(by_layer, flat, shapes * num_heads)
    return [found[k * len(shapes) : (k + 1) * len(shapes)] for k in range(num_heads)]


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


def _add_shared(
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
    encoded = encode(network, micro_batch.inputs, persistent=combine is None or by_layer is not None)
    representation = encoded.representation
    heads = _run_heads(network, representation, micro_batch, factors, active, conditional)
    nothing: list[tf.Tensor | None] = [None] * len(representation.leaves)
    gradients = RepresentationGradients([nothing if head is None else head.of_loss.representation for head in heads])
    of_added = [nothing if head is None else head.of_added.representation for head in heads]
    unbalanced = RepresentationGradients(of_added).total()
    loss_sums = tf.stack([tf.constant(0.0) if head is None else head.loss_sum for head in heads])
    combined = None if combine is None else combine(gradients, loss_sums)
    # No annotation inside a branch: AutoGraph, which Keras 2 may apply here, cannot convert it.
    beside: list[list[Gradient]] = []
    if combined is None:
        encoder = encoder_gradients(network, encoded, unbalanced, factors, with_added=True)
        per_head = _of_each_head(network, encoded, heads, gradients, factors)
        gramian, balanced = None if measure is None else measure(gradients), None
    else:
        total = [added(a, b) for a, b in zip(combined.gradients, unbalanced)]
        encoder = encoder_gradients(network, encoded, total, factors, with_added=True)
        per_head = []
        gramian, balanced = combined.gramian, combined.balanced
        if by_layer is not None:
            beside = _beside(by_layer, network, encoded, heads, gradients, factors)

    _add_shared(encoder, network, heads, None if combined is None else combined.factors)
    empty = [[None] * len(positions) for positions in network.own]
    return MicroBatchGradients(
        loss_sums,
        count_labels(micro_batch.labels),
        tf.add_n([encoded.added_loss * factors.added] + [head.added_loss for head in heads if head is not None]),
        [empty[k] if head is None else head.of_loss.own for k, head in enumerate(heads)],
        [empty[k] if head is None else head.of_added.own for k, head in enumerate(heads)],
        encoder,
        per_head,
        gramian,
        balanced,
        beside,
        tf.stack([tf.constant(0.0) if head is None else _is_broken(head) for head in heads]),
    )
