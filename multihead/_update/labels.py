"""Labels: which elements of a batch have one, how much each counts, and their number in the whole update."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

import tensorflow as tf

from multihead._data.batch import Batch, batch_size
from multihead._ground import replicas
from multihead._ground.calls import keras_mask, with_keras_mask
from multihead._ground.layers import state_kept
from multihead._ground.tensors import computed_if
from multihead._ground.types import Nested, Tensor, Variable
from multihead._update.network import Network
from multihead._update.representation import DetachedRepresentation, call_encoder
from multihead.heads._labels import labelled_rows
from multihead.heads._named import NamedHead


class Predictions(NamedTuple):
    """Properties of a head's predictions, known before any data."""

    spec: tf.TensorSpec  # their spec
    masked: bool  # whether they carry a Keras mask
    leaves: tuple[bool, ...]  # for each floating-point leaf of the representation, whether they depend on it
    # The trainable variables of the encoder and the heads that the loss itself reads
    read_by_loss: tuple[Variable, ...] = ()


def share_nothing(predictions: Sequence[Predictions]) -> list[tuple[int, int]]:
    """The positions of pairs of heads that read no common floating leaf of the representation."""
    pairs = itertools.combinations(range(len(predictions)), 2)
    return [(i, j) for i, j in pairs if not any(a and b for a, b in zip(predictions[i].leaves, predictions[j].leaves))]


def read_different_tensors(predictions: Sequence[Predictions]) -> list[tuple[int, int]]:
    """These pairs, without heads that read no floating leaf at all."""
    return [(i, j) for i, j in share_nothing(predictions) if any(predictions[i].leaves) and any(predictions[j].leaves)]


class Labels(NamedTuple):
    """A head's labels in a batch."""

    targets: tf.Tensor  # the targets for the loss, without missing values
    weights: tf.Tensor  # the weight of each element, 0 if its label is missing
    unscaled: tf.Tensor | None = None  # the same targets in their own units, if the head has a scaling of targets
    # One number for each row, whose sum is the count that the loss returns; None if it returns none
    counts: tf.Tensor | None = None

    @property
    def in_units(self) -> tf.Tensor:
        """The targets in their own units, for metrics."""
        return self.targets if self.unscaled is None else self.unscaled


def fully_labelled(
    network: Network, predictions: Sequence[Predictions], batch: Batch, complete: Collection[str]
) -> list[bool]:
    """For each head, whether each element of a batch has a label that counts, which its structure and dtypes tell."""
    found = []
    for head, of_head in zip(network.heads, predictions):
        name, spec = head.name, head.label_spec
        weighs = name in batch.sample_weights or spec.class_weight is not None or head.loss.has_count
        if name not in batch.targets or of_head.masked or weighs:
            found.append(False)
            continue
        targets = batch.targets[name]
        has_elements = all(targets.shape[1:].as_list())  # sizes that are known, and not 0
        can_lack = targets.dtype.is_floating or bool(spec.ignore_labels)
        found.append(has_elements and (name in complete or not can_lack))
    return found


def read_labels(
    network: Network, predictions: Sequence[Predictions], batch: Batch, *, check: bool = True, complete: Collection[str] = ()
) -> list[Labels | None]:
    """Each head's labels in a batch; None for a head without targets in the batch.

    `check` is as in `Head.mask_missing`; no target of a head in `complete` marks a missing label.
    """
    masks = _prediction_masks(network, predictions, batch)
    labels: list[Labels | None] = []
    for head, of_head, mask in zip(network.heads, predictions, masks):
        if head.name not in batch.targets:
            labels.append(None)
            continue
        sample_weight = batch.sample_weights.get(head.name)
        known = {"check": check, "complete": head.name in complete}
        clean, weights = head.mask_missing(batch.targets[head.name], sample_weight, of_head.spec, mask, **known)
        if head.scaling is None:
            labels.append(Labels(clean, weights))
        else:
            labels.append(Labels(head.scaling.scale(clean, weights, of_head.spec, head.loss.over), weights, clean))
    return labels


def _prediction_masks(network: Network, predictions: Sequence[Predictions], batch: Batch) -> list[tf.Tensor | None]:
    """The Keras masks of the predictions, so that elements can be counted before the heads run.

    Only the masks are used, so a graph computes nothing else of these calls. What they do to the modules' state is undone,
    so that a layer that counts its calls, or carries a state from batch to batch, advances once per batch.
    """
    masked = [each.masked and head.name in batch.targets for head, each in zip(network.heads, predictions)]
    if not any(masked):
        return [None] * len(network.heads)
    with state_kept(network.modules):
        representation = DetachedRepresentation(call_encoder(network.encoder, batch.inputs, training=False)).nest
        return [
            keras_mask(head.predict(representation, head.like_scaled(batch.targets[head.name]), training=False))
            if is_masked
            else None
            for head, is_masked in zip(network.heads, masked)
        ]


def with_counts(network: Network, inputs: Nested, labels: Sequence[Labels | None]) -> list[Labels | None]:
    """Labels, with the counts of losses that return a sum and a count.

    A count is a function of the targets, so a graph computes nothing else of these calls, unless the predictions' shape is
    unknown without them; their state is undone, as in `_prediction_masks`.
    """
    if not any(head.loss.has_count and each is not None for head, each in zip(network.heads, labels)):
        return list(labels)
    with state_kept(network.modules):
        representation = DetachedRepresentation(call_encoder(network.encoder, inputs, training=False)).nest

        def counted(head: NamedHead, labels: Labels | None) -> Labels | None:
            if labels is None or not head.loss.has_count:
                return labels

            def count() -> list[tf.Tensor]:
                read, given = rows_for(head, representation, labels)
                return [head.count(given.targets, head.predict(read, given.targets, training=False), given.weights)]

            is_any = tf.reduce_any(labels.weights > 0)
            total = computed_if(is_any, count, [tf.zeros([0], tf.int32)])[0]
            return labels._replace(counts=total * tf.one_hot(0, tf.shape(labels.weights)[0]))

        return [counted(head, each) for head, each in zip(network.heads, labels)]


def rows_for(head: NamedHead, representation: Nested, labels: Labels) -> tuple[Nested, Labels]:
    """A representation and labels as a head gets them: without the rows that have no label, if it couples rows."""
    if not head.loss.couples_rows:
        return representation, labels
    rows, size = labelled_rows(labels.weights), labels.weights.shape[0]

    def gathered(tensor: Tensor) -> Tensor:
        # What has another number of rows, or none, belongs to no example: prototypes, for one.
        if not tf.is_tensor(tensor) or not tensor.shape.rank or tensor.shape[0] != size:
            return tensor
        mask = keras_mask(tensor)
        return with_keras_mask(tf.gather(tensor, rows), None if mask is None else tf.gather(mask, rows))

    return tf.nest.map_structure(gathered, representation), Labels(*map(gathered, labels))


def runs(head: NamedHead, active: tf.Tensor, labels: Labels) -> tf.Tensor:
    """Whether an active head runs on a micro-batch, a boolean scalar: a loss of labelled rows needs one."""
    return active & tf.reduce_any(labels.weights > 0) if head.loss.takes_labelled_rows else active


def count_labels(labels: Sequence[Labels | None]) -> tf.Tensor:
    """`[num_heads]` denominators of losses: sums of the weights of labelled elements, or of the counts of losses."""
    counted = [each if each is None else each.weights if each.counts is None else each.counts for each in labels]
    return tf.stack([tf.constant(0.0) if each is None else tf.reduce_sum(each) for each in counted])


def count_over_replicas(
    batches: Sequence[Batch], labels: Sequence[Sequence[Labels | None]]
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """`[num_heads]` counts of an update's labelled elements on this replica, the same over all, and all its examples."""
    local = tf.add_n([count_labels(of_batch) for of_batch in labels])
    examples = tf.cast(tf.add_n([batch_size(batch.inputs) for batch in batches]), tf.float32)
    if replicas.num_replicas() == 1:
        return local, local, examples
    reduced = replicas.all_reduce_sum(tf.concat([local, [examples]], axis=0))
    return local, reduced[:-1], reduced[-1]


def measure(heads: Sequence[NamedHead], representation: Nested, labels: Sequence[Labels | None]) -> None:
    """Updates the metrics of heads that are not trained; labels are None for a head without targets."""
    for head, of_head in zip(heads, labels):
        if of_head is not None:
            predictions = head.predict(representation, of_head.targets, training=False)
            head.update_metrics(of_head.targets, predictions, of_head.weights, representation)
