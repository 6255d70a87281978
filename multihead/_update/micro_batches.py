"""Micro-batches: a batch split into parts that are processed one after another, in the memory of one part.

Each element's loss is divided by the count of the whole update. The gradients of micro-batches therefore add up to those
of all examples in one batch, even if the micro-batches differ in size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground.autograph import graph_function
from multihead._ground.gradients import added, computed_if, with_none, zeros_like
from multihead._ground.keras import in_xla
from multihead._update.batch import Batch, batch_size, open_batch_size, rows
from multihead._update.labels import Labels
from multihead._update.loops import Stored, by_spec, can_loop, common_spec, components


class MicroBatch(NamedTuple):
    """Some of a batch's examples, with each head's labels (None for a head without targets in the batch)."""

    inputs: Any
    labels: list[Labels | None]


class MicroBatches(Sequence[MicroBatch]):
    """The micro-batches of some batches, each of which is made where it is used.

    Args:
        batches: The batches with their labels.
        number: Micro-batches per batch; their sizes differ by at most one, and with fewer examples some are empty.
    """

    def __init__(self, batches: Sequence[MicroBatch], number: int) -> None:
        self.batches = list(batches)
        self.number = number

    def __len__(self) -> int:
        return len(self.batches) * self.number

    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, int) or not 0 <= place < len(self):
            raise IndexError(place)
        batch = self.batches[place // self.number]
        return batch if self.number == 1 else part(batch, place % self.number, self.number)

    def copied(self) -> MicroBatches:
        """The same, from copies of the batches' tensors, which come after the control dependencies of here."""
        return MicroBatches([_copied(batch) for batch in self.batches], self.number)


def part(batch: MicroBatch, place: Any, number: int) -> MicroBatch:
    """One of a number of parts of a batch, whose sizes differ by at most one."""
    size = batch_size(batch.inputs)
    return rows(batch, size * place // number, size * (place + 1) // number)


def _copied(nest: Any) -> Any:
    return tf.nest.map_structure(lambda tensor: None if tensor is None else tf.identity(tensor), nest)


def split(
    batches: Sequence[Batch], labels: Sequence[list[Labels | None]], num_micro_batches: int, num_folds: int = 1
) -> MicroBatches:
    """Splits each batch along its first axis into micro-batches whose sizes differ by at most one.

    Args:
        batches: The batches of one update.
        labels: Each head's labels in each batch.
        num_micro_batches: Micro-batches per batch. With fewer examples than that, some are empty.
        num_folds: The minimum total number of micro-batches.
    """
    if len(batches) * num_micro_batches < num_folds:
        num_micro_batches = num_folds
    return MicroBatches([MicroBatch(batch.inputs, found) for batch, found in zip(batches, labels)], num_micro_batches)


def _has_examples(micro_batch: MicroBatch) -> bool:
    """Whether a micro-batch has examples; True if that is not known yet."""
    return not tf.executing_eagerly() or bool(batch_size(micro_batch.inputs) > 0)


def plus(first: Any, second: Any) -> Any:
    """The sum of two nests of gradients and tensors; None counts as zero."""
    sums = [added(a, b) for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second))]
    return tf.nest.pack_sequence_as(first, sums)


def accumulate(
    compute: Callable[[MicroBatch], Any], micro_batches: MicroBatches, shapes: Any, num_folds: int = 1
) -> list[Any]:
    """Sums the results of `compute` over micro-batches; each starts only after the previous one has been added.

    Args:
        compute: From a micro-batch to a nest of sums. It is traced once, as one function, so that the intermediate
            values of a micro-batch are released before the next one starts.
        micro_batches: The micro-batches. Empty ones are skipped, because layers such as batch normalization cannot
            handle them.
        shapes: A nest of the result's structure with the dense shape of each tensor; None where the result is always
            None. Not used for a single micro-batch.
        num_folds: Number of separate sums: micro-batch `i` is added to sum `i mod num_folds`.

    Returns:
        One nest of sums per fold.
    """
    if len(micro_batches) == 1:
        return [compute(micro_batches[0])]
    flat_shapes = tf.nest.flatten(shapes)

    def compute_if_any(micro_batch: MicroBatch) -> list[Any]:
        has_examples, in_branch = batch_size(micro_batch.inputs) > 0, lambda result: result
        if in_xla():  # which compiles both branches for the sizes that there are, with results of equal sizes
            micro_batch, in_branch = tf.nest.map_structure(_with_a_row, micro_batch), _dense
        return computed_if(
            has_examples, lambda: [in_branch(each) for each in tf.nest.flatten(compute(micro_batch))], flat_shapes
        )

    traced = (
        compute_if_any
        if tf.executing_eagerly()
        else graph_function(
            compute_if_any,
            reduce_retracing=True,
            # One function body for all: a copy of it for each micro-batch would need more memory than is saved.
            experimental_attributes={"_noinline": True},
        )
    )
    if can_loop():
        folds = _in_a_loop(traced, micro_batches, flat_shapes, num_folds)
    else:
        folds = _one_by_one(traced, micro_batches, num_folds)
    return [tf.nest.pack_sequence_as(shapes, sums) for sums in folds]


def _with_a_row(tensor: Any) -> Any:
    """A tensor with a row of zeros if it has none: layers need not be able to compute without any."""
    if not tf.is_tensor(tensor) or not tensor.shape.rank:
        return tensor
    missing = tf.maximum(1 - tf.shape(tensor)[0], 0)
    padded = tf.pad(tensor, tf.pad([[0, missing]], [[0, tensor.shape.rank - 1], [0, 0]]))
    return tf.ensure_shape(padded, [None, *tensor.shape[1:]])


def _dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def _one_by_one(
    compute: Callable[[MicroBatch], list[Any]], micro_batches: Sequence[MicroBatch], num_folds: int
) -> list[list[Any]]:
    """The sums of each fold, by one call after another."""
    folds: list[Any] = [None] * num_folds
    parts = list(micro_batches)
    has_examples = [_has_examples(part) for part in parts]
    filled = {i % num_folds for i, found in enumerate(has_examples) if found}
    for i, micro_batch in enumerate(parts):
        if i % num_folds in filled and not has_examples[i]:
            continue
        with tf.control_dependencies(components(folds)):
            # The micro-batch's own tensors must wait as well: the ops of a function run as soon as their inputs exist.
            sums = compute(_copied(micro_batch))
        fold = i % num_folds
        folds[fold] = sums if folds[fold] is None else plus(folds[fold], sums)
    return folds


def _in_a_loop(compute: Any, micro_batches: MicroBatches, shapes: Sequence[Any], num_folds: int) -> list[list[Any]]:
    """The sums of each fold, by loops over the micro-batches of batches with equal specs: the graph holds one of them."""
    folds: list[list[Any]] = [[None] * len(shapes) for _ in range(num_folds)]
    start, number = 0, micro_batches.number
    for batches in by_spec(micro_batches.batches):
        spec = common_spec(batches) if number == 1 else open_batch_size(batches[0])
        results = compute.get_concrete_function(spec).structured_outputs
        # In a loop, sums must be from the start what they become: dense, sparse or None, and of the widest dtype.
        zeros = [zeros_like(result, shape) for result, shape in zip(results, shapes)]
        folds = [plus(fold, zeros) for fold in folds]
        with tf.control_dependencies(components(folds)):
            stored = Stored([_copied(batch) for batch in batches])
        end = start + len(batches) * number
        for i in range(num_folds):
            places = range((i - start) % num_folds, end - start, num_folds)
            with tf.control_dependencies(components(folds)):
                folds[i] = _plus_all(compute, stored, number, places, folds[i])
        start = end
    return folds


def _plus_all(compute: Any, stored: Stored, number: int, places: range, sums: list[Any]) -> list[Any]:
    """A fold's sums with the results of the micro-batches at some places in batches with equal specs."""

    def add(place: tf.Tensor, present: list[Any]) -> tuple[tf.Tensor, list[Any]]:
        micro_batch = stored[place] if number == 1 else part(stored[place // number], place % number, number)
        total = plus(with_none(present, like=sums), compute(micro_batch))
        return place + places.step, [each for each in total if each is not None]

    present = [each for each in sums if each is not None]
    _, present = tf.while_loop(
        lambda place, _: place < places.stop,
        add,
        (tf.constant(places.start), present),
        shape_invariants=(tf.TensorShape([]), [_open(each) for each in present]),
        parallel_iterations=1,
        maximum_iterations=len(places),
    )
    return with_none(present, like=sums)


def _open(gradient: Any) -> Any:
    """The shapes that a sum has in a loop, where sparse gradients gain rows."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient.shape
    return tf.IndexedSlicesSpec(gradient.shape, gradient.dtype, gradient.indices.dtype, gradient.dense_shape.dtype)
