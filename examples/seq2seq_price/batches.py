"""Batches of like lengths with `tf.data`."""

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
"""Rows are batched with rows of like lengths, the source's; see `buckets_by_length`. Finer buckets save padding, but make
batches more alike: with (8, 3) a fifth of the ids are padding rather than a quarter, and on real files the decoder erred
a tenth more often (slot F1 0.988, not 0.989)."""


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
    swapping = None
    if swaps:
        swapping = Swapping(examples.texts, examples.targets, swaps, vectorizers.source, vectorizers.target)
    sources, targets = vectorizers(examples.texts, examples.targets) if swapping is None else swapping.marked
    # With marks, so that every epoch has as many batches.
    buckets = buckets_by_length(sources.row_lengths().numpy(), targets.row_lengths().numpy(), NUM_BUCKETS)
    rows = tf.data.Dataset.from_tensor_slices((sources, targets, examples.labels, buckets))
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
    """Numbers of buckets of like rows: of about equal shares by the source's length, and in each by the target's.

    Args:
        sources: Lengths, `[rows]`.
        targets: Lengths, `[rows]`.
        numbers: How many buckets by the source's length, and how many in each of them by the target's; where lengths are
            often the same, there are fewer.

    Returns:
        From 0 on, int32 `[rows]`.
    """

    def shares(lengths: np.ndarray, number: int) -> np.ndarray:
        return np.searchsorted(np.unique(np.quantile(lengths, np.arange(1, number) / number)), lengths)

    buckets = shares(sources, numbers[0]) * numbers[1]
    for first in np.unique(buckets):
        members = buckets == first
        buckets[members] += shares(targets[members], numbers[1])
    return buckets.astype(np.int32)


def evaluation_batches(examples: Examples, vectorizers: Vectorizers, batch_size: int) -> tf.data.Dataset:
    """Batches `(ids, {"reply": ids, "price": labels})` of all rows from short to long, the same every time."""
    sources, targets = vectorizers(examples.texts, examples.targets)
    order = tf.argsort(sources.row_lengths() + targets.row_lengths(), stable=True)
    rows = [tf.gather(column, order) for column in (sources, targets, examples.labels)]
    data = tf.data.Dataset.from_tensor_slices((*rows, np.zeros(len(examples.texts), np.int32))).map(_as_vectors)
    return _without_tuner(data.padded_batch(batch_size).map(_as_batch).cache())


def padding_share(batches: tf.data.Dataset) -> float:
    """The share of padding among all source and target ids of an epoch."""
    used = total = 0
    for source, targets in batches.as_numpy_iterator():
        for ids in (source, targets["reply"]):
            used += np.count_nonzero(ids)
            total += ids.size
    return 1.0 - used / total


def _without_tuner(batches: tf.data.Dataset) -> tf.data.Dataset:
    """The same batches without `tf.data`'s tuner, which has nothing to tune here.

    At the end of an epoch it may miss that it is to stop, and sleep on for as long as the epoch took, up to a minute.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.with_options(options)


def _as_vectors(source: tf.Tensor, target: tf.Tensor, label: tf.Tensor, bucket: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Rows of ragged ids as plain vectors."""
    return tf.ensure_shape(source, [None]), tf.ensure_shape(target, [None]), label, bucket


def _as_batch(
    source: tf.Tensor, target: tf.Tensor, label: tf.Tensor, bucket: tf.Tensor
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    return tf.cast(source, tf.int32), {"reply": tf.cast(target, tf.int32), "price": label}
