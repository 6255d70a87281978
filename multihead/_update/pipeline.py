"""One update, from batches to gradients. This is the only place that defines the order of its stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from multihead._data.batch import Batch, check_rows
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
from multihead._update.spec import Idle, UpdateSpec
from multihead._update.update import RollBack, Update
from multihead._update.weights import LossWeights, head_weights_at


def compute_update(spec: UpdateSpec, batches: Sequence[Batch], step: tf.Tensor, scale: tf.Tensor | None) -> Update:
    """Computes the gradients of one update from this replica's batches; `scale` is the factor of loss scaling, or None."""
    network, roll_back, number = spec.network, RollBack(spec.state), spec.methods.num_micro_batches
    batches = [check_rows(batch, number) if number > 1 else batch for batch in batches]

    # 1. Labels: which elements have one, and how many there are in all batches and on all replicas. Several batches
    # call the same function, which is traced once per shape.
    read = spec.labels if len(batches) == 1 or tf.executing_eagerly() else graph_function(spec.labels)
    labels = [read(batch) for batch in batches]
    local_counts, counts, examples = count_over_replicas(batches, [trained for trained, _ in labels], spec.network.dtype)

    # 2. Weights: which heads train at this step, and how much the losses count.
    head_weights = tf.cast(head_weights_at(network.heads, step), spec.network.dtype)
    participation = _participation(spec, batches, head_weights, counts, step)
    known = {"participation": participation, "counts": counts, "examples": examples, "scale": scale, "step": step}
    weights = LossWeights.of(spec.methods.weighting, head_weights, **known)

    # 3. Gradients: those of one micro-batch after another add up, in the memory of one. Across replicas, the heads' encoder
    # gradients are combined, once; each head keeps its own variables' gradients.
    parts = [MicroBatch(batch.inputs, trained, measured) for batch, (trained, measured) in zip(batches, labels)]
    micro_batches = MicroBatches(parts, number)
    with _exchanges_explained(spec):
        sums, losses, combined = spec.methods.backward.gradients(network, micro_batches, weights)
    own = sums.of_heads(network, losses.factors)

    # 4. Regularizers of weights, which have no micro-batches and no replicas.
    loss_of_weights, regularizers = gradients_of_weights(network, participation.active, participation.encoder)
    combined = combined._replace(gradients=plus(combined.gradients, regularizers.encoder))
    loss_of_weights = None if loss_of_weights is None else replicas.part_of(loss_of_weights)

    # 5. What the weighting learns.
    norms = None if combined.gramian is None else tf.cast(tf.sqrt(tf.linalg.diag_part(combined.gramian)), tf.float32)
    seen = norms
    if combined.is_measured is not None:
        with unchecked():
            seen = where(combined.is_measured, norms, float("nan"))
    gradients = ByOwner(combined.gradients, plus(own, regularizers.heads), losses.learned(norms))
    return Update(
        gradients=gradients,
        clipped=gradients,
        step=step,
        participation=participation,
        broken=Broken.of_gradients(network, gradients).with_losses(participation.active, sums.losses, sums.broken, norms),
        # A head whose weight is 0 at this step may have been computed all the same.
        loss_sums=where(participation.active, sums.losses, 0.0),
        counts=where(participation.active, local_counts, 0.0),
        added_loss=sum_of([sums.added_loss, loss_of_weights], spec.network.dtype),
        combined=combined,
        norms=seen,
        losses=losses,
        micro_batches=micro_batches,
        data=(_floats([batch.inputs for batch in parts]), _floats([batch.labels for batch in parts])),
        rates=spec.running.rates,
        roll_back=roll_back,
    )


def _participation(
    spec: UpdateSpec, batches: Sequence[Batch], head_weights: tf.Tensor, counts: tf.Tensor, step: tf.Tensor
) -> Participation:
    """Who takes part: the heads with labels and a weight above 0 that are not switched off, and whose turn it is.

    The loop decides what is known of a head while the step is traced. `always`: every update that is applied trains it,
    so that nothing of it needs to be restored. `conditional`: it is computed only if it takes part; others are computed
    in any case, with a weight of 0 where they do not.
    """
    able = tf.minimum(head_weights * tf.cast(spec.running.enabled, spec.network.dtype), counts) > 0
    active = able if spec.methods.schedule.always_all else spec.methods.schedule.among(able, step)
    idle, always, conditional = spec.running.plan.idle, list[bool](), list[bool]()
    for head, has_state in zip(spec.network.heads, spec.network.stateful):
        has_weights = any(head.name in batch.sample_weights for batch in batches)
        labels = [batch.targets[head.name].shape[1:].num_elements() for batch in batches if head.name in batch.targets]
        is_labelled = head.is_fully_labelled and len(labels) == len(batches) and all(labels)
        has_turn = idle is Idle.NEVER and spec.methods.schedule.always_all and not head.has_weight_function
        always.append(is_labelled and has_turn and not head.loss.has_count)
        # What is computed of an idle head costs time, and changes the state of its layers; some losses cannot be computed.
        should_not = idle is Idle.EXPECTED or not spec.methods.schedule.always_all or has_weights or has_state
        conditional.append(head.loss.has_count or head.takes_labelled_rows or (should_not and not always[-1]))
    return Participation.of(spec.groups, active, always=always, conditional=conditional)


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
            f"{spec.methods.num_micro_batches} micro-batches, and the synchronized layers {names}. Use "
            "`synchronized=False`, or `micro_batches=1` and arrays in which no label is missing and no weight is 0, "
            "without schedules and own callbacks."
        ) from error


def _floats(nest: Nested) -> list[tf.Tensor]:
    leaves = tf.nest.flatten(nest, expand_composites=True)
    return [leaf for leaf in leaves if leaf is not None and leaf.dtype.is_floating]
