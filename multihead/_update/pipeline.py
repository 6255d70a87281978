"""One update, from batches to gradients. This is the only place that defines the order of its stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.tensors import where
from multihead._ground.validation import stop_unless
from multihead._update.added_losses import gradients_of_weights, sum_of
from multihead._update.backward import CombinedGradients
from multihead._update.batch import Batch, batch_size
from multihead._update.broken import Broken
from multihead._update.head_gradients import LossFactors
from multihead._update.labels import Labels, count_over_replicas, fully_labelled, read_labels, with_counts
from multihead._update.loops import each
from multihead._update.micro_batches import plus, split
from multihead._update.network import Gradients
from multihead._update.roll_back import RollBack
from multihead._update.spec import UpdateSpec
from multihead._update.update import Update
from multihead._update.weights import LossWeights, head_weights_at, meeting_of


def compute_update(spec: UpdateSpec, batches: Sequence[Batch], step: tf.Tensor, scale: tf.Tensor | None) -> Update:
    """Computes the gradients of one update. Everything nonlinear happens once, after all micro-batches and replicas.

    Args:
        spec: How updates are computed.
        batches: The update's batches on this replica.
        step: The number of updates applied so far, an int64 scalar.
        scale: The factor of loss scaling, or None.
    """
    network, roll_back = spec.network, RollBack(spec.state)

    # 1. Labels: which elements count, over all batches and replicas.
    def labels_of(batch: Batch) -> list[Labels | None]:
        labels = read_labels(network, spec.predictions, batch, check=spec.check_labels, complete=spec.complete)
        return with_counts(network, batch.inputs, labels)

    labels, only_measured = each(labels_of, batches), each(spec.labels_measured, batches)
    counts = count_over_replicas(batches, labels)

    # 2. Weights: which heads train at this step, and how much each loss counts.
    head_weights = head_weights_at(network.heads, step)
    never_idle = _never_idle(spec, batches)
    active = _checked(_active(spec, head_weights, counts.labels, step), never_idle)
    known = {"counts": counts.labels, "active": active, "meeting": meeting_of(network.heads, active), "step": step}
    weights = LossWeights.of(spec.weighting, head_weights, **known)

    # 3. Gradients: one micro-batch after another, in the memory of one; their sums add up.
    combiner, measured = spec.combiner.of_update(weights), spec.measures_layers_at(step)
    micro_batches = split(batches, labels, spec.num_micro_batches, only_measured)
    encoder_pass = combiner.encoder_pass(weights, len(micro_batches), measured)
    conditional = _may_be_idle(spec, batches)

    per_element = tf.unstack(weights.per_element)

    def factors_of(inputs: Any) -> LossFactors:
        def fraction() -> tf.Tensor:
            return tf.math.divide_no_nan(tf.cast(batch_size(inputs), tf.float32), counts.examples)

        return LossFactors(heads=per_element, fraction=fraction, scale=scale, step=step)

    gathered = encoder_pass.gather(network, micro_batches, factors_of, active, conditional)
    sums = gathered.sums

    # 4. Across replicas, once: the heads' encoder gradients are combined; each head keeps its own variables' gradients.
    # Regularizers of weights come after: they have no micro-batches and no replicas.
    losses = gathered.losses if isinstance(gathered, CombinedGradients) else weights.weigh(sums.losses)
    combined = combiner.combine(network, gathered, losses)
    norms = combined.norms
    loss_of_weights, of_weights = gradients_of_weights(network, active)
    combined = combined._replace(gradients=plus(combined.gradients, of_weights.encoder))
    own = plus(sums.of_heads(network, losses.factors), of_weights.heads)
    by_layer = spec.layers.products(measured, gathered.per_head, losses.factors, combined.gradients)

    # 5. The total loss, and the gradients of what the weighting learns.
    total = losses.total(norms)
    found = Gradients(encoder=combined.gradients, heads=own, weighting=total.learned)
    return Update(
        gradients=found,
        clipped=found,
        step=step,
        active=active,
        never_idle=never_idle,
        broken=Broken.of(network, found, active, loss_sums=sums.losses, at_representation=sums.broken, norms=norms),
        loss_sums=sums.losses,
        counts=where(active, counts.local, 0.0),
        added_loss=sum_of([sums.added_loss, None if loss_of_weights is None else replicas.part_of(loss_of_weights)]),
        num_examples=counts.examples,
        combined=combined,
        norms=combined.if_measured(norms),
        losses=losses,
        total=total,
        by_layer=by_layer,
        micro_batches=micro_batches,
        rates=spec.rates,
        loss_scale=scale,
        roll_back=roll_back,
    )


def _active(spec: UpdateSpec, head_weights: tf.Tensor, counts: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """`[num_heads]` booleans: which heads are trained."""
    trainable = head_weights * spec.awake > 0
    if spec.schedule.always_all:
        return trainable & (counts > 0)
    scheduled = spec.schedule.active(step)
    # A turn of heads that cannot train goes to the others. Otherwise no update would be applied, and the turn never end.
    scheduled |= ~tf.reduce_any(scheduled & trainable)
    return scheduled & trainable & (counts > 0)


def _never_idle(spec: UpdateSpec, batches: Sequence[Batch]) -> tuple[bool, ...]:
    """For each head, whether it trains in every update, unless none does, so that nothing of it need be kept as it was."""
    heads = spec.network.heads
    if not spec.heads_stay or spec.may_be_idle or not spec.schedule.always_all:
        return (False,) * len(heads)
    labelled = zip(*(fully_labelled(spec.network, spec.predictions, batch, spec.complete) for batch in batches))
    return tuple(all(of_head) and not head.has_weight_function for head, of_head in zip(heads, labelled))


def _checked(active: tf.Tensor, never_idle: Sequence[bool]) -> tf.Tensor:
    """Which heads are trained; an error if one of those that never are idle is not, while others are."""
    places = [k for k, never in enumerate(never_idle) if never]
    if not places:
        return active
    chosen = active if len(places) == len(never_idle) else tf.gather(active, places)
    message = (
        "`set_weight` or `set_idle` must be called to make a head idle in `fit`, so that its variables stay as they are. "
        "Received: a head that became idle in another way. Call `trainer.set_weight(name, 0.0)`, or begin another `fit`."
    )
    with tf.control_dependencies(stop_unless(tf.reduce_all(chosen) | ~tf.reduce_any(active), lambda: [message])):
        return tf.identity(active)


def _may_be_idle(spec: UpdateSpec, batches: Sequence[Batch]) -> list[bool]:
    """For each head, whether it is computed under a condition, so that nothing of it changes while it is idle."""
    by_schedule = spec.may_be_idle or not spec.schedule.always_all
    weighted = {name for batch in batches for name in batch.sample_weights}
    heads = zip(spec.network.heads, spec.network.stateful)
    in_doubt = [head.loss.has_count or head.loss.takes_labelled_rows for head in spec.network.heads]
    return [by_schedule or head.name in weighted or stateful or own for (head, stateful), own in zip(heads, in_doubt)]
