"""Micro-batches: a batch split into parts that are processed one after another, in the memory of one part.

Each element's loss is divided by the count of the whole update. The gradients of micro-batches therefore add up to those
of all examples in one batch, even if the micro-batches differ in size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground.calls import graph_function
from multihead._ground.tensors import added, computed_if, in_xla, with_none, zeros_like
from multihead._update.batch import Batch, batch_size, open_batch_size, rows
from multihead._update.labels import Labels
from multihead._update.loops import Stored, by_spec, can_loop, common_spec, components, empty, read


class MicroBatch(NamedTuple):
    """Some of a batch's examples, with each head's labels (None for a head without targets in the batch).

    Attributes:
        inputs: The inputs.
        labels: The labels of each head that is trained.
        measured: The labels of each head that is only measured.
    """

    inputs: Any
    labels: list[Labels | None]
    measured: Sequence[Labels | None] = ()


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
    batches: Sequence[Batch],
    labels: Sequence[list[Labels | None]],
    num_micro_batches: int,
    measured: Sequence[Sequence[Labels | None]] | None = None,
) -> MicroBatches:
    """Splits each batch along its first axis into micro-batches whose sizes differ by at most one.

    Args:
        batches: The batches of one update.
        labels: Each head's labels in each batch.
        num_micro_batches: Micro-batches per batch. With fewer examples than that, some are empty.
        measured: The labels in each batch of the heads that are only measured.
    """
    parts = zip(batches, labels, measured or [()] * len(batches))
    return MicroBatches([MicroBatch(batch.inputs, found, own) for batch, found, own in parts], num_micro_batches)


def _has_examples(micro_batch: MicroBatch) -> bool:
    """Whether a micro-batch has examples; True if that is not known yet."""
    return not tf.executing_eagerly() or bool(batch_size(micro_batch.inputs) > 0)


def plus(first: Any, second: Any) -> Any:
    """The sum of two nests of gradients and tensors; None counts as zero."""
    sums = [added(a, b) for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second))]
    return tf.nest.pack_sequence_as(first, sums)


def accumulate(compute: Callable[[MicroBatch], Any], micro_batches: MicroBatches, shapes: Any) -> Any:
    """Sums the results of `compute` over micro-batches; each starts only after the previous one has been added.

    Args:
        compute: From a micro-batch to a nest of sums. It is traced once, as one function, so that the intermediate
            values of a micro-batch are released before the next one starts.
        micro_batches: The micro-batches. Empty ones are skipped, because layers such as batch normalization cannot
            handle them.
        shapes: A nest of the result's structure with the dense shape of each tensor; None where the result is always
            None. Not used for a single micro-batch.

    Returns:
        The nest of sums.
    """
    if len(micro_batches) == 1:
        return compute(micro_batches[0])
    flat_shapes = tf.nest.flatten(shapes)
    if can_loop():
        groups = [Group(batches, micro_batches.number) for batches in by_spec(micro_batches.batches)]
        sums, _ = _in_a_loop(_traced(compute, flat_shapes), groups, flat_shapes)
    else:
        sums = _one_by_one(_traced(compute, flat_shapes), micro_batches)
    return tf.nest.pack_sequence_as(shapes, sums)


def gather(
    compute: Callable[[MicroBatch], Any], micro_batches: MicroBatches, shapes: Any, shapes_of_kept: Any
) -> tuple[Any, list[RepeatedGroup]]:
    """`accumulate` with tensors that are kept of each micro-batch, for a second pass over them; in a graph that can loop.

    Args:
        compute: From a micro-batch to a nest of sums and a nest of tensors to keep, whose sizes may differ.
        micro_batches: The micro-batches.
        shapes: As for `accumulate`, of the sums.
        shapes_of_kept: The same of what is kept of a micro-batch without examples.

    Returns:
        The sums, and the micro-batches with what is kept of each.
    """
    flat_shapes, flat_kept = tf.nest.flatten(shapes), tf.nest.flatten(shapes_of_kept)
    groups = [Group(batches, micro_batches.number) for batches in by_spec(micro_batches.batches)]
    traced = _traced(compute, [*flat_shapes, *flat_kept])
    sums, kept = _in_a_loop(traced, groups, flat_shapes)
    likes = [tf.nest.pack_sequence_as(shapes_of_kept, like) for like, _ in kept]
    repeated = [RepeatedGroup(group, like, arrays) for group, like, (_, arrays) in zip(groups, likes, kept)]
    return tf.nest.pack_sequence_as(shapes, sums), repeated


def gather_again(compute: Callable[[Repeated], Any], groups: Sequence[RepeatedGroup], shapes: Any) -> Any:
    """The sums of the results of `compute` over the micro-batches of a second pass; arguments as for `accumulate`."""
    flat_shapes = tf.nest.flatten(shapes)
    sums, _ = _in_a_loop(_traced(compute, flat_shapes), groups, flat_shapes)
    return tf.nest.pack_sequence_as(shapes, sums)


def _traced(compute: Callable[[Any], Any], flat_shapes: Sequence[Any]) -> Any:
    """From a micro-batch to the flat results of `compute`, which are zeros of some shapes if it has no examples."""

    def compute_if_any(micro_batch: Any) -> list[Any]:
        has_examples, in_branch = batch_size(micro_batch.inputs) > 0, lambda result: result
        if in_xla():  # which compiles both branches for the sizes that there are, with results of equal sizes
            micro_batch, in_branch = tf.nest.map_structure(_with_a_row, micro_batch), _dense
        return computed_if(
            has_examples, lambda: [in_branch(each) for each in tf.nest.flatten(compute(micro_batch))], flat_shapes
        )

    if tf.executing_eagerly():
        return compute_if_any
    # One function body for all: a copy of it for each micro-batch would need more memory than is saved.
    return graph_function(compute_if_any, reduce_retracing=True, experimental_attributes={"_noinline": True})


def _with_a_row(tensor: Any) -> Any:
    """A tensor with a row of zeros if it has none: layers need not be able to compute without any."""
    if not tf.is_tensor(tensor) or not tensor.shape.rank:
        return tensor
    missing = tf.maximum(1 - tf.shape(tensor)[0], 0)
    padded = tf.pad(tensor, tf.pad([[0, missing]], [[0, tensor.shape.rank - 1], [0, 0]]))
    return tf.ensure_shape(padded, [None, *tensor.shape[1:]])


def _dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def _one_by_one(compute: Callable[[MicroBatch], list[Any]], micro_batches: Sequence[MicroBatch]) -> list[Any]:
    """The sums, by one call after another."""
    parts = list(micro_batches)
    parts = [part for part in parts if _has_examples(part)] or parts[:1]
    sums: Any = None
    for micro_batch in parts:
        with tf.control_dependencies(components(sums)):
            # The micro-batch's own tensors must wait as well: the ops of a function run as soon as their inputs exist.
            found = compute(_copied(micro_batch))
        sums = found if sums is None else plus(sums, found)
    return sums


class Group:
    """The micro-batches of batches with equal specs, which are indexed in the graph once they are stored.

    Args:
        batches: The batches.
        number: Micro-batches per batch.

    Attributes:
        spec: The specs of a micro-batch.
    """

    def __init__(self, batches: Sequence[MicroBatch], number: int) -> None:
        self._batches, self._number = batches, number
        self.spec = common_spec(batches) if number == 1 else open_batch_size(batches[0])
        self._stored: Any = None

    def store(self) -> None:
        """Copies the batches' tensors, after the control dependencies of here."""
        self._stored = Stored([_copied(batch) for batch in self._batches])

    def __len__(self) -> int:
        return len(self._batches) * self._number

    def __getitem__(self, place: Any) -> Any:
        number = self._number
        return self._stored[place] if number == 1 else part(self._stored[place // number], place % number, number)


class Repeated(NamedTuple):
    """The inputs of a micro-batch, and what the first pass has kept of it."""

    inputs: Any
    kept: Any


class RepeatedGroup:
    """The micro-batches of a group, which is stored, with what is kept of each.

    Args:
        group: The group.
        like: A nest of tensors like those that are kept of a micro-batch.
        arrays: The components of these, by place.
    """

    def __init__(self, group: Group, like: Any, arrays: Sequence[tf.TensorArray]) -> None:
        self._group, self._like, self._arrays = group, like, arrays
        self.spec = Repeated(group.spec.inputs, common_spec([like]))

    def store(self) -> None:
        """Nothing: everything is stored already."""

    def __len__(self) -> int:
        return len(self._group)

    def __getitem__(self, place: Any) -> Repeated:
        return Repeated(self._group[place].inputs, read(self._arrays, place, self._like))


def _in_a_loop(compute: Any, groups: Sequence[Any], shapes: Sequence[Any]) -> tuple[list[Any], Any]:
    """The sums, by loops over groups of micro-batches: the graph holds one micro-batch of each.

    Returns:
        The sums, and for each group what `compute` returns after them: the tensors of its trace, and arrays by place.
    """
    sums: list[Any] = [None] * len(shapes)
    kept = []
    for group in groups:
        results = compute.get_concrete_function(group.spec).structured_outputs
        # In a loop, sums must be from the start what they become: dense, sparse or None, and of the widest dtype.
        sums = plus(sums, [zeros_like(result, shape) for result, shape in zip(results, shapes)])
        with tf.control_dependencies(components(sums)):
            group.store()
            like = results[len(shapes) :]
            arrays = [empty(tensor.dtype, len(group)) for tensor in components(like)]
            sums, arrays = _plus_all(compute, group, sums, arrays)
        kept.append((like, arrays))
    return sums, kept


def _plus_all(
    compute: Any, group: Any, sums: list[Any], arrays: list[tf.TensorArray]
) -> tuple[list[Any], list[tf.TensorArray]]:
    """The sums with the results of the micro-batches of a group, and arrays of what these keep."""

    def add(place: tf.Tensor, present: list[Any], arrays: list[tf.TensorArray]) -> tuple[Any, ...]:
        results = compute(group[place])
        total = plus(with_none(present, like=sums), results[: len(sums)])
        kept = components(results[len(sums) :])
        written = [array.write(place, tensor) for array, tensor in zip(arrays, kept)]
        return place + 1, [each for each in total if each is not None], written

    present = [each for each in sums if each is not None]
    _, present, arrays = tf.while_loop(
        lambda place, *_: place < len(group),
        add,
        (tf.constant(0), present, arrays),
        shape_invariants=(tf.TensorShape([]), [_open(each) for each in present], [tf.TensorShape([])] * len(arrays)),
        parallel_iterations=1,
        maximum_iterations=len(group),
    )
    return with_none(present, like=sums), arrays


def _open(gradient: Any) -> Any:
    """The shapes that a sum has in a loop, where sparse gradients gain rows."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient.shape
    return tf.IndexedSlicesSpec(gradient.shape, gradient.dtype, gradient.indices.dtype, gradient.dense_shape.dtype)
