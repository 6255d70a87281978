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
from multihead.diagnosis._findings import find
from multihead.diagnosis._reached import judge
from multihead.diagnosis._statistics import cosines_of, root_mean_squares, signal_of
from multihead.diagnosis._suggestion import equal_weights, suggest
from multihead.losses._known import with_columns

_LEARNED, _ALMOST_ALL = 0.05, 0.95
"""The fraction of the constant prediction's loss that a head must have removed to count as learning, and as done."""


def diagnose(spec: UpdateSpec, batches: Iterable[Batch], step: tf.Tensor, loss_scale: tf.Tensor | None) -> Diagnosis:
    """Measures at least one batch; metrics and the modules' state change as in training, which the caller must restore."""
    by_name: dict[str, list[int]] = {}  # the encoder's layers with trainable variables: the positions of these among all
    for i, owner in enumerate(owner_names(spec.network.encoder, spec.network.variables.encoder)):
        by_name.setdefault(owner, []).append(i)
    names, layers = tuple(by_name), list(by_name.values())
    heads = [copy.copy(head) for head in spec.network.heads]
    for head in heads:
        head.checks_range = False  # predictions that are no probabilities are a finding
    network = replace(spec.network, heads=tuple(heads))
    alone = replace(spec, network=network)
    operations: dict[str, str] = {}  # by head: the last operation in the graph of its predictions, where there is a graph

    def measurements(batch: Batch) -> tuple[dict[str, tf.Tensor], list[tf.Tensor], list[Labels | None]]:
        update, by_head = update_of_heads_apart(alone, "parameters", batch, step, loss_scale)
        gradients = update.gradients.of_losses
        rows = []  # `[heads, n]` for each of the encoder's variables; zeros where a head has no gradient
        for variable, of_heads in zip(network.variables.encoder, zip(*by_head)):
            zero = tf.zeros(tensor_variable(variable).shape)
            dense = [zero if each is None else tf.cast(tf.convert_to_tensor(each), tf.float32) for each in of_heads]
            rows.append(tf.stack([tf.reshape(each, [-1]) for each in dense]))
        labels = read_labels(network, batch, check=False)
        measured = {
            "losses": update.loss_sums,
            "counts": update.counts,
            "weights": update.losses.weights,
            "labelled": tf.stack([_labelled(*of_head) for of_head in zip(labels, network.specs)]),
            "examples": batch_size(batch.inputs),
            "representation": update.combined.at_representation,
            "layers": _by_layer(rows, layers, len(heads)),
            "ranges": _ranges(network, batch, labels, operations),
            "rows": tf.stack([_labelled_rows(each, batch_size(batch.inputs)) for each in labels]),
            "before": norm_of_present(gradients),
            "after": norm_of_present(gradients if spec.methods.clip is None else spec.methods.clip(gradients)),
        }
        return measured, rows, labels

    measure = graph_function(measurements, reduce_retracing=True)
    by_batch, labels = [], []
    sums: list[tf.Tensor] = []
    for batch in batches:
        measured, rows, of_batch = measure(batch)
        by_batch.append({name: value.numpy() for name, value in measured.items()})
        labels.append(of_batch)
        sums = [a + b for a, b in zip(sums, rows)] if sums else rows
    common = sum(np.asarray(each["rows"], float) @ np.asarray(each.pop("rows"), float).T for each in by_batch)
    raw = {name: np.array([each[name] for each in by_batch]) for name in by_batch[0]}
    of_sums = _by_layer(sums, layers, len(heads)).numpy().sum(axis=0)
    found = _measurements(spec, names, raw, of_sums, list(zip(*labels)), operations)
    with np.errstate(all="ignore"):
        either = np.add.outer(np.diag(common), np.diag(common)) - common
        found = replace(found, overlaps=common / either)
    findings, suggestion, weights = find(found, spec), suggest(found, spec), equal_weights(found)
    return replace(found, findings=findings, suggestion=suggestion, equal_weights=weights)


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


def _labelled_rows(labels: Labels | None, size: tf.Tensor) -> tf.Tensor:
    """`[batch]`: which rows of a batch have a label."""
    if labels is None:
        return tf.zeros([size], tf.bool)
    return tf.reduce_any(labels.weights > 0, axis=list(range(1, labels.weights.shape.rank)))


def _ranges(network: Network, batch: Batch, labels: Sequence[Labels | None], operations: dict[str, str]) -> tf.Tensor:
    """`[heads, 5]` of a batch: the smallest and the largest prediction, and sum of a row of them; the part that is 0.

    NaN without labels. Notes the last operation of each head's predictions.
    """
    representation = DetachedRepresentation(call_encoder(network.encoder, batch.inputs, training=False)).nest
    found = [tf.fill([5], float("nan")) for _ in network.heads]
    for k, (head, of_head) in enumerate(zip(network.heads, labels)):
        if of_head is not None:
            result = head.predict(representation, of_head.targets, training=False)
            operations[head.name] = last_operation(result)
            predictions = tf.cast(result, tf.float32)
            both = predictions, tf.reduce_sum(predictions, axis=-1)
            extremes = [extreme(values) for values in both for extreme in (tf.reduce_min, tf.reduce_max)]
            found[k] = tf.stack([*extremes, tf.reduce_mean(tf.cast(predictions == 0, tf.float32))])
    return tf.stack(found)


def _measurements(
    spec: UpdateSpec,
    names: Sequence[str],
    raw: dict[str, np.ndarray],
    of_sums: np.ndarray,
    labels: Sequence[Sequence[Labels | None]],
    operations: Mapping[str, str],
) -> Diagnosis:
    """The statistics of raw measurements by batch; `of_sums` has inner products of sums of gradients over batches."""
    counts, trained = raw["counts"], (raw["counts"] > 0) & (raw["weights"] != 0)
    gramians = {"representation": raw["representation"], "parameters": raw["layers"].sum(axis=1)}
    by_layer = {name: raw["layers"][:, i] for i, name in enumerate(names)}
    low, high = np.fmin.reduce(raw["ranges"], axis=0), np.fmax.reduce(raw["ranges"], axis=0)
    predicted = np.stack([low[:, 0], high[:, 1], low[:, 2], high[:, 3]], axis=1)
    zeros = np.nan_to_num(raw["ranges"][:, :, 4]).mean(axis=0)
    constants, judged = [], []
    for k, (head, output, of_head) in enumerate(zip(spec.network.heads, spec.network.specs, labels)):
        rows = label_rows(head, output, of_head)
        constants.append(constant_loss(head, output, rows, predicted[k]))
        judged.append(judge(head, output, rows, predicted[k], zeros[k], operations.get(head.name)))
    constant_losses = np.array(constants)
    with np.errstate(all="ignore"):
        losses = raw["losses"].sum(axis=0) / counts.sum(axis=0)
        weights = np.where(trained, raw["weights"], 0).sum(axis=0) / trained.sum(axis=0)
        removed = np.where((constant_losses > 0) & (losses >= 0), 1 - losses / constant_losses, np.nan)
        ratios = raw["after"] / raw["before"]
        lengths = np.sqrt(np.diagonal(of_sums))
        mean_cosines = of_sums / np.outer(lengths, lengths)
    signal_to_noise, has_signal = signal_of(gramians["parameters"], of_sums, trained)
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
        label_means=np.array([each.mean for each in judged]),
        label_deviations=np.array([each.deviation for each in judged]),
        labels=tuple(judged),
        reads=tuple(tuple(leaves) for leaves in spec.network.reads),
        norms={level: root_mean_squares(products, trained) for level, products in gramians.items()},
        spreads={level: cosines_of(products) for level, products in gramians.items()},
        mean_cosines=mean_cosines,
        signal_to_noise=signal_to_noise,
        has_signal=has_signal,
        layer_norms={name: root_mean_squares(products, trained) for name, products in by_layer.items()},
        layer_cosines={name: cosines_of(products) for name, products in by_layer.items()},
        update_norm=float(raw["before"].mean()),
        clipped=float(ratios[np.isfinite(ratios)].mean()) if np.isfinite(ratios).any() else float("nan"),
        predicted=predicted,
        overlaps=np.ones([len(predicted)] * 2),
        finite=np.isfinite([raw["losses"], *squares]).all(axis=(0, 1)),
    )
