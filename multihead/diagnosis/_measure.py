"""Measures the heads' gradients, losses and labels on batches, without training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from multihead._ground.calls import graph_function
from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import as_rows, gramian, norm_of_present
from multihead._ground.types import Gradient
from multihead._update.batch import Batch, batch_size
from multihead._update.evaluate import update_of_heads_apart
from multihead._update.labels import Labels, read_labels
from multihead._update.network import Network
from multihead._update.spec import UpdateSpec
from multihead.diagnosis._probabilities import ranges_of, unchecked
from multihead.losses._known import with_columns


class Measured(NamedTuple):
    """Raw measurements; the first axis of arrays is the batch unless stated otherwise.

    Attributes:
        losses: `[batches, heads]` loss sums.
        counts: `[batches, heads]` weighted counts of labelled elements.
        weights: `[batches, heads]` weights of the losses.
        labelled: `[batches, heads]` fractions of elements with a label.
        examples: `[batches]` numbers of examples.
        representation: `[batches, heads, heads]` inner products of the representation gradients.
        layers: `[batches, layers, heads, heads]` inner products of the parameters' gradients, by encoder layer.
        ranges: `[batches, heads, 4]` the smallest and the largest prediction, and the smallest and the largest sum of a row
            of predictions.
        of_sums: `[layers, heads, heads]` the same of the sums of the gradients over all batches.
        before: `[batches]` norms of the whole gradient.
        after: `[batches]` the same after clipping.
        names: The encoder's layers with trainable variables.
        labels: For each head, its labels in each batch, or None.
    """

    losses: np.ndarray
    counts: np.ndarray
    weights: np.ndarray
    labelled: np.ndarray
    examples: np.ndarray
    representation: np.ndarray
    layers: np.ndarray
    ranges: np.ndarray
    of_sums: np.ndarray
    before: np.ndarray
    after: np.ndarray
    names: tuple[str, ...]
    labels: list[list[Labels | None]]


def measure(spec: UpdateSpec, batches: Iterable[Batch], step: tf.Tensor, loss_scale: tf.Tensor | None) -> Measured:
    """Measures batches. Metrics and the modules' state change as in training, and the caller must restore them.

    Args:
        spec: How updates are computed.
        batches: At least one batch.
        step: The number of updates applied so far.
        loss_scale: The factor of loss scaling, or None.
    """
    network = unchecked(spec.network)
    alone = replace(spec, network=network)
    names, layers = tuple(network.layers), list(network.layers.values())

    def measurements(batch: Batch) -> tuple[dict[str, tf.Tensor], list[tf.Tensor], list[Labels | None]]:
        update, by_head = update_of_heads_apart(alone, "parameters", batch, step, loss_scale)
        gradients = update.gradients.of_losses
        rows = _dense_rows(network, by_head)
        labels = read_labels(network, spec.predictions, batch, check=False)
        found = {
            "losses": update.loss_sums,
            "counts": update.counts,
            "weights": update.losses.weights,
            "labelled": tf.stack([_labelled(each, spec.predictions[k].spec) for k, each in enumerate(labels)]),
            "examples": batch_size(batch.inputs),
            "representation": update.combined.at_representation,
            "layers": _by_layer(rows, layers, len(network.heads)),
            "ranges": ranges_of(network, batch, labels),
            "before": norm_of_present(gradients),
            "after": norm_of_present(gradients if spec.clip is None else spec.clip(gradients)),
        }
        return found, rows, labels

    measure = graph_function(measurements, reduce_retracing=True)
    by_batch, labels = [], []
    sums: list[tf.Tensor] = []
    for batch in batches:
        found, rows, of_batch = measure(batch)
        by_batch.append({name: value.numpy() for name, value in found.items()})
        labels.append(of_batch)
        sums = [a + b for a, b in zip(sums, rows)] if sums else rows
    stacked = {name: np.array([each[name] for each in by_batch]) for name in by_batch[0]}
    of_sums = _by_layer(sums, layers, len(network.heads)).numpy()
    return Measured(**stacked, of_sums=of_sums, names=names, labels=[list(of_head) for of_head in zip(*labels)])


def _dense_rows(network: Network, rows: Sequence[list[Gradient]]) -> list[tf.Tensor]:
    """For each encoder variable, the heads' gradients as a matrix `[num_heads, n]`; zeros where there is none."""
    found = []
    for variable, gradients in zip(network.variables.encoder, zip(*rows)):
        zero = tf.zeros(tensor_variable(variable).shape, tf.float32)
        matrix = as_rows([zero if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients])
        if matrix is not None:
            found.append(matrix.values)
    return found


def _by_layer(rows: Sequence[tf.Tensor], layers: Sequence[Sequence[int]], num_heads: int) -> tf.Tensor:
    """`[layers, heads, heads]`: inner products of the rows of each layer's variables."""
    if not layers:
        return tf.zeros([0, num_heads, num_heads], tf.float64)
    return tf.stack([gramian([rows[i] for i in variables], num_heads) for variables in layers])


def _labelled(labels: Labels | None, predictions: tf.TensorSpec) -> tf.Tensor:
    """The fraction of a batch's elements that have a label; steps after the last label of a sequence are padding."""
    if labels is None:
        return tf.constant(0.0)
    present = tf.cast(labels.weights > 0, tf.float32)
    elements = tf.ones_like(present)
    if present.shape.rank > 1 and with_columns(predictions.shape).rank > 2:
        elements = tf.cast(tf.cumsum(present, axis=1, reverse=True) > 0, tf.float32)
    num_rows = tf.cast(tf.shape(present)[0], tf.float32)
    return tf.math.divide_no_nan(tf.reduce_sum(present), tf.maximum(tf.reduce_sum(elements), num_rows))
