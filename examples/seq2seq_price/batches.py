"""Batches of like lengths with `tf.data`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from examples.seq2seq_price.swapping import swapped_rows
from examples.seq2seq_price.text import Examples, append_end

NUM_BUCKETS = 8
"""Rows are batched with rows of like source length. Finer buckets save padding, but make batches too much alike: the
model then needs more of them."""


@dataclass(frozen=True)
class Vectorizers:
    """The layers that turn texts and targets into ids."""

    source: keras.layers.Layer
    target: keras.layers.Layer

    def __call__(self, texts: Any, targets: Any) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Ragged int64 ids of sources and of targets, the latter with their end ids."""
        return self.source(texts), append_end(self.target(targets))


def training_batches(
    examples: Examples,
    vectorizers: Vectorizers,
    batch_size: int,
    *,
    seed: int,
    swaps: Sequence[Sequence[str]] = (),
) -> tuple[tf.data.Dataset, int]:
    """Shuffled batches of rows of like lengths, anew in every epoch.

    Args:
        examples: The training rows.
        vectorizers: What makes ids of them.
        batch_size: Rows in a batch; the last of each length may hold fewer.
        seed: Orders and swaps repeat with it.
        swaps: For each column whose values are to be swapped, its value in every row.

    Returns:
        The data set, of batches `(ids, {"reply": ids, "price": labels})`, and the number of batches in an epoch.
    """
    if swaps:
        rows, lengths = swapped_rows(examples, swaps, vectorizers.source, vectorizers.target, seed=seed)
    else:
        sources, targets = vectorizers(examples.texts, examples.targets)
        lengths = sources.row_lengths()
        rows = tf.data.Dataset.from_tensor_slices((sources, targets, examples.labels, lengths))
        rows = rows.shuffle(len(examples.texts), seed=seed)
    lengths = lengths.numpy()
    boundaries = np.unique(np.quantile(lengths, np.arange(1, NUM_BUCKETS) / NUM_BUCKETS).astype(int) + 1)
    data = rows.map(_as_vectors).bucket_by_sequence_length(
        lambda source, target, label, length: tf.cast(length, tf.int32),
        bucket_boundaries=boundaries.tolist(),
        bucket_batch_sizes=[batch_size] * (len(boundaries) + 1),
    )
    steps = int(np.ceil(np.bincount(np.digitize(lengths, boundaries)) / batch_size).sum())
    return data.map(_as_batch).apply(tf.data.experimental.assert_cardinality(steps)).prefetch(4), steps


def evaluation_batches(examples: Examples, vectorizers: Vectorizers, batch_size: int) -> tf.data.Dataset:
    """Batches `(ids, {"reply": ids, "price": labels})` of all rows from short to long, the same every time."""
    sources, targets = vectorizers(examples.texts, examples.targets)
    order = tf.argsort(sources.row_lengths() + targets.row_lengths(), stable=True)
    rows = [tf.gather(column, order) for column in (sources, targets, examples.labels, sources.row_lengths())]
    data = tf.data.Dataset.from_tensor_slices(tuple(rows)).map(_as_vectors)
    return data.padded_batch(batch_size).map(_as_batch).cache()


def padding_share(batches: tf.data.Dataset) -> float:
    """The share of padding among all source and target ids of an epoch."""
    used = total = 0
    for source, targets in batches.as_numpy_iterator():
        for ids in (source, targets["reply"]):
            used += np.count_nonzero(ids)
            total += ids.size
    return 1.0 - used / total


def _as_vectors(source: tf.Tensor, target: tf.Tensor, label: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Rows of ragged ids as plain vectors."""
    return tf.ensure_shape(source, [None]), tf.ensure_shape(target, [None]), label, length


def _as_batch(
    source: tf.Tensor, target: tf.Tensor, label: tf.Tensor, length: tf.Tensor
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    return tf.cast(source, tf.int32), {"reply": tf.cast(target, tf.int32), "price": label}
