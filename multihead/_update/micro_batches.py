"""Micro-batches: a batch split into parts that are processed one after another, in the memory of one part.

Each element's loss is divided by the count of the whole update. The gradients of micro-batches therefore add up to those
of all examples in one batch, even if the micro-batches differ in size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._gradients import added, computed_if
from multihead._keras import AUTOGRAPH
from multihead._update.batch import Batch, batch_size, rows
from multihead._update.labels import Labels


class MicroBatch(NamedTuple):
    """Some of a batch's examples, with each head's labels (None for a head without targets in the batch)."""

    inputs: Any
    labels: list[Labels | None]


def split(
    batches: Sequence[Batch], labels: Sequence[list[Labels | None]], num_micro_batches: int, num_folds: int = 1
) -> list[MicroBatch]:
    """Splits each batch along its first axis into micro-batches whose sizes differ by at most one.

    Args:
        batches: The batches of one update.
        labels: Each head's labels in each batch.
        num_micro_batches: Micro-batches per batch. With fewer examples than that, some are empty.
        num_folds: The minimum total number of micro-batches.
    """
    if len(batches) * num_micro_batches < num_folds:
        num_micro_batches = num_folds
    return [
        part
        for batch, of_batch in zip(batches, labels)
        for part in _parts(MicroBatch(batch.inputs, of_batch), num_micro_batches)
    ]


def _parts(whole: MicroBatch, number: int) -> list[MicroBatch]:
    if number == 1:
        return [whole]
    size = batch_size(whole.inputs)
    bounds = [size * i // number for i in range(number + 1)]
    return [rows(whole, start, end) for start, end in zip(bounds[:-1], bounds[1:])]


def _has_examples(micro_batch: MicroBatch) -> bool:
    """Whether a micro-batch has examples; True if that is not known yet."""
    return not tf.executing_eagerly() or bool(batch_size(micro_batch.inputs) > 0)


def _with_examples(micro_batches: Sequence[MicroBatch], num_folds: int) -> set[int]:
    """The folds that have examples."""
    return {i % num_folds for i, micro_batch in enumerate(micro_batches) if _has_examples(micro_batch)}


def plus(first: Any, second: Any) -> Any:
    """The sum of two nests of gradients and tensors; None counts as zero."""
    sums = [added(a, b) for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second))]
    return tf.nest.pack_sequence_as(first, sums)


def accumulate(
    compute: Callable[[MicroBatch], Any], micro_batches: Sequence[MicroBatch], shapes: Any, num_folds: int = 1
) -> list[Any]:
    """Sums the results of `compute` over micro-batches; each starts only after the previous one has been added.

    Args:
        compute: From a micro-batch to a nest of sums. It is traced once, as one function, so that the intermediate
            values of a micro-batch are released before the next one starts.
        micro_batches: The micro-batches. Empty ones are skipped, because layers such as batch normalization cannot
            handle them.
        shapes: A nest of the result's structure with the dense shape of each tensor; None where the result is always
            None.
        num_folds: Number of separate sums: micro-batch `i` is added to sum `i mod num_folds`.

    Returns:
        One nest of sums per fold.
    """
    if len(micro_batches) == 1:
        return [compute(micro_batches[0])]
    flat_shapes = tf.nest.flatten(shapes)

    def compute_if_any(micro_batch: MicroBatch) -> list[Any]:
        return computed_if(batch_size(micro_batch.inputs) > 0, lambda: tf.nest.flatten(compute(micro_batch)), flat_shapes)

    traced = (
        compute_if_any
        if tf.executing_eagerly()
        else tf.function(
            compute_if_any,
            reduce_retracing=True,
            autograph=AUTOGRAPH,
            # One function body for all: a copy of it for each micro-batch would need more memory than is saved.
            experimental_attributes={"_noinline": True},
        )
    )
    folds: list[Any] = [None] * num_folds
    for i, micro_batch in enumerate(micro_batches):
        if i % num_folds in _with_examples(micro_batches, num_folds) and not _has_examples(micro_batch):
            continue
        before = [t for t in tf.nest.flatten(folds, expand_composites=True) if t is not None]
        with tf.control_dependencies(before):
            # The micro-batch's own tensors must wait as well: the ops of a function run as soon as their inputs exist.
            micro_batch = tf.nest.map_structure(lambda t: None if t is None else tf.identity(t), micro_batch)
            sums = tf.nest.pack_sequence_as(shapes, traced(micro_batch))
        fold = i % num_folds
        folds[fold] = sums if folds[fold] is None else plus(folds[fold], sums)
    return folds
