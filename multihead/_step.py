"""From batches to one update: labels, counts, slices, the heads combined. The order of the pipeline is written here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._backward import Labels, Network, Scales, SliceGradients, slice_gradients
from multihead._data import Batch
from multihead._gradients import Cut, computed_if
from multihead._keras import call_module, keras_mask
from multihead._meeting import KeptCoefficients, Meeting
from multihead._update import Update, all_reduce_sum, combine_heads, num_replicas
from multihead._validation import quoted
from multihead._weighing import Weighed, Weighing
from multihead.accumulation import batch_size, cut_into_slices, one_after_the_other


class Predictions(NamedTuple):
    """What is known of a head's predictions before any data are seen: their rank, and whether Keras masks them."""

    rank: int
    masked: bool


class Recipe(NamedTuple):
    """How updates are made: what `compile` was told, resolved.

    Attributes:
        network: The encoder and the heads.
        predictions: One entry per head.
        weighting: A weighting, or None for the weighted sum.
        balancer: A balancer, or None for the plain sum.
        at_parameters: Whether the balancer works on the encoder's parameters rather than at the representation.
        schedule: Which heads train when.
        micro_batches: Slices per batch.
        measure: What to measure at the cut: `"none"`, `"norms"`, or the whole `"gramian"`.
        kept: Where coefficients are kept that serve several updates, or None.
    """

    network: Network
    predictions: tuple[Predictions, ...]
    weighting: Any
    balancer: Any
    at_parameters: bool
    schedule: Any
    micro_batches: int
    measure: str
    kept: KeptCoefficients | None


class Computed(NamedTuple):
    """An update, and this replica's sums for the logs.

    Attributes:
        update: The update's gradients, not yet clipped.
        loss_sums: `[num_heads]` sums over this replica's labelled elements, not weighted.
        counts: `[num_heads]` counts of the same.
        total: This replica's part of the total loss.
        weights: `[num_heads]` weights of the losses in the total.
        weighed: What the weighting made of the losses, or None.
        after: Computes `[num_heads]` sums of the losses on this replica's examples anew and tells the weighting, given
            whether the update was made; None where the weighting does not ask.
    """

    update: Update
    loss_sums: tf.Tensor
    counts: tf.Tensor
    total: tf.Tensor
    weights: tf.Tensor
    weighed: Weighed | None
    after: Callable[[tf.Tensor], None] | None


def label(recipe: Recipe, batch: Batch) -> list[Labels | None]:
    """Each head's labels in a batch, or None for a head without targets in it."""
    masks = _prediction_masks(recipe, batch)
    labels: list[Labels | None] = []
    for head, predictions, mask in zip(recipe.network.heads, recipe.predictions, masks):
        if head.name not in batch.targets:
            labels.append(None)
            continue
        sample_weight = batch.sample_weights.get(head.name)
        labels.append(Labels(*head.labelled(batch.targets[head.name], sample_weight, predictions.rank, mask)))
    return labels


def _prediction_masks(recipe: Recipe, batch: Batch) -> list[tf.Tensor | None]:
    """The Keras masks of predictions that carry one, so that elements can be counted before the heads run.

    Only the masks are read, so in a graph nothing else of these calls is ever computed.
    """
    heads = recipe.network.heads
    masked = [predictions.masked and head.name in batch.targets for head, predictions in zip(heads, recipe.predictions)]
    if not any(masked):
        return [None] * len(heads)
    cut = Cut(call_module(recipe.network.encoder, batch.inputs, training=False))
    return [
        keras_mask(head.predict(cut.representation, batch.targets[head.name], training=False)) if is_masked else None
        for head, is_masked in zip(heads, masked)
    ]


def count(labels: Sequence[Labels | None]) -> tf.Tensor:
    """`[num_heads]` sums of the weights of labelled elements."""
    return tf.stack([tf.constant(0.0) if each is None else tf.reduce_sum(each.weights) for each in labels])


def head_weights(recipe: Recipe, update_count: tf.Tensor) -> tf.Tensor:
    """`[num_heads]` weights of the losses at an update."""
    weights = tf.stack([head.weight_at(update_count) for head in recipe.network.heads])
    if not any(callable(head.weight) for head in recipe.network.heads):
        return weights
    names = quoted(head.name for head in recipe.network.heads)
    message = f"`weight` of a head must be at least 0 at every update; the heads are {names}"
    with tf.control_dependencies([tf.debugging.assert_non_negative(weights, message=message)]):
        return tf.identity(weights)


def compute_update(
    recipe: Recipe, batches: Sequence[Batch], update_count: tf.Tensor, loss_scale: tf.Tensor | None
) -> Computed:
    """Runs the batches of one update through the network and combines what comes back.

    Args:
        recipe: How updates are made.
        batches: The update's batches on this replica.
        update_count: The count of updates made so far, an int64 scalar.
        loss_scale: The factor of loss scaling, or None.
    """
    network, heads = recipe.network, recipe.network.heads
    labelled = [label(recipe, batch) for batch in batches]
    local_counts = tf.add_n([count(labels) for labels in labelled])
    local_examples = tf.cast(tf.add_n([batch_size(batch.inputs) for batch in batches]), tf.float32)
    reduced = all_reduce_sum(tf.concat([local_counts, [local_examples]], axis=0))
    counts, examples = reduced[: len(heads)], reduced[len(heads)]

    weights = head_weights(recipe, update_count)
    conditional = not recipe.schedule.always_all
    scheduled = recipe.schedule.active(update_count) if conditional else tf.ones([len(heads)], tf.bool)
    active = scheduled & (counts > 0) & (weights > 0)
    weighing = Weighing(recipe.weighting, weights, counts, active, update_count)

    # Two halves take two slices at least.
    by_halves = recipe.balancer is not None and "halves" in recipe.balancer.uses
    num_slices = 2 if by_halves and len(batches) * recipe.micro_batches == 1 else recipe.micro_batches
    slices = [
        piece for batch, labels in zip(batches, labelled) for piece in cut_into_slices((batch.inputs, labels), num_slices)
    ]
    meeting = Meeting(
        network,
        recipe.balancer,
        recipe.at_parameters,
        recipe.measure,
        active,
        update_count,
        counts,
        weighing,
        len(slices),
        recipe.kept,
    )
    # Heads that may turn out idle are computed under a condition: by a schedule, or where weights can be all zero.
    optional = [conditional or any(head.name in batch.sample_weights for batch in batches) for head in heads]

    def run(piece: tuple[Any, ...]) -> SliceGradients:
        inputs, labels, *is_odd = piece
        share = tf.math.divide_no_nan(tf.cast(batch_size(inputs), tf.float32), examples)
        scales = Scales(weighing.scales, share, loss_scale)
        result = slice_gradients(network, inputs, labels, scales, active, optional, meeting.combine, meeting.needs_gramian)
        return result.with_odd(is_odd[0], count(labels)) if by_halves else result

    # Only where it is asked for: a constant among the arguments makes a copy of the whole function for each slice.
    numbered = [(*piece, tf.constant(float(i % 2))) for i, piece in enumerate(slices)] if by_halves else slices
    if len(slices) == 1:
        gathered = run(numbered[0])
    else:
        gathered = one_after_the_other(run, numbered, SliceGradients.plus, meeting.result_shapes())
    update = combine_heads(network, gathered, active, meeting)
    weighed = weighing.finish(gathered.loss_sums, update.norms)
    if weighed is None:
        total = tf.reduce_sum(weighing.scales * gathered.loss_sums)
    else:
        total, weights = weighed.total / num_replicas(), weighed.weights
        update = update._replace(gradients=[*update.gradients, *weighed.learned])

    def after(made: tf.Tensor) -> None:
        sums = forward_again(recipe, slices, active, made)
        weighing.observe_after(gathered.loss_sums, sums, made)

    return Computed(
        update,
        gathered.loss_sums,
        tf.where(scheduled, local_counts, 0.0),
        total + gathered.added_loss,
        weights,
        weighed,
        after if weighed is not None and recipe.weighting.reads_losses_after else None,
    )


def forward_again(recipe: Recipe, slices: Sequence[Any], active: tf.Tensor, made: tf.Tensor) -> tf.Tensor:
    """`[num_heads]` loss sums of slices with the weights as they are now, one slice after the other.

    Runs in training mode, as the losses to compare with did, and leaves the modules' state as it was.

    Args:
        recipe: How updates are made.
        slices: Pairs of inputs and labels.
        active: `[num_heads]` booleans: others are not computed.
        made: A tensor that exists only after the update.
    """
    network = recipe.network
    before = [(variable, tf.identity(variable.read_value())) for variable in network.state]

    def run(piece: tuple[Any, list[Labels | None]]) -> tuple[tf.Tensor, ...]:
        inputs, labels = piece
        representation = call_module(network.encoder, inputs, training=True)
        sums = []
        for k, head_labels in enumerate(labels):

            def loss_sum(k: int = k, head_labels: Any = head_labels) -> list[Any]:
                head = network.heads[k]
                predictions = head.predict(representation, head_labels.targets, training=True)
                return [head.loss_sum(head_labels.targets, predictions, head_labels.weights)]

            nothing = [tf.constant([], tf.int32)]
            sums.append(tf.constant(0.0) if head_labels is None else computed_if(active[k], loss_sum, nothing)[0])
        return (tf.stack(sums),)

    with tf.control_dependencies([made, *(value for _, value in before)]):
        slices = [tf.nest.map_structure(lambda t: None if t is None else tf.identity(t), piece) for piece in slices]
        shape = tf.constant([len(network.heads)], tf.int32)
        # Run eagerly, slices without any example give nothing at all.
        (sums,) = one_after_the_other(run, slices, lambda a, b: (a[0] + b[0],), [shape]) or (tf.zeros(shape),)
    with tf.control_dependencies([sums]):
        for variable, value in before:
            variable.assign(value)
    return sums
