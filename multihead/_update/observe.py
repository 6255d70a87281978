"""After an update: what its methods are told."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from multihead._ground.calls import in_inference_mode
from multihead._ground.tensors import computed_if
from multihead._method import Observation
from multihead._update.encode import call_encoder
from multihead._update.labels import rows_for, runs
from multihead._update.micro_batches import MicroBatch, accumulate
from multihead._update.roll_back import RollBack
from multihead._update.spec import UpdateSpec
from multihead._update.update import Update


def observe(spec: UpdateSpec, update: Update, applied: tf.Tensor) -> None:
    """Calls `observe` of the weighting, the balancer and the schedule.

    Args:
        spec: How updates are computed.
        update: The update.
        applied: Whether it was applied.
    """
    combined, weights = update.combined, update.losses.given
    has_losses = spec.weighting is not None or "losses" in spec.uses
    after = None
    if "losses_after" in spec.uses:
        after = weights.times_means(weights.mean_losses(_loss_sums_after(spec, update, applied)))
    seen = Observation(
        step=update.step,
        active=weights.meeting,
        losses=update.losses.weighted if has_losses else None,
        norms=update.norms,
        gramian=combined.at_representation,
        losses_after=after,
    )
    for method in spec.methods:
        method.observe(seen, applied)


def _loss_sums_after(spec: UpdateSpec, update: Update, applied: tf.Tensor) -> tf.Tensor:
    """`[num_heads]` loss sums of an update's examples on this replica, after the update was applied.

    The modules run in training mode, as for the losses before the update, and their state is restored afterwards.
    """
    network, active = spec.network, update.active
    before = RollBack(network.state)

    def loss_sums(micro_batch: MicroBatch) -> tf.Tensor:
        with in_inference_mode(network.frozen_layers):
            representation = call_encoder(network.encoder, micro_batch.inputs, training=True)
        sums = []
        for k, labels in enumerate(micro_batch.labels):

            def loss_sum(k: int = k, labels: Any = labels) -> list[Any]:
                read, labels = rows_for(network.heads[k], representation, labels)
                with in_inference_mode(network.frozen_layers):
                    head = network.heads[k]
                    predictions = head.predict(read, labels.targets, training=True, step=update.step)
                return [head.loss_sum(labels.targets, predictions, labels.weights)]

            scalar = [tf.constant([], tf.int32)]
            condition = active[k] if labels is None else runs(network.heads[k], active[k], labels)
            sums.append(tf.constant(0.0) if labels is None else computed_if(condition, loss_sum, scalar)[0])
        return tf.stack(sums)

    with tf.control_dependencies([applied, *before.values]):
        again = update.micro_batches.copied()
        sums = accumulate(loss_sums, again, tf.constant([len(network.heads)]))
    with tf.control_dependencies([sums]):
        before.restore()
    return sums
