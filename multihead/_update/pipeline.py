"""One update, from batches to variables. This is the only place that defines the order of its stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.gradients import computed_if
from multihead._ground.keras import frozen_normalization
from multihead._ground.method import Observation
from multihead._ground.optimizers import loss_scale
from multihead._update.apply import Saved, apply_once, snapshot
from multihead._update.backward import EncoderPass, MicroBatchGradients, micro_batch_gradients
from multihead._update.batch import Batch, batch_size
from multihead._update.combine import Combined, HeadsAtStep
from multihead._update.encode import call_encoder
from multihead._update.faults import Broken
from multihead._update.head_gradients import LossFactors
from multihead._update.labels import count_over_replicas, read_labels
from multihead._update.loops import each
from multihead._update.micro_batches import MicroBatch, MicroBatches, accumulate, plus, split
from multihead._update.network import Gradients
from multihead._update.rates import Rates
from multihead._update.spec import UpdateSpec
from multihead._update.weights import LossWeights, TotalLoss, head_weights_at


class Update(NamedTuple):
    """One update, before it is clipped and applied.

    Attributes:
        gradients: The gradients, reduced over replicas, without loss scaling.
        step: The number of updates applied before this one.
        active: `[num_heads]`: which heads the update trains.
        loss_sums: `[num_heads]` unweighted loss sums over this replica's labelled elements.
        counts: `[num_heads]` counts of these elements; 0 for heads that the schedule leaves out.
        added_loss: This replica's regularization and `add_loss` losses.
        combined: The encoder's gradient, and how it was combined.
        total: The total loss.
        weights: The weights of the losses.
        micro_batches: The examples on this replica.
        rates: The factors of learning rates.
        total_counts: `[num_heads]` counts of labelled elements over all replicas.
        by_layer: `[layers, num_heads + 1, num_heads + 1]` inner products of the heads' weighted gradients and, last, the
            combined gradient in each encoder layer; zeros in updates that do not measure them, None if none does.
        clipped: The gradients after clipping; None before.
        broken: What of it is not finite.
        dropped: What was not finite before heads were dropped from the update; None if none can be dropped.
    """

    gradients: Gradients
    step: tf.Tensor
    active: tf.Tensor
    loss_sums: tf.Tensor
    counts: tf.Tensor
    added_loss: tf.Tensor
    combined: Combined
    total: TotalLoss
    weights: LossWeights
    micro_batches: MicroBatches
    rates: Rates
    total_counts: tf.Tensor
    broken: Broken
    dropped: Broken | None = None
    by_layer: tf.Tensor | None = None
    clipped: Gradients | None = None


def compute_update(spec: UpdateSpec, batches: Sequence[Batch], step: tf.Tensor, scale: tf.Tensor | None) -> Update:
    """Computes the gradients of one update. Everything nonlinear happens once, after all micro-batches and replicas.

    Args:
        spec: How updates are computed.
        batches: The update's batches on this replica.
        step: The number of updates applied so far, an int64 scalar.
        scale: The factor of loss scaling, or None.
    """
    network = spec.network

    # 1. Labels: which elements count, over all batches and replicas.
    labels = each(lambda batch: read_labels(network, spec.predictions, batch, check=spec.check_labels), batches)
    counts, num_examples = count_over_replicas(batches, labels)

    # 2. Weights: which heads train at this step, and how much each loss counts.
    head_weights = head_weights_at(network.heads, step)
    scheduled, active = _scheduled_and_active(spec, head_weights, counts, step)
    weights = LossWeights(spec.weighting, head_weights, counts, active, step)

    # 3. Gradients: one micro-batch after another, in the memory of one; their sums add up.
    combiner = spec.combiner(network, HeadsAtStep(step, active, counts, weights))
    micro_batches = split(batches, labels, spec.num_micro_batches, combiner.num_folds)
    conditional, measured = _may_be_idle(spec, batches), spec.measures_layers_at(step)
    encoder_pass = EncoderPass(combiner.combine_early(len(micro_batches)), combiner.measure, measured)

    def gradients(micro_batch: MicroBatch) -> MicroBatchGradients:
        fraction = tf.math.divide_no_nan(tf.cast(batch_size(micro_batch.inputs), tf.float32), num_examples)
        factors = LossFactors(weights.per_element, fraction, scale)
        return micro_batch_gradients(network, micro_batch, factors, active, conditional, encoder_pass)

    folds = accumulate(gradients, micro_batches, MicroBatchGradients.shapes(network, encoder_pass), combiner.num_folds)
    gathered = reduce(plus, folds)

    # 4. Across replicas, once: the heads' encoder gradients are combined; each head keeps its own variables' gradients.
    combined = combiner.combine(gathered, folds)
    factors = weights.factors(gathered.loss_sums)
    own = replicas.all_reduce_sum(gathered.of_heads(network, factors))
    by_layer = spec.layers.products(measured, gathered.beside or gathered.per_head, factors, combined.gradients)

    # 5. The total loss, and the gradients of what the weighting learns.
    total = weights.total(gathered.loss_sums, combined.norms)
    found = Gradients(combined.gradients, own, total.learned)
    broken = Broken.of(network, found, active, gathered.loss_sums, gathered.broken, combined.norms)
    is_computed = scheduled & (active | ~tf.constant(conditional))
    sums = gathered.loss_sums, tf.where(is_computed, gathered.counts, 0.0), gathered.added_loss
    return Update(
        found,
        step,
        active,
        *sums,
        combined,
        total,
        weights,
        micro_batches,
        spec.rates,
        counts,
        broken,
        None,
        by_layer,
    )


def _scheduled_and_active(
    spec: UpdateSpec, head_weights: tf.Tensor, counts: tf.Tensor, step: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Which heads the schedule names, and which of them are trained; `[num_heads]` booleans."""
    trainable = (head_weights > 0) & (spec.awake > 0)
    scheduled = spec.schedule.active(step)
    # A turn of heads that cannot train goes to the others. Otherwise no update would be applied, and the turn never end.
    scheduled |= ~tf.reduce_any(scheduled & trainable)
    return scheduled, scheduled & trainable & (counts > 0)


def clip(spec: UpdateSpec, gradients: Gradients) -> Gradients:
    """Clips the gradients of the encoder and the heads; those of a weighting's variables are not clipped."""
    if spec.clip is None:
        return gradients
    return Gradients.of([*spec.clip(gradients.of_losses), *gradients.weighting], spec.network.variables)


def apply_update(
    spec: UpdateSpec,
    optimizer: Any,
    gradients: Gradients,
    active: tf.Tensor,
    step: tf.Tensor,
    saved: Saved,
    *,
    broken: Broken,
    dropped: Broken | None = None,
    batch: tf.Tensor | None = None,
) -> tf.Tensor:
    """Applies a clipped update once, or skips it completely, and remembers what was not finite; see `apply_once`.

    Args:
        spec: How updates are applied.
        optimizer: The built optimizer.
        gradients: The gradients, clipped, reduced over replicas, without loss scaling.
        active: `[num_heads]` booleans.
        step: The number of updates applied so far, an int64 scalar.
        saved: The values to restore if the update is skipped.
        broken: What of the update is not finite.
        dropped: What was not finite before heads were dropped from it, or None.
        batch: The position of the update's first batch in the epoch, if it is known.

    Returns:
        Whether the update was applied, a boolean scalar.
    """
    scale = loss_scale(optimizer)
    applied = apply_once(spec, optimizer, gradients, active, step, saved, usable=~broken.is_any)
    if all(gradient is None for gradient in gradients.all):
        return applied
    with tf.control_dependencies([applied]):
        seen = broken if dropped is None else broken | dropped
        checks = spec.faults.observe(seen, applied, active, step, batch, scale)
    with tf.control_dependencies(checks):
        return tf.identity(applied)


def observe(spec: UpdateSpec, update: Update, applied: tf.Tensor) -> None:
    """Calls `observe` of the weighting, the balancer and the schedule.

    Args:
        spec: How updates are computed.
        update: The update.
        applied: Whether it was applied.
    """
    losses = update.total.losses
    if losses is None and "losses" in spec.uses:
        losses = update.weights.weighted_losses(update.loss_sums)
    after = None
    if "losses_after" in spec.uses:
        after = update.weights.weighted_losses(_loss_sums_after(spec, update, applied))
    combined = update.combined
    seen = Observation(update.step, update.active, losses, combined.norms, combined.at_representation, after)
    for method in spec.methods:
        method.observe(seen, applied)


def _may_be_idle(spec: UpdateSpec, batches: Sequence[Batch]) -> list[bool]:
    """For each head, whether it is computed under a condition, so that nothing of it changes while it is idle."""
    by_schedule = spec.may_be_idle or not spec.schedule.always_all
    weighted = {name for batch in batches for name in batch.sample_weights}
    return [
        by_schedule or head.name in weighted or bool(spec.network.state_of(k)) for k, head in enumerate(spec.network.heads)
    ]


def _loss_sums_after(spec: UpdateSpec, update: Update, applied: tf.Tensor) -> tf.Tensor:
    """`[num_heads]` loss sums of an update's examples on this replica, after the update was applied.

    The modules run in training mode, as for the losses before the update, and their state is restored afterwards.
    """
    network, active = spec.network, update.active
    before = snapshot(network.state)

    def loss_sums(micro_batch: MicroBatch) -> tf.Tensor:
        with frozen_normalization(network.frozen_normalization):
            representation = call_encoder(network.encoder, micro_batch.inputs, training=True)
        sums = []
        for k, labels in enumerate(micro_batch.labels):

            def loss_sum(k: int = k, labels: Any = labels) -> list[Any]:
                with frozen_normalization(network.frozen_normalization):
                    predictions = network.heads[k].predict(representation, labels.targets, training=True)
                return [network.heads[k].loss_sum(labels.targets, predictions, labels.weights)]

            scalar = [tf.constant([], tf.int32)]
            sums.append(tf.constant(0.0) if labels is None else computed_if(active[k], loss_sum, scalar)[0])
        return tf.stack(sums)

    with tf.control_dependencies([applied, *(value for _, value in before)]):
        again = update.micro_batches.copied()
        (sums,) = accumulate(loss_sums, again, tf.constant([len(network.heads)]))
    with tf.control_dependencies([sums]):
        for variable, value in before:
            variable.assign(value)
    return sums
