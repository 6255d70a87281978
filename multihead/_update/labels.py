"""Labels: which elements of a batch have one, how much they count, and their number in the whole update."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import tensorflow as tf

from multihead._data.batch import Batch, batch_size
from multihead._ground import replicas
from multihead._ground.calls import gathered, keras_mask
from multihead._ground.layers import state_kept
from multihead._ground.tensors import computed_if
from multihead._ground.types import Function, Nested, Tensor
from multihead._update.network import Network
from multihead._update.representation import DetachedRepresentation, call_encoder
from multihead.heads._labels import labelled_rows
from multihead.heads._named import NamedHead


class Labels(NamedTuple):
    """A head's labels in a batch."""

    targets: tf.Tensor  # the targets for the loss, without missing values
    weights: tf.Tensor  # the weights of the elements, 0 where a label is missing
    unscaled: tf.Tensor | None = None  # the same targets in their own units, if the head has a scaling of targets
    # For a loss that returns a count: one number per row, with this count as their sum; None for other losses
    counts: tf.Tensor | None = None

    @property
    def counted(self) -> tf.Tensor:
        """What the count is the sum of."""
        return self.weights if self.counts is None else self.counts

    @property
    def in_units(self) -> tf.Tensor:
        """The targets in their own units, for metrics."""
        return self.targets if self.unscaled is None else self.unscaled


def read_labels(
    network: Network, batch: Batch, *, check: bool = True, fully_labelled: Collection[str] = ()
) -> list[Labels | None]:
    """The heads' labels in a batch; None for a head without targets in the batch.

    `check` is as in `targets_and_weights`; no target of a head in `fully_labelled` marks a missing label.
    """

    def mask_of(k: int, head: NamedHead, representation: Nested) -> tf.Tensor | None:
        targets = head.like_scaled(batch.targets[head.name])
        return keras_mask(head.predict(representation, targets, training=False))

    masked = [head.name in batch.targets and network.predictions[head.name].masked for head in network.heads]
    masks = _in_inference(network, batch.inputs, masked, mask_of)
    labels: list[Labels | None] = []
    for head, mask in zip(network.heads, masks):
        if head.name not in batch.targets:
            labels.append(None)
            continue
        sample_weight = batch.sample_weights.get(head.name)
        spec, options = network.predictions[head.name].spec, {"check": check, "fully_labelled": head.name in fully_labelled}
        clean, weights = head.mask_missing(batch.targets[head.name], sample_weight, spec, mask, **options)
        if head.scaling is None:
            labels.append(Labels(clean, weights))
        else:
            labels.append(Labels(head.scaling.scale(clean, weights, spec, head.loss.over), weights, clean))
    return labels


def with_counts(network: Network, inputs: Nested, labels: Sequence[Labels | None]) -> list[Labels | None]:
    """Labels, with the counts of losses that return a sum and a count.

    A count is a function of the targets, so a graph computes no predictions for it, unless their shape is unknown.
    """

    def counted(k: int, head: NamedHead, representation: Nested) -> Nested:
        def count() -> list[tf.Tensor]:
            read, labelled = rows_for(head, representation, head_labels)
            return [head.count(labelled.targets, head.predict(read, labelled.targets, training=False), labelled.weights)]

        head_labels: Nested = labels[k]
        total = computed_if(tf.reduce_any(head_labels.weights > 0), count, [tf.zeros([0], tf.int32)])[0]
        return head_labels._replace(counts=total * tf.one_hot(0, tf.shape(head_labels.weights)[0], dtype=total.dtype))

    have_count = [head.loss.has_count and head_labels is not None for head, head_labels in zip(network.heads, labels)]
    with_count = _in_inference(network, inputs, have_count, counted)
    return [before if after is None else after for before, after in zip(labels, with_count)]


def _in_inference(network: Network, inputs: Nested, chosen: Sequence[bool], compute: Function) -> list[Nested]:
    """For each chosen head, `compute` of its position, itself and the representation, in inference mode; None for others.

    The state of the modules is restored, so that a layer that counts its calls, or carries a state from batch to batch,
    advances once per batch.
    """
    if not any(chosen):
        return [None] * len(chosen)
    with state_kept(network.modules):
        representation = DetachedRepresentation(call_encoder(network.encoder, inputs, training=False)).nest
        heads = enumerate(network.heads)
        return [compute(k, head, representation) if is_chosen else None for (k, head), is_chosen in zip(heads, chosen)]


def rows_for(head: NamedHead, representation: Nested, labels: Labels) -> tuple[Nested, Labels]:
    """A representation and labels as a head gets them: without the rows that have no label, if it couples rows."""
    if not head.loss.couples_rows:
        return representation, labels
    rows, size = labelled_rows(labels.weights), labels.weights.shape[0]

    def kept(tensor: Tensor, has_rows: bool | None = None) -> Tensor:
        # What has another number of rows, or none, belongs to no example: prototypes, for one.
        belongs = tf.is_tensor(tensor) and tensor.shape.rank and (tensor.shape[0] == size if has_rows is None else has_rows)
        return gathered(tensor, rows) if belongs else tensor

    leaves = tf.nest.flatten(representation)
    known: Sequence[bool | None] = head.leaves_with_rows or ()
    known = known if len(known) == len(leaves) else [None] * len(leaves)
    return tf.nest.pack_sequence_as(representation, list(map(kept, leaves, known))), Labels(*map(kept, labels))


def runs(head: NamedHead, computed: tf.Tensor, labels: Labels) -> tf.Tensor:
    """Whether a head that is computed runs on a micro-batch, a boolean scalar: a loss of labelled rows needs one."""
    return computed & tf.reduce_any(labels.weights > 0) if head.takes_labelled_rows else computed


def count_labels(labels: Sequence[Labels | None], dtype: tf.DType) -> tf.Tensor:
    """`[num_heads]` denominators of losses: sums of the weights of labelled elements, or of the counts of losses."""
    sums = [tf.zeros([]) if head_labels is None else tf.reduce_sum(head_labels.counted) for head_labels in labels]
    return tf.stack([tf.cast(count, dtype) for count in sums])


def count_over_replicas(
    batches: Sequence[Batch], labels: Sequence[Sequence[Labels | None]], dtype: tf.DType
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """`[num_heads]` counts of an update's labelled elements on this replica, the same over all, and all its examples."""
    local = tf.add_n([count_labels(batch_labels, dtype) for batch_labels in labels])
    examples = tf.cast(tf.add_n([batch_size(batch.inputs) for batch in batches]), dtype)
    if replicas.num_replicas() == 1:
        return local, local, examples
    reduced = replicas.all_reduce_sum(tf.concat([local, [examples]], axis=0))
    return local, reduced[:-1], reduced[-1]


def measure(heads: Sequence[NamedHead], representation: Nested, labels: Sequence[Labels | None]) -> None:
    """Updates the metrics of heads that are not trained; labels are None for a head without targets."""
    for head, head_labels in zip(heads, labels):
        if head_labels is not None:
            predictions = head.predict(representation, head_labels.targets, training=False)
            head.update_metrics(head_labels.targets, predictions, head_labels.weights, representation)
