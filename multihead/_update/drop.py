"""`on_nonfinite="drop_head"`: an update with a head that is not finite is computed a second time, without that head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from multihead._update.apply import Saved, put_back
from multihead._update.batch import Batch
from multihead._update.pipeline import Update, compute_update
from multihead._update.spec import UpdateSpec
from multihead._update.weights import LossWeights, head_weights_at


def compute_or_drop(
    spec: UpdateSpec, batches: Sequence[Batch], step: tf.Tensor, scale: tf.Tensor | None, saved: Saved
) -> Update:
    """`compute_update`; if heads must be dropped, a second time without them, exactly as if they had no labels.

    Args:
        spec: How updates are computed.
        batches: The update's batches on this replica.
        step: The number of updates applied so far.
        scale: The factor of loss scaling, or None.
        saved: The variables that computing changes, with their values before.
    """
    if not spec.faults.drops_heads:
        return compute_update(spec, batches, step, scale)
    first = compute_update(replace(spec, may_be_idle=True), batches, step, scale)
    drop = spec.faults.to_drop(first.broken, first.active, scale)
    is_present = [each is not None for each in tf.nest.flatten(_parts(first))]

    def tensors(update: Update) -> list[Any]:
        # Run eagerly, a dropped head has zeros where it had no gradient; in a graph, both have None at the same places.
        return [each for each, is_one in zip(tf.nest.flatten(_parts(update)), is_present) if is_one]

    def again(batches: Any, drop: tf.Tensor) -> list[Any]:
        awake = spec.awake * tf.cast(~drop, tf.float32)
        return tensors(compute_update(replace(spec, awake=awake, may_be_idle=True), batches, step, scale))

    def choose(strategy: tf.distribute.Strategy, batches: Any, drop: Any, of_first: Any, values: Any) -> Any:
        def second() -> Any:
            put_back(strategy, [variable for variable, _ in saved], values)
            return strategy.extended.call_for_each_replica(again, args=(batches, drop))

        return tf.cond(tf.reduce_any(strategy.experimental_local_results(drop)[0]), second, lambda: of_first)

    # As around the optimizer, the condition must be outside of the replicas, which exchange sums inside of it.
    values = [value for _, value in saved]
    args = (list(batches), drop, tensors(first), values)
    chosen = iter(tf.distribute.get_replica_context().merge_call(choose, args=args))
    update = tf.nest.pack_sequence_as(_parts(first), [next(chosen) if is_one else None for is_one in is_present])
    return _from_parts(spec, first, update, step)._replace(dropped=first.broken)


def _parts(update: Update) -> Any:
    """The parts of an update that a second computation changes."""
    own = (update.gradients, update.active, update.loss_sums, update.counts, update.added_loss)
    return (*own, update.combined, update.total, update.weights.counts, update.total_counts, update.broken, update.by_layer)


def _from_parts(spec: UpdateSpec, first: Update, parts: Any, step: tf.Tensor) -> Update:
    gradients, active, loss_sums, counts, added_loss, combined, total, of_weights, total_counts, broken, by_layer = parts
    weights = LossWeights(spec.weighting, head_weights_at(spec.network.heads, step), of_weights, active, step)
    known = (combined, total, weights, first.micro_batches, first.rates, total_counts, broken)
    return Update(gradients, step, active, loss_sums, counts, added_loss, *known, by_layer=by_layer)
