"""Micro-batches: a batch split into parts that are processed one after another, in the memory of one part.

Each element's loss is divided by the count of the whole update. The gradients of micro-batches therefore add up to those
of all examples in one batch, even if the micro-batches differ in size. In a graph, one batch after another is a loop, so
that the graph holds the computation once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._data.batch import batch_size, merged_spec, open_batch_size, rows
from multihead._ground.calls import graph_function
from multihead._ground.tensors import added, computed_if, in_xla, with_none, zeros_like
from multihead._ground.types import Function, Gradient, Nested, Tensor
from multihead._update.labels import Labels


class MicroBatch(NamedTuple):
    """Some of a batch's examples, with each head's labels (None for a head without targets in the batch)."""

    inputs: Nested
    labels: list[Labels | None]  # the labels of each head that is trained
    measured: Sequence[Labels | None] = ()  # the labels of each head that is only measured


class MicroBatches(Sequence[MicroBatch]):
    """The `number` micro-batches of each of some batches, of sizes that differ by one at most, made where they are used."""

    def __init__(self, batches: Sequence[MicroBatch], number: int) -> None:
        self.batches = list(batches)
        self.number = number

    def __len__(self) -> int:
        return len(self.batches) * self.number

    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, int) or not 0 <= place < len(self):
            raise IndexError(place)
        return _part(self.batches[place // self.number], place, self.number)

    def copied(self) -> MicroBatches:
        """The same, from copies of the batches' tensors, which come after the control dependencies of here."""
        return MicroBatches([_copied(batch) for batch in self.batches], self.number)


def _part(batch: MicroBatch, place: Tensor, number: int) -> Nested:
    """One of a number of parts of a batch, whose sizes differ by at most one."""
    if number == 1:
        return batch
    size, place = batch_size(batch.inputs), place % number
    return rows(batch, size * place // number, size * (place + 1) // number)


def _copied(nest: Nested) -> Nested:
    return tf.nest.map_structure(lambda tensor: None if tensor is None else tf.identity(tensor), nest)


def plus(first: Nested, second: Nested) -> Nested:
    """The sum of two nests of gradients and tensors; None counts as zero."""
    sums = [added(a, b) for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second))]
    return tf.nest.pack_sequence_as(first, sums)


def accumulate(compute: Callable[[MicroBatch], Nested], micro_batches: MicroBatches, shapes: Nested) -> Nested:
    """Sums the results of `compute`, a nest, over micro-batches; each starts only after the previous one has been added.

    It is traced once, as one function, so that the values of a micro-batch are released before the next one starts. Empty
    micro-batches are skipped: layers such as batch normalization cannot handle them. `shapes` is a nest of the dense shapes
    of the results, None for those that are always None; it is not used for a single micro-batch.
    """
    if len(micro_batches) == 1:
        return compute(micro_batches[0])
    flat_shapes = tf.nest.flatten(shapes)
    traced = _traced(compute, flat_shapes)
    sums = _in_a_loop(traced, micro_batches, flat_shapes) if can_loop() else _one_by_one(traced, micro_batches)
    return tf.nest.pack_sequence_as(shapes, sums)


def _traced(compute: Function, shapes: Sequence[tf.Tensor | None]) -> Nested:
    """From a micro-batch to the flat results of `compute`, which are zeros of some shapes if it has no examples."""

    def compute_if_any(micro_batch: Nested) -> list[Gradient]:
        has_examples, is_dense = batch_size(micro_batch.inputs) > 0, in_xla()
        if is_dense:  # XLA compiles both branches for the actual sizes, with results of equal sizes
            micro_batch = tf.nest.map_structure(_with_a_row, micro_batch)

        def computed() -> list[Gradient]:
            found = tf.nest.flatten(compute(micro_batch))
            return [
                tf.convert_to_tensor(each) if is_dense and isinstance(each, tf.IndexedSlices) else each for each in found
            ]

        return computed_if(has_examples, computed, shapes)

    if tf.executing_eagerly():
        return compute_if_any
    # One function body for all: a copy of it for each micro-batch would need more memory than is saved.
    return graph_function(compute_if_any, reduce_retracing=True, experimental_attributes={"_noinline": True})


def _with_a_row(tensor: Tensor) -> Tensor:
    """A tensor with a row of zeros if it has none: layers need not be able to compute without any."""
    if not tf.is_tensor(tensor) or not tensor.shape.rank:
        return tensor
    missing = tf.maximum(1 - tf.shape(tensor)[0], 0)
    padded = tf.pad(tensor, tf.pad([[0, missing]], [[0, tensor.shape.rank - 1], [0, 0]]))
    return tf.ensure_shape(padded, [None, *tensor.shape[1:]])


def _one_by_one(compute: Function, micro_batches: Sequence[MicroBatch]) -> list[Gradient]:
    """The sums, by one call after another; run eagerly, without the micro-batches that have no examples."""
    parts = list(micro_batches)
    if tf.executing_eagerly():
        parts = [part for part in parts if batch_size(part.inputs) > 0] or parts[:1]
    sums: list[Gradient] = []
    for micro_batch in parts:
        with tf.control_dependencies(_components(sums)):
            # The micro-batch's own tensors must wait as well: the ops of a function run as soon as their inputs exist.
            found = compute(_copied(micro_batch))
        sums = plus(sums, found) if sums else found
    return sums


def _in_a_loop(compute: Nested, micro_batches: MicroBatches, shapes: Sequence[tf.Tensor | None]) -> list[Gradient]:
    """The sums, by loops over batches that differ in nothing but their size: the graph holds one micro-batch of each."""
    sums: list[Gradient] = [None] * len(shapes)
    number = micro_batches.number
    for _, group in groupby(micro_batches.batches, key=open_batch_size):
        batches = list(group)
        spec = common_spec(batches) if number == 1 else open_batch_size(batches[0])
        results = compute.get_concrete_function(spec).structured_outputs
        # In a loop, sums must be from the start what they become: dense, sparse or None, and of the widest dtype.
        sums = plus(sums, [zeros_like(result, shape) for result, shape in zip(results, shapes)])
        with tf.control_dependencies(_components(sums)):
            sums = _plus_all(compute, _Stored([_copied(batch) for batch in batches]), number, sums)
    return sums


def _plus_all(compute: Function, batches: _Stored, number: int, sums: list[Gradient]) -> list[Gradient]:
    """The sums with the results of the micro-batches of some batches, `number` of each."""

    def add(place: tf.Tensor, present: list[Gradient]) -> tuple[tf.Tensor, list[Gradient]]:
        found = plus(with_none(present, like=sums), compute(_part(batches[place // number], place, number)))
        return place + 1, [each for each in found if each is not None]

    present = [each for each in sums if each is not None]
    shapes = [  # sparse gradients gain rows
        tf.IndexedSlicesSpec(each.shape, each.dtype, each.indices.dtype, each.dense_shape.dtype)
        if isinstance(each, tf.IndexedSlices)
        else each.shape
        for each in present
    ]
    _, present = tf.while_loop(
        lambda place, _: place < len(batches) * number,
        add,
        (tf.constant(0), present),
        shape_invariants=(tf.TensorShape([]), shapes),
        parallel_iterations=1,
        maximum_iterations=len(batches) * number,
    )
    return with_none(present, like=sums)


def can_loop() -> bool:
    """Whether there is a graph to loop in, and one that takes parts of different sizes, which XLA does not."""
    return not tf.executing_eagerly() and not in_xla()


def each(compute: Function, nests: Sequence[Nested]) -> list[Nested]:
    """`compute` of each nest; calls of one function where the graph allows it, so that the graph holds it once."""
    if len(nests) == 1 or not can_loop():
        return [compute(nest) for nest in nests]
    in_graph = graph_function(compute)
    return [in_graph(nest) for nest in nests]


def common_spec(nests: Sequence[Nested]) -> Nested:
    """The specs of nests that differ in nothing but the number of examples, which is open unless it is known to be equal."""
    specs = [
        tf.nest.map_structure(lambda each: each if each is None else tf.type_spec_from_value(each), nest) for nest in nests
    ]
    return tf.nest.map_structure(merged_spec, *specs)


class _Stored:
    """Nests of tensors that differ in nothing but the number of examples, as a sequence that is indexed in the graph."""

    def __init__(self, nests: Sequence[Nested]) -> None:
        self._spec, self._number, self._arrays = common_spec(nests), len(nests), []
        for tensors in zip(*(_components(nest) for nest in nests)):
            array = tf.TensorArray(tensors[0].dtype, len(tensors), infer_shape=False, clear_after_read=False)
            for place, tensor in enumerate(tensors):
                array = array.write(place, tensor)
            self._arrays.append(array)

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, place: tf.Tensor) -> Nested:
        found = [array.read(place) for array in self._arrays]
        for tensor, spec in zip(found, _components(self._spec)):
            tensor.set_shape(spec.shape)
        flat = with_none(found, like=tf.nest.flatten(self._spec, expand_composites=True))
        return tf.nest.pack_sequence_as(self._spec, flat, expand_composites=True)


def _components(nest: Nested) -> list[Tensor]:
    """The dense tensors, or specs, that a nest consists of, without None."""
    return [tensor for tensor in tf.nest.flatten(nest, expand_composites=True) if tensor is not None]
