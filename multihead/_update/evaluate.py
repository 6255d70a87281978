"""Evaluating a batch: the heads' loss sums and counts, and the losses that modules add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground.tensors import computed_if, where
from multihead._update.added_losses import loss_of_call, loss_of_weights, sum_of
from multihead._update.batch import batch_size
from multihead._update.encode import call_encoder
from multihead._update.labels import Labels, count_labels, rows_for, with_counts
from multihead._update.network import Network
from multihead.heads._named import NamedHead


class Evaluated(NamedTuple):
    """The sums of a batch on one replica.

    Attributes:
        loss_sums: `[num_heads]` unweighted loss sums over labelled elements.
        counts: `[num_heads]` counts of these elements.
        added_loss: Regularization and `add_loss` losses, of the encoder and of the heads that would be trained; or None.
        num_examples: The number of examples, float32.
    """

    loss_sums: tf.Tensor
    counts: tf.Tensor
    added_loss: tf.Tensor | None
    num_examples: tf.Tensor


def measure(heads: Sequence[NamedHead], representation: Any, labels: Sequence[Labels | None]) -> None:
    """Updates the metrics of heads that are not trained.

    Args:
        heads: The heads.
        representation: The representation.
        labels: Each head's labels; None for a head without targets.
    """
    for head, of_head in zip(heads, labels):
        if of_head is not None:
            predictions = head.predict(representation, of_head.targets, training=False)
            head.update_metrics(of_head.targets, predictions, of_head.weights, representation)


def evaluate_batch(
    network: Network,
    inputs: Any,
    labels: Sequence[Labels | None],
    weights: tf.Tensor,
    measured: Sequence[Labels | None] = (),
) -> Evaluated:
    """Runs the modules in inference mode and updates the heads' metrics.

    Args:
        network: The encoder and the heads.
        inputs: The inputs.
        labels: Each head's labels; None for a head without targets.
        weights: `[num_heads]`: the heads' own weights.
        measured: The labels of each head that is only measured.
    """
    representation = call_encoder(network.encoder, inputs, training=False)
    measure(network.measured, representation, measured)
    labels = with_counts(network, inputs, labels)
    counts = count_labels(labels)
    active = (counts > 0) & (weights > 0)
    sums, added = list[Any](), [loss_of_call(network.encoder)]
    for k, (head, of_head) in enumerate(zip(network.heads, labels)):
        if of_head is None:
            sums.append(tf.constant(0.0))
            continue

        def evaluated(head: NamedHead = head, labels: Labels = of_head) -> list[Any]:
            read, labels = rows_for(head, representation, labels)
            predictions = head.predict(read, labels.targets, training=False)
            head.update_metrics(labels.in_units, predictions, labels.weights, read)
            return [head.loss_sum(labels.targets, predictions, labels.weights), loss_of_call(head.module)]

        if head.loss.takes_labelled_rows:
            scalar = tf.zeros([0], tf.int32)
            loss_sum, of_module = computed_if(tf.reduce_any(of_head.weights > 0), evaluated, [scalar, scalar])
        else:
            loss_sum, of_module = evaluated()
        sums.append(loss_sum)
        if of_module is not None:
            added.append(where(active[k], of_module, 0.0))
    added.append(loss_of_weights(network, active))
    return Evaluated(tf.stack(sums), counts, sum_of(added), tf.cast(batch_size(inputs), tf.float32))
