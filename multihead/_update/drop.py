"""`on_nonfinite="drop_head"`: an update with a head that is not finite is computed a second time, without that head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from multihead._ground.replicas import local
from multihead._update.batch import Batch
from multihead._update.pipeline import compute_update
from multihead._update.roll_back import RollBack
from multihead._update.spec import UpdateSpec
from multihead._update.update import Update


def compute_or_drop(spec: UpdateSpec, batches: Sequence[Batch], step: tf.Tensor, scale: tf.Tensor | None) -> Update:
    """`compute_update`; if heads must be dropped, a second time without them, exactly as if they had no labels.

    Args:
        spec: How updates are computed.
        batches: The update's batches on this replica.
        step: The number of updates applied so far.
        scale: The factor of loss scaling, or None.
    """
    roll_back = RollBack(spec.state)
    if not spec.faults.drops_heads:
        return replace(compute_update(spec, batches, step, scale), roll_back=roll_back)
    first = compute_update(replace(spec, may_be_idle=True), batches, step, scale)
    # Run eagerly, a dropped head has zeros where it had no gradient; in a graph, both have None at the same places.
    changes = [tf.is_tensor(each) and each is not step for each in tf.nest.flatten(_computed(first))]

    def tensors(update: Update) -> list[Any]:
        return [each for each, is_one in zip(tf.nest.flatten(_computed(update)), changes) if is_one]

    def again(batches: Any, drop: tf.Tensor) -> list[Any]:
        awake = spec.awake * tf.cast(~drop, tf.float32)
        return tensors(compute_update(replace(spec, awake=awake, may_be_idle=True), batches, step, scale))

    def choose(strategy: tf.distribute.Strategy, batches: Any, drop: Any, of_first: Any, saved: Any) -> Any:
        def second() -> Any:
            roll_back.restore_all(strategy, saved)
            return strategy.extended.call_for_each_replica(again, args=(batches, drop))

        return tf.cond(tf.reduce_any(local(strategy, drop)), second, lambda: of_first)

    # As around the optimizer, the condition must be outside of the replicas, which exchange sums inside of it.
    args = (list(batches), spec.faults.to_drop(first, scale), tensors(first), roll_back.values)
    chosen = iter(tf.distribute.get_replica_context().merge_call(choose, args=args))
    flat = [next(chosen) if is_one else each for each, is_one in zip(tf.nest.flatten(_computed(first)), changes)]
    found = tf.nest.pack_sequence_as(_computed(first), flat)
    return replace(first, **found, clipped=found["gradients"], earlier=(first.broken,), roll_back=roll_back)


def _computed(update: Update) -> dict[str, Any]:
    """The fields of an update that a second computation changes, as one nest of tensors and None."""
    names = (
        "gradients",
        "active",
        "broken",
        "loss_sums",
        "counts",
        "added_loss",
        "combined",
        "norms",
        "losses",
        "total",
        "by_layer",
    )
    return {name: getattr(update, name) for name in names}
