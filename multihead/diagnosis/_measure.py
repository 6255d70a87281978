"""`diagnose`: measures the heads' gradients, losses and labels on batches, without training."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from multihead._data.batch import Batch, batch_size
from multihead._ground.calls import graph_function, last_operation
from multihead._ground.keras import tensor_variable
from multihead._ground.layers import owner_names
from multihead._ground.tensors import gramian, norm_of_present
from multihead._update.evaluate import update_of_heads_apart
from multihead._update.labels import Labels, read_labels
from multihead._update.network import Network
from multihead._update.representation import DetachedRepresentation, call_encoder
from multihead._update.spec import UpdateSpec
from multihead.diagnosis import Diagnosis
from multihead.diagnosis._constant import constant_loss, label_rows
from multihead.diagnosis._findings import all_findings
from multihead.diagnosis._reached import judge, only_value, rarer_class
from multihead.diagnosis._statistics import cosine_statistics, root_mean_squares, signal_of
from multihead.diagnosis._suggestion import equal_weights, suggest
from multihead.losses._known import with_columns

_LEARNED, _ALMOST_ALL = 0.05, 0.95
"""The fraction of the constant prediction's loss that a head must have removed to count as learning, and as done."""


def diagnose(
    spec: UpdateSpec, batches: Iterable[Batch], step: tf.Tensor, loss_scale: tf.Tensor | None, *, are_all: bool
) -> Diagnosis:
    """Measures at least one batch, which may be all there are.

    Metrics and the modules' state change as in training: the caller must restore them.
    """
    by_name: dict[str, list[int]] = {}  # the positions of the encoder's trainable variables by layer
    for i, owner in enumerate(owner_names(spec.network.encoder, spec.network.variables.encoder)):
        by_name.setdefault(owner, []).append(i)
    names, layers = tuple(by_name), list(by_name.values())
    heads = [copy.copy(head) for head in spec.network.heads]
    for head in heads:
        head.checks_range = False  # predictions that are no probabilities are a finding
    network = replace(spec.network, heads=tuple(heads))
    alone = replace(spec, network=network)
    operations: dict[str, str] = {}  # by head, the last operation in the graph of its predictions, if there is a graph

    def measurements(batch: Batch) -> tuple[dict[str, tf.Tensor], list[tf.Tensor], list[Labels | None]]:
        update, by_head = update_of_heads_apart(alone, "parameters", batch, step, loss_scale)
        gradients = update.gradients.of_losses
        rows = []  # `[heads, n]` per variable of the encoder; zeros where a head has no gradient
        for variable, gradients_of_heads in zip(network.variables.encoder, zip(*by_head)):
            zeros = tf.zeros(tensor_variable(variable).shape)
            dense = [zeros if g is None else tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients_of_heads]
            rows.append(tf.stack([tf.reshape(gradient, [-1]) for gradient in dense]))
        labels = read_labels(network, batch, check=False)
        measured = {
            "losses": update.loss_sums,
            "counts": update.counts,
            "weights": update.losses.weights,
            "labelled": tf.stack(list(map(_labelled_fraction, labels, network.specs))),
            "examples": batch_size(batch.inputs),
            "representation": update.combined.at_representation,
            "layers": _by_layer(rows, layers, len(heads)),
            "ranges": _ranges(network, batch, labels, operations),
            "rows": tf.stack([_labelled_rows(head_labels, batch_size(batch.inputs)) for head_labels in labels]),
            "before": norm_of_present(gradients),
            "after": norm_of_present(gradients if spec.methods.clip is None else spec.methods.clip(gradients)),
        }
        return measured, rows, labels

    measure = graph_function(measurements, reduce_retracing=True)
    by_batch, labels = [], []
    sums: list[tf.Tensor] = []
    for batch in batches:
        measured, rows, batch_labels = measure(batch)
        by_batch.append({name: value.numpy() for name, value in measured.items()})
        labels.append(batch_labels)
        sums = [a + b for a, b in zip(sums, rows)] if sums else rows
    common = sum(np.asarray(values["rows"], float) @ np.asarray(values.pop("rows"), float).T for values in by_batch)
    raw = {name: np.array([values[name] for values in by_batch]) for name in by_batch[0]}
    gramian_of_sums = _by_layer(sums, layers, len(heads)).numpy().sum(axis=0)
    diagnosis = _measurements(spec, names, raw, gramian_of_sums, list(zip(*labels)), operations, are_all)
    with np.errstate(all="ignore"):
        either = np.add.outer(np.diag(common), np.diag(common)) - common
        diagnosis = replace(diagnosis, overlaps=common / either)
    findings, suggestion, weights = all_findings(diagnosis, spec), suggest(diagnosis, spec), equal_weights(diagnosis)
    return replace(diagnosis, findings=findings, suggestion=suggestion, equal_weights=weights)


def _by_layer(rows: Sequence[tf.Tensor], layers: Sequence[Sequence[int]], num_heads: int) -> tf.Tensor:
    """`[layers, heads, heads]`: inner products of the rows of the layers' variables."""
    if not layers:
        return tf.zeros([0, num_heads, num_heads], tf.float64)
    return tf.stack([gramian([rows[i] for i in variables], num_heads) for variables in layers])


def _labelled_fraction(labels: Labels | None, predictions: tf.TensorSpec) -> tf.Tensor:
    """The fraction of a batch's elements that have a label. Steps after the last label of a sequence are padding."""
    if labels is None:
        return tf.constant(0.0)
    present = tf.cast(labels.weights > 0, tf.float32)
    elements = tf.ones_like(present)
    if present.shape.rank > 1 and with_columns(predictions.shape).rank > 2:
        elements = tf.cast(tf.cumsum(present, axis=1, reverse=True) > 0, tf.float32)
    num_rows = tf.cast(tf.shape(present)[0], tf.float32)
    return tf.math.divide_no_nan(tf.reduce_sum(present), tf.maximum(tf.reduce_sum(elements), num_rows))


def _labelled_rows(labels: Labels | None, size: tf.Tensor) -> tf.Tensor:
    """`[batch]`: which rows of a batch have a label."""
    if labels is None:
        return tf.zeros([size], tf.bool)
    return tf.reduce_any(labels.weights > 0, axis=list(range(1, labels.weights.shape.rank)))


def _ranges(network: Network, batch: Batch, labels: Sequence[Labels | None], operations: dict[str, str]) -> tf.Tensor:
    """`[heads, 6]`: the extreme predictions and sums of a row, the fraction of zeros, and the size of what the head reads.

    The size is the root mean square of a tensor of the representation, of several the smallest. All are NaN for heads
    without labels in the batch. Writes the last operations of the heads' predictions into `operations`.
    """
    representation = DetachedRepresentation(call_encoder(network.encoder, batch.inputs, training=False))
    sizes = [tf.sqrt(tf.reduce_mean(tf.square(tf.cast(tf.abs(leaf), tf.float32)))) for leaf in representation.leaves]
    ranges = [tf.fill([6], float("nan")) for _ in network.heads]
    for k, (head, head_labels) in enumerate(zip(network.heads, labels)):
        if head_labels is not None:
            result = head.predict(representation.nest, head_labels.targets, training=False)
            operations[head.name] = last_operation(result)
            predictions = tf.cast(result, tf.float32)
            row_sums = tf.reduce_sum(predictions, axis=-1)
            extremes = [extreme(values) for values in (predictions, row_sums) for extreme in (tf.reduce_min, tf.reduce_max)]
            zeros = tf.reduce_mean(tf.cast(predictions == 0, tf.float32))
            read = [size for size, is_read in zip(sizes, network.reads[k]) if is_read] or [float("nan")]
            ranges[k] = tf.stack([*extremes, zeros, tf.reduce_min(tf.stack(read))])
    return tf.stack(ranges)


def _measurements(
    spec: UpdateSpec,
    names: Sequence[str],
    raw: dict[str, np.ndarray],
    gramian_of_sums: np.ndarray,
    labels: Sequence[Sequence[Labels | None]],
    operations: Mapping[str, str],
    are_all: bool,
) -> Diagnosis:
    """The statistics of the batches' raw measurements, and of the inner products of gradients summed over all batches."""
    counts, trained = raw["counts"], (raw["counts"] > 0) & (raw["weights"] != 0)
    gramians = {"representation": raw["representation"], "parameters": raw["layers"].sum(axis=1)}
    by_layer = {name: raw["layers"][:, i] for i, name in enumerate(names)}
    low, high = np.fmin.reduce(raw["ranges"], axis=0), np.fmax.reduce(raw["ranges"], axis=0)
    predicted = np.stack([low[:, 0], high[:, 1], low[:, 2], high[:, 3]], axis=1)
    zeros = np.nan_to_num(raw["ranges"][:, :, 4]).mean(axis=0)
    losses = raw["losses"].sum(axis=0) / np.where(counts.sum(axis=0) == 0, np.nan, counts.sum(axis=0))
    constants, summaries = [], []
    for k, (head, output, head_labels) in enumerate(zip(spec.network.heads, spec.network.specs, labels)):
        rows = label_rows(head, output, head_labels)
        summary = judge(head, output, rows, predicted[k], zeros[k], operations.get(head.name), are_all=are_all)
        constants.append(constant_loss(head, output, rows, predicted[k], losses[k], summary.has_unknown_units))
        summary = summary._replace(only=only_value(rows))
        summaries.append(summary._replace(rarer=rarer_class(head, rows)) if are_all else summary)
    constant_losses = np.array(constants)
    with np.errstate(all="ignore"):
        weights = np.where(trained, raw["weights"], 0).sum(axis=0) / trained.sum(axis=0)
        removed = np.where((constant_losses > 0) & (losses >= 0), 1 - losses / constant_losses, np.nan)
        ratios = raw["after"] / raw["before"]
        lengths = np.sqrt(np.diagonal(gramian_of_sums))
        mean_cosines = gramian_of_sums / np.outer(lengths, lengths)
    signal_to_noise, has_signal = signal_of(gramians["parameters"], gramian_of_sums, trained)
    is_clear = has_signal | np.isnan(signal_to_noise)
    stages = [(~np.isfinite(removed), "unknown"), (removed > _ALMOST_ALL, "done"), (removed < _LEARNED, "untrained")]
    progress = np.select(*zip(*stages), np.where(is_clear, "learning", "noisy"))
    squares = [np.diagonal(products, axis1=1, axis2=2) for products in gramians.values()]
    return Diagnosis(
        heads=tuple(head.name for head in spec.network.heads),
        batches=len(trained),
        losses=losses,
        constant_losses=constant_losses,
        progress=tuple(progress.tolist()),
        weights=weights,
        labelled=(raw["labelled"] * raw["examples"][:, None]).sum(axis=0) / max(raw["examples"].sum(), 1),
        label_means=np.array([summary.mean for summary in summaries]),
        label_deviations=np.array([summary.deviation for summary in summaries]),
        labels=tuple(summaries),
        reads=tuple(tuple(leaves) for leaves in spec.network.reads),
        norms={level: root_mean_squares(products, trained) for level, products in gramians.items()},
        spreads={level: cosine_statistics(products) for level, products in gramians.items()},
        mean_cosines=mean_cosines,
        signal_to_noise=signal_to_noise,
        has_signal=has_signal,
        layer_norms={name: root_mean_squares(products, trained) for name, products in by_layer.items()},
        layer_cosines={name: cosine_statistics(products) for name, products in by_layer.items()},
        update_norm=float(raw["before"].mean()),
        clipped=float(ratios[np.isfinite(ratios)].mean()) if np.isfinite(ratios).any() else float("nan"),
        predicted=predicted,
        representation_sizes=np.fmin.reduce(raw["ranges"][:, :, 5], axis=0),
        overlaps=np.ones([len(predicted)] * 2),
        finite=np.isfinite([raw["losses"], *squares]).all(axis=(0, 1)),
    )
