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
from multihead._ground.validation import quoted
from multihead._update.faults import Broken
from multihead._update.labels import count_over_replicas
from multihead._update.micro_batches import MicroBatch, MicroBatches, plus
from multihead._update.network import ByOwner, gradients_of_weights, sum_of
from multihead._update.participation import Participation
from multihead._update.spec import UpdateSpec
from multihead._update.update import RollBack, Update
from multihead._update.weights import LossWeights, head_weights_at


def compute_update(spec: UpdateSpec, batches: Sequence[Batch], step: tf.Tensor, scale: tf.Tensor | None) -> Update:
    """Computes the gradients of one update from this replica's batches; `scale` is the factor of loss scaling, or None."""
    network, roll_back = spec.network, RollBack(spec.state)

    # 1. Labels: which elements count, over all batches and replicas.
    read = spec.labels if len(batches) == 1 or tf.executing_eagerly() else graph_function(spec.labels)
    labels = [read(batch) for batch in batches]
    local_counts, counts, examples = count_over_replicas(batches, [trained for trained, _ in labels], spec.dtype)

    # 2. Weights: which heads train at this step, and how much each loss counts.
    head_weights = tf.cast(head_weights_at(network.heads, step), spec.dtype)
    participation = _participation(spec, batches, head_weights, counts, step)
    known = {"participation": participation, "counts": counts, "examples": examples, "scale": scale, "step": step}
    weights = LossWeights.of(spec.weighting, head_weights, **known)

    # 3. Gradients: those of one micro-batch after another add up, in the memory of one. Across replicas, the heads' encoder
    # gradients are combined, once; each head keeps its own variables' gradients.
    parts = [MicroBatch(batch.inputs, *of_batch) for batch, of_batch in zip(batches, labels)]
    micro_batches = MicroBatches(parts, spec.num_micro_batches)
    with _exchanges_explained(spec):
        sums, losses, combined = spec.way.gradients(network, micro_batches, weights)
    own = sums.of_heads(network, losses.factors)

    # 4. Regularizers of weights, which have no micro-batches and no replicas.
    loss_of_weights, of_weights = gradients_of_weights(network, participation.active, participation.encoder)
    combined = combined._replace(gradients=plus(combined.gradients, of_weights.encoder))
    loss_of_weights = None if loss_of_weights is None else replicas.part_of(loss_of_weights)

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
        participation=participation,
        broken=Broken.of_gradients(network, found).with_losses(participation.active, sums.losses, sums.broken, norms),
        # A head whose weight is 0 at this step may have been computed all the same.
        loss_sums=where(participation.active, sums.losses, 0.0),
        counts=where(participation.active, local_counts, 0.0),
        added_loss=sum_of([sums.added_loss, loss_of_weights], spec.dtype),
        combined=combined,
        norms=seen,
        losses=losses,
        micro_batches=micro_batches,
        data=(_floats([batch.inputs for batch in parts]), _floats([batch.labels for batch in parts])),
        rates=spec.rates,
        roll_back=roll_back,
    )


def _participation(
    spec: UpdateSpec, batches: Sequence[Batch], head_weights: tf.Tensor, counts: tf.Tensor, step: tf.Tensor
) -> Participation:
    """Who takes part: the heads with labels and a weight above 0 that are not idle, and whose turn it is."""
    able = tf.minimum(head_weights * tf.cast(spec.awake, spec.dtype), counts) > 0
    active = able if spec.schedule.always_all else spec.schedule.among(able, step)
    always = _always(spec, batches)
    return Participation.of(spec.network, active, always=always, conditional=_conditional(spec, batches, always))


def _always(spec: UpdateSpec, batches: Sequence[Batch]) -> list[bool]:
    """For each head, whether it trains in every update, unless none does, so that nothing of it need be restored.

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
    return found


def _conditional(spec: UpdateSpec, batches: Sequence[Batch], always: Sequence[bool]) -> list[bool]:
    """For each head, whether it is computed under a condition, so that nothing of it changes while it is idle."""
    by_schedule = spec.plan.may_be_idle or not spec.schedule.always_all
    weighted = {name for batch in batches for name in batch.sample_weights}
    heads = zip(spec.network.heads, spec.network.stateful)
    in_doubt = [head.loss.has_count or head.takes_labelled_rows for head in spec.network.heads]
    may_be = [by_schedule or head.name in weighted or stateful for head, stateful in heads]
    return [own or (idle and not never) for idle, never, own in zip(may_be, always, in_doubt)]


@contextmanager
def _exchanges_explained(spec: UpdateSpec) -> Iterator[None]:
    """Within, TensorFlow's error for layers that cannot exchange values between replicas says what to do."""
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
            "`micro_batches=1` and arrays in which no label is missing, without sample weights, schedules and own callbacks."
        ) from error


def _floats(nest: Nested) -> list[tf.Tensor]:
    leaves = tf.nest.flatten(nest, expand_composites=True)
    return [leaf for leaf in leaves if leaf is not None and leaf.dtype.is_floating]
