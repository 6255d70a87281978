"""Forward and backward pass of a micro-batch through the heads, down to the representation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground.calls import in_inference_mode
from multihead._ground.tensors import all_of, computed_if, is_finite, scaled, where
from multihead._ground.types import Gradient
from multihead._update.added_losses import loss_of_call
from multihead._update.labels import Labels, rows_for, runs
from multihead._update.micro_batches import MicroBatch
from multihead._update.network import Network
from multihead._update.representation import DetachedRepresentation
from multihead.heads._named import sum_of_losses


class LossFactors(NamedTuple):
    """The factors of the losses of a micro-batch.

    Attributes:
        heads: For each head, weight divided by the count of the whole update if it is active, 0 if it is idle.
        fraction: Computes the micro-batch's fraction of the update's examples.
        scale: The factor of loss scaling, or None.
        step: The number of updates applied so far.
    """

    heads: Sequence[tf.Tensor]
    fraction: Callable[[], tf.Tensor]
    scale: tf.Tensor | None
    step: tf.Tensor

    @property
    def added(self) -> tf.Tensor:
        """The factor of losses that count once per update: the micro-batch's fraction."""
        return self.fraction()

    def scaled_up(self, value: Any) -> tf.Tensor:
        """A factor, or a gradient, times the factor of loss scaling."""
        value = tf.convert_to_tensor(value)
        return value if self.scale is None else value * tf.cast(self.scale, value.dtype)

    def scaled_down(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        """Gradients without loss scaling."""
        return list(gradients) if self.scale is None else [scaled(gradient, 1.0 / self.scale) for gradient in gradients]


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
        added_loss: The sum of the losses that its call has added, times the micro-batch's factor, float32; or None.
        of_loss: The gradients of the loss sum times the head's factor.
        of_added: The gradients of `added_loss`.
    """

    loss_sum: tf.Tensor
    added_loss: tf.Tensor | None
    of_loss: LossGradients
    of_added: LossGradients

    def is_whole(self, is_measured: bool) -> tf.Tensor:
        """Whether all gradients, other than of the head's own variables, are finite; a boolean scalar.

        Args:
            is_measured: Whether those of its loss at the representation are left out, since their norm shows it.
        """
        found = [*self.of_added.representation, *self.of_loss.shared, *self.of_added.shared]
        found += [] if is_measured else self.of_loss.representation
        return all_of([is_finite(gradient) for gradient in found if gradient is not None])


def trained(tensors: Sequence[Any], is_trained: Sequence[bool]) -> list[Any]:
    """Those of some tensors that are trained."""
    return [tensor for tensor, is_one in zip(tensors, is_trained) if is_one]


def of_all(gradients: Sequence[Gradient], is_trained: Sequence[bool]) -> list[Gradient]:
    """The gradients of all tensors, from those of the trained ones; None for the others."""
    found = iter(gradients)
    return [next(found) if is_one else None for is_one in is_trained]


def head_gradients(
    network: Network, k: int, representation: DetachedRepresentation, labels: Labels, factors: LossFactors
) -> HeadGradients:
    """Forward and backward pass of one head, down to the representation; also updates the head's metrics.

    Raises:
        ValueError: The head's loss has no gradient with respect to the representation and to the module's variables.
    """
    head, trains_own, trains_shared = network.heads[k], network.trains_own(k), network.trains_shared(k)
    own, shared = trained(network.own_tensors(k), trains_own), trained(network.shared_tensors(k), trains_shared)
    leaves = representation.leaves if head.trains_encoder else []
    sources: list[Any] = [*leaves, *own, *shared]
    with tf.GradientTape(watch_accessed_variables=False, persistent=True) as tape:
        tape.watch(sources)
        with in_inference_mode(network.frozen_layers):
            read, labels = rows_for(head, representation.nest, labels)
            predictions = head.predict(read, labels.targets, training=True, step=factors.step)
        losses, weights = head.losses(labels.targets, predictions, labels.weights)
        added_loss = loss_of_call(head.module)

    def gradients(loss: tf.Tensor, factor: tf.Tensor) -> LossGradients:
        found = factors.scaled_down(tape.gradient(loss, sources, output_gradients=factor))
        end = len(leaves) + len(own)
        at_leaves = found[: len(leaves)] if leaves else [None] * len(representation.leaves)
        return LossGradients(
            representation=[None if each is None else tf.convert_to_tensor(each) for each in at_leaves],
            own=of_all(found[len(leaves) : end], trains_own),
            shared=of_all(found[end:], trains_shared),
        )

    # Elements without a label have a weight of 0, so that nothing of their loss counts.
    of_loss = gradients(losses, factors.scaled_up(factors.heads[k]) * weights)
    of_added = tf.nest.map_structure(lambda _: None, of_loss)
    if added_loss is not None:  # it counts once per update, without a weight, but not for an idle head
        added_factor = where(factors.heads[k] > 0, factors.added, 0.0)
        of_added, added_loss = gradients(added_loss, factors.scaled_up(added_factor)), added_loss * added_factor
    head.update_metrics(labels.in_units, predictions, labels.weights, read)
    reaches = not head.reads_floats(representation.nest) or trains_shared or not _is_nothing(of_loss.representation)
    if not reaches and _is_nothing(of_loss.own):
        raise ValueError(
            f"Head {head.name!r} must have a loss that trains something. Received: a loss without a gradient with respect "
            "to the encoder's floating-point outputs and to the module's own variables. Leave out operations that have no "
            "gradient, such as `argmax`; a head that is not to train the encoder has `trains_encoder=False`."
        )
    if not reaches:
        warnings.warn(
            f"The encoder learns nothing from head {head.name!r}, whose loss has no gradient with respect to its outputs: "
            "only the head's own variables are trained. If that is meant, pass `trains_encoder=False` to `add_head`; "
            "otherwise make the module read them without `stop_gradient` and operations that have no gradient.",
            UserWarning,
            stacklevel=2,
        )
    loss_sum = sum_of_losses(losses, weights)
    return HeadGradients(loss_sum=loss_sum, added_loss=added_loss, of_loss=of_loss, of_added=of_added)


def _is_nothing(gradients: Sequence[Gradient]) -> bool:
    return all(gradient is None for gradient in gradients)


def head_gradients_if(
    active: tf.Tensor, network: Network, k: int, representation: DetachedRepresentation, labels: Labels, factors: LossFactors
) -> HeadGradients:
    """`head_gradients` if the head is active; otherwise nothing is computed, and all sums are zero."""
    of_loss = LossGradients(
        representation=[tf.shape(leaf) for leaf in representation.leaves],
        own=[tf.shape(tensor) for tensor in network.own_tensors(k)],
        shared=[tf.shape(tensor) for tensor in network.shared_tensors(k)],
    )
    scalar = tf.zeros([0], tf.int32)
    # In eager mode nobody knows whether a head that is not called would add a loss, and zeros would be logged.
    added_loss = None if tf.executing_eagerly() else scalar
    shapes = HeadGradients(loss_sum=scalar, added_loss=added_loss, of_loss=of_loss, of_added=of_loss)

    def flat() -> list[Any]:
        return tf.nest.flatten(head_gradients(network, k, representation, labels, factors))

    return tf.nest.pack_sequence_as(shapes, computed_if(active, flat, tf.nest.flatten(shapes)))


def gradients_of_heads(
    network: Network,
    representation: DetachedRepresentation,
    micro_batch: MicroBatch,
    factors: LossFactors,
    active: tf.Tensor,
    conditional: Sequence[bool],
) -> list[HeadGradients | None]:
    """Forward and backward pass of every head that has targets in a micro-batch; None for the others.

    Args:
        network: The encoder and the heads.
        representation: The micro-batch's detached representation.
        micro_batch: Inputs and labels.
        factors: The factors of the losses.
        active: `[num_heads]` booleans.
        conditional: For each head, whether it is computed only if it is active.
    """

    def of_head(k: int, labels: Labels | None) -> HeadGradients | None:
        if labels is None:
            return None
        compute: Callable[..., HeadGradients] = head_gradients
        if conditional[k]:
            compute = partial(head_gradients_if, runs(network.heads[k], active[k], labels))
        return compute(network, k, representation, labels, factors)

    return [of_head(k, labels) for k, labels in enumerate(micro_batch.labels)]
