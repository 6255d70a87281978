"""Batches of rows of similar lengths, with `tf.data`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from examples.seq2seq_price.swapping import Swapping
from examples.seq2seq_price.text import Examples, append_end

NUM_BUCKETS = (8, 1)
"""Rows are batched with rows of similar source length; see `buckets_by_length`. Finer buckets need less padding, but make
batches less diverse: with (8, 3), a fifth of the ids are padding instead of a quarter, and on real files the decoder made
a tenth more errors (slot F1 0.988 instead of 0.989)."""


@dataclass(frozen=True)
class Vectorizers:
    """The layers that turn texts and targets into ids."""

    source: keras.layers.Layer
    target: keras.layers.Layer

    def __call__(self, texts: Any, targets: Any) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Ragged int64 ids of sources and of targets, the latter with end ids."""
        return self.source(texts), append_end(self.target(targets))


def training_batches(
    examples: Examples,
    vectorizers: Vectorizers,
    batch_size: int,
    *,
    seed: int,
    swaps: Sequence[Sequence[str]] = (),
) -> tuple[tf.data.Dataset, int]:
    """Batches of rows of similar lengths, reshuffled in every epoch.

    Args:
        examples: The training rows.
        vectorizers: The layers that convert texts to ids.
        batch_size: Rows per batch; the last batch of each bucket may be smaller.
        seed: Random seed for the order and the swaps.
        swaps: For each column whose values are swapped, its value in every row.

    Returns:
        The dataset of batches `(ids, {"reply": ids, "price": labels, **additional})`, and the number of batches per epoch.
    """
    swapping = None
    if swaps:
        swapping = Swapping(examples.texts, examples.targets, swaps, vectorizers.source, vectorizers.target)
    sources, targets = vectorizers(examples.texts, examples.targets) if swapping is None else swapping.marked
    # Lengths with placeholders, so that every epoch has the same number of batches.
    buckets = buckets_by_length(sources.row_lengths().numpy(), targets.row_lengths().numpy(), NUM_BUCKETS)
    rows = tf.data.Dataset.from_tensor_slices((sources, targets, _labels_of(examples), buckets))
    rows = rows.shuffle(len(buckets), seed=seed)
    if swapping is not None:
        rows = swapping.fill(rows, seed=seed)
    batches = rows.map(_as_vectors).bucket_by_sequence_length(
        lambda source, target, label, bucket: bucket,
        bucket_boundaries=list(range(1, max(buckets) + 1)),
        bucket_batch_sizes=[batch_size] * (max(buckets) + 1),
    )
    steps = int(np.ceil(np.bincount(buckets) / batch_size).sum())
    batches = batches.map(_as_batch).apply(tf.data.experimental.assert_cardinality(steps)).prefetch(4)
    return _without_tuner(batches), steps


def buckets_by_length(sources: np.ndarray, targets: np.ndarray, numbers: tuple[int, int]) -> np.ndarray:
    """Assigns rows to buckets of about equal size by source length, and within each of them by target length.

    Args:
        sources: Source lengths, `[rows]`.
        targets: Target lengths, `[rows]`.
        numbers: The number of buckets by source length, and within each of them by target length. There are fewer if many
            lengths are equal.

    Returns:
        Bucket indices from 0, int32 `[rows]`.
    """

    def shares(lengths: np.ndarray, number: int) -> np.ndarray:
        return np.searchsorted(np.unique(np.quantile(lengths, np.arange(1, number) / number)), lengths)

    buckets = shares(sources, numbers[0]) * numbers[1]
    for first in np.unique(buckets):
        members = buckets == first
        buckets[members] += shares(targets[members], numbers[1])
    return buckets.astype(np.int32)


def evaluation_batches(examples: Examples, vectorizers: Vectorizers, batch_size: int) -> tf.data.Dataset:
    """Batches as for training, but of all rows from short to long, in a fixed order."""
    sources, targets = vectorizers(examples.texts, examples.targets)
    order = tf.argsort(sources.row_lengths() + targets.row_lengths(), stable=True)
    columns = (sources, targets, _labels_of(examples))
    rows = tf.nest.map_structure(lambda column: tf.gather(column, order), columns)
    data = tf.data.Dataset.from_tensor_slices((*rows, np.zeros(len(examples.texts), np.int32))).map(_as_vectors)
    return _without_tuner(data.padded_batch(batch_size).map(_as_batch).cache())


def padding_share(batches: tf.data.Dataset) -> float:
    """The fraction of padding among all source and target ids of an epoch."""
    used = total = 0
    for source, targets in batches.as_numpy_iterator():
        for ids in (source, targets["reply"]):
            used += np.count_nonzero(ids)
            total += ids.size
    return 1.0 - used / total


def _without_tuner(batches: tf.data.Dataset) -> tf.data.Dataset:
    """The same batches without `tf.data`'s autotuner, which has nothing to tune here.

    At the end of an epoch it may miss the signal to stop, and keep waiting for as long as the epoch took, up to a minute.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.with_options(options)


def _labels_of(examples: Examples) -> dict[str, Any]:
    """The targets of all heads except the reply."""
    return {"price": examples.labels, **examples.additional}


def _as_vectors(source: tf.Tensor, target: tf.Tensor, labels: dict[str, tf.Tensor], bucket: tf.Tensor) -> tuple[Any, ...]:
    """Rows of ragged ids as dense vectors."""
    return tf.ensure_shape(source, [None]), tf.ensure_shape(target, [None]), labels, bucket


def _as_batch(
    source: tf.Tensor, target: tf.Tensor, labels: dict[str, tf.Tensor], bucket: tf.Tensor
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    labels = {head: _with_a_step(label) for head, label in labels.items()}
    return tf.cast(source, tf.int32), {"reply": tf.cast(target, tf.int32), **labels}


def _with_a_step(label: tf.Tensor) -> tf.Tensor:
    """A batch of labels; those of tokens have at least one step, as the encoder's outputs have."""
    if label.shape.rank != 2 or label.shape[1]:
        return label
    return tf.pad(label, [[0, 0], [0, tf.maximum(0, 1 - tf.shape(label)[1])]])
