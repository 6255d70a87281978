"""One update, from batches to gradients. This is the only place that defines the order of its stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from multihead._data.batch import Batch
from multihead._ground import replicas
from multihead._ground.calls import graph_function
from multihead._ground.layers import all_layers
from multihead._ground.tensors import unchecked, where
from multihead._ground.types import Nested
from multihead._ground.validation import quoted, stop_unless
from multihead._update.faults import Broken
from multihead._update.labels import count_over_replicas
from multihead._update.micro_batches import MicroBatch, MicroBatches, plus
from multihead._update.network import ByOwner, gradients_of_weights, sum_of
from multihead._update.spec import UpdateSpec
from multihead._update.update import RollBack, Update
from multihead._update.weights import LossWeights, head_weights_at, meeting_of


def compute_update(spec: UpdateSpec, batches: Sequence[Batch], step: tf.Tensor, scale: tf.Tensor | None) -> Update:
    """Computes the gradients of one update from this replica's batches; `scale` is the factor of loss scaling, or None."""
    network, roll_back = spec.network, RollBack(spec.state)

    # 1. Labels: which elements count, over all batches and replicas.
    read = spec.labels if len(batches) == 1 or tf.executing_eagerly() else graph_function(spec.labels)
    labels = [read(batch) for batch in batches]
    local_counts, counts, examples = count_over_replicas(batches, [trained for trained, _ in labels])

    # 2. Weights: which heads train at this step, and how much each loss counts.
    head_weights, never_idle = head_weights_at(network.heads, step), _never_idle(spec, batches)
    active = _checked(_active(spec, head_weights, counts, step), never_idle)
    known = {
        "active": active,
        "meeting": meeting_of(network.heads, active),
        "conditional": _may_be_idle(spec, batches, never_idle),
    }
    known |= {"counts": counts, "examples": examples, "scale": scale, "step": step}
    weights = LossWeights.of(spec.weighting, head_weights, **known)

    # 3. Gradients: those of one micro-batch after another add up, in the memory of one. Across replicas, the heads' encoder
    # gradients are combined, once; each head keeps its own variables' gradients.
    parts = [MicroBatch(batch.inputs, *of_batch) for batch, of_batch in zip(batches, labels)]
    micro_batches = MicroBatches(parts, spec.num_micro_batches)
    with _exchanges_in_words(spec):
        sums, losses, combined = spec.way.gradients(network, micro_batches, weights)
    own = sums.of_heads(network, losses.factors)

    # 4. Regularizers of weights, which have no micro-batches and no replicas.
    loss_of_weights, of_weights = gradients_of_weights(network, active)
    combined = combined._replace(gradients=plus(combined.gradients, of_weights.encoder))

    # 5. What the weighting learns.
    norms = None if combined.gramian is None else tf.cast(tf.sqrt(tf.linalg.diag_part(combined.gramian)), tf.float32)
    seen = norms
    if combined.is_measured is not None:
        with unchecked():
            seen = where(combined.is_measured, norms, float("nan"))
    found = ByOwner(combined.gradients, plus(own, of_weights.heads), losses.learned(norms))
    return Update(
        gradients=found,
        clipped=found,
        step=step,
        active=active,
        never_idle=never_idle,
        broken=Broken.of_gradients(network, found).with_losses(active, sums.losses, sums.broken, norms),
        loss_sums=sums.losses,
        counts=where(active, local_counts, 0.0),
        added_loss=sum_of([sums.added_loss, None if loss_of_weights is None else replicas.part_of(loss_of_weights)]),
        combined=combined,
        norms=seen,
        losses=losses,
        micro_batches=micro_batches,
        data=(_floats([batch.inputs for batch in parts]), _floats([batch.labels for batch in parts])),
        rates=spec.rates,
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
    """For each head, whether it trains in every update, unless none does, so that its state need not be restored.

    Each element then has a label that counts, as the structure and the dtypes of the batches tell.
    """
    found = [spec.plan.heads_stay and spec.schedule.always_all] * len(spec.network.heads)
    for k, (head, predictions) in enumerate(zip(spec.network.heads, spec.predictions)):
        name, label = head.name, head.label_spec
        weighs = head.has_weight_function or head.loss.has_count or label.class_weight is not None
        found[k] = found[k] and not predictions.masked and not weighs
        for batch in batches:
            found[k] = found[k] and name in batch.targets and name not in batch.sample_weights
            if found[k]:
                targets = batch.targets[name]
                has_elements = all(targets.shape[1:].as_list())  # sizes that are known, and not 0
                can_lack = targets.dtype.is_floating or bool(label.ignore_labels)
                found[k] = has_elements and (name in spec.plan.complete or not can_lack)
    return tuple(found)


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


def _may_be_idle(spec: UpdateSpec, batches: Sequence[Batch], never_idle: Sequence[bool]) -> list[bool]:
    """For each head, whether it is computed under a condition, so that nothing of it changes while it is idle."""
    by_schedule = spec.plan.may_be_idle or not spec.schedule.always_all
    weighted = {name for batch in batches for name in batch.sample_weights}
    heads = zip(spec.network.heads, spec.network.stateful)
    in_doubt = [head.loss.has_count or head.takes_labelled_rows for head in spec.network.heads]
    may_be = [by_schedule or head.name in weighted or stateful for head, stateful in heads]
    return [own or (idle and not never) for idle, never, own in zip(may_be, never_idle, in_doubt)]


@contextmanager
def _exchanges_in_words(spec: UpdateSpec) -> Iterator[None]:
    """Within, TensorFlow's error for layers that exchange values between replicas where it cannot do so, in words."""
    try:
        yield
    except RuntimeError as error:
        if "merge_call" not in str(error):
            raise
        layers = [layer for module in spec.network.modules for layer in all_layers(module)]
        names = quoted(layer.name for layer in layers if getattr(layer, "synchronized", False))
        raise ValueError(
            "`strategy` must not have several replicas if a layer exchanges values between them in micro-batches, or in a "
            f"head that may be idle, which is computed under a condition. Received: {replicas.num_replicas()} replicas, "
            f"{spec.num_micro_batches} micro-batches, and the synchronized layers {names}. Use `synchronized=False`, or "
            "`micro_batches=1` and arrays in which no label is missing, without sample weights and schedules."
        ) from error


def _floats(nest: Nested) -> list[tf.Tensor]:
    leaves = tf.nest.flatten(nest, expand_composites=True)
    return [leaf for leaf in leaves if leaf is not None and leaf.dtype.is_floating]
