"""Batches without training: losses and metrics, the losses after an update, and the heads' gradients."""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from multihead import schedules
from multihead._data.batch import Batch, batch_size, copied
from multihead._ground import replicas
from multihead._ground.calls import in_inference_mode
from multihead._ground.tensors import computed_if, inner_products, where
from multihead._ground.types import Gradient, Nested, Tensor, Variable
from multihead._update.labels import Labels, count_labels, measure, rows_for, runs
from multihead._update.micro_batches import MicroBatch, MicroBatches, accumulate
from multihead._update.network import loss_of_call, loss_of_weights, sum_of
from multihead._update.pipeline import compute_update
from multihead._update.representation import Rows, call_encoder, cosines_of, times
from multihead._update.spec import UpdateSpec
from multihead._update.strategies import BackwardStrategy, CombinedFirst, PassPerHead
from multihead._update.update import RollBack, Update


def evaluate_batch(spec: UpdateSpec, batch: Batch, weights: tf.Tensor) -> dict[str, Tensor]:
    """Runs the modules in inference mode and updates the heads' metrics; `weights` are the heads', `[num_heads]`.

    Returns this replica's unweighted loss sums and their counts, `[num_heads]`; the losses that are `added` by the encoder
    and the heads that would be trained, or None; and the number of `examples`.
    """
    network, (labels, measured) = spec.network, spec.labels(batch)
    representation = call_encoder(network.encoder, batch.inputs, training=False)
    measure(network.measured, representation, measured)
    counts = count_labels(labels, spec.network.dtype)
    active = (counts > 0) & (weights > 0)
    sums, added = list[tf.Tensor](), [loss_of_call(network.encoder)]
    for k, head_labels in enumerate(labels):
        if head_labels is None:
            sums.append(tf.zeros([], spec.network.dtype))
            continue

        def evaluated(k: int = k, labels: Labels = head_labels) -> list[Tensor]:
            head = network.heads[k]
            read, labels = rows_for(head, representation, labels)
            predictions = head.predict(read, labels.targets, training=False)
            head.update_metrics(labels.in_units, predictions, labels.weights, read)
            return [head.loss_sum(labels.targets, predictions, labels.weights), loss_of_call(head.module)]

        if network.heads[k].takes_labelled_rows:
            scalar = tf.zeros([0], tf.int32)
            loss_sum, module_loss = computed_if(tf.reduce_any(head_labels.weights > 0), evaluated, [scalar, scalar])
        else:
            loss_sum, module_loss = evaluated()
        sums.append(tf.cast(loss_sum, spec.network.dtype))
        if module_loss is not None:
            added.append(where(active[k], module_loss, 0.0))
    added.append(loss_of_weights(network, active))
    examples = tf.cast(batch_size(batch.inputs), spec.network.dtype)
    return {"losses": tf.stack(sums), "counts": counts, "added": sum_of(added, spec.network.dtype), "examples": examples}


def loss_sums_after(spec: UpdateSpec, update: Update, applied: tf.Tensor) -> tf.Tensor:
    """`[num_heads]` loss sums of an update's examples on this replica after it, in training mode; no state changes."""
    network, before = spec.network, RollBack(spec.network.state)

    def loss_sum(k: int, labels: Labels | None, representation: Nested) -> tf.Tensor:
        if labels is None:
            return tf.zeros([], spec.network.dtype)
        head = network.heads[k]

        def computed() -> list[tf.Tensor]:
            read, labelled = rows_for(head, representation, labels)
            predictions = head.predict(read, labelled.targets, training=True, step=update.step)
            return [head.loss_sum(labelled.targets, predictions, labelled.weights)]

        (computed_sum,) = computed_if(
            runs(head, update.participation.active[k], labels), computed, [tf.constant([], tf.int32)]
        )
        return tf.cast(computed_sum, spec.network.dtype)

    def loss_sums(micro_batch: MicroBatch) -> tf.Tensor:
        with in_inference_mode(network.frozen_layers):
            representation = call_encoder(network.encoder, micro_batch.inputs, training=True, step=update.step)
            return tf.stack([loss_sum(k, labels, representation) for k, labels in enumerate(micro_batch.labels)])

    with tf.control_dependencies([applied, *before.values]):
        batches = [copied(batch) for batch in update.micro_batches.batches]
        sums = accumulate(loss_sums, MicroBatches(batches, update.micro_batches.number), tf.constant([len(network.heads)]))
    with tf.control_dependencies([sums]):
        before.restore()
    return sums


class HeadGradients(dict[str, list[Gradient]]):
    """The heads' gradients by name, one per variable of the encoder or per leaf of the representation.

    Attributes:
        own: Pairs of gradient and variable for the heads' own variables, and for those of the weighting.
    """

    own: tuple[tuple[Gradient, Variable], ...] = ()
    _is_of_replica = False

    @property
    def gramian(self) -> tf.Tensor:
        """`[num_heads, num_heads]` float64 inner products of the heads' gradients, summed over replicas."""
        products = inner_products(list(self.values()))
        return replicas.all_reduce_sum(products) if self._is_of_replica else products

    @property
    def norms(self) -> tf.Tensor:
        """`[num_heads]` float64 norms of the heads' gradients."""
        return tf.sqrt(tf.linalg.diag_part(self.gramian))

    @property
    def cosines(self) -> tf.Tensor:
        """`[num_heads, num_heads]` float32 cosines between the heads' gradients; NaN for a head without a gradient."""
        return cosines_of(self.gramian)


def update_of_heads_apart(
    spec: UpdateSpec, at: str, batch: Batch, step: tf.Tensor, loss_scale: tf.Tensor | None
) -> tuple[Update, Rows]:
    """The update of a batch, of all heads whatever the schedule and without balancing, and the heads' gradients in it.

    Those `at` the `"representation"` are this replica's, those at the `"parameters"` over all replicas.
    """
    together = schedules.Together()
    together.bind([head.name for head in spec.network.heads])
    at_representation = at == "representation"
    backward: BackwardStrategy = PassPerHead(None, inner_products, at_parameters=True)
    if at_representation:
        backward = CombinedFirst(None, inner_products)
    methods = replace(spec.methods, schedule=together, num_micro_batches=1, backward=backward)
    update = compute_update(replace(spec, methods=methods), [batch], step, loss_scale)
    combined = update.combined
    return update, combined.leaves if at_representation else times(combined.rows, update.losses.factors)


def gradients_by_head(
    spec: UpdateSpec, at: str, batch: Batch, step: tf.Tensor, loss_scale: tf.Tensor | None
) -> HeadGradients:
    """The gradients of the heads' weighted mean losses; afterwards all variables are what they were."""
    before = RollBack(spec.state)
    update, rows = update_of_heads_apart(spec, at, batch, step, loss_scale)
    before.restore()
    start = len(spec.network.variables.encoder)
    gradients = HeadGradients({head.name: list(row) for head, row in zip(spec.network.heads, rows)})
    gradients.own = tuple(zip(update.gradients.all[start:], spec.network.variables.all[start:]))
    gradients._is_of_replica = at == "representation"
    return gradients
