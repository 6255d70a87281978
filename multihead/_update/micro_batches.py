"""Micro-batches: a batch split into parts that are processed one after another, in the memory of one part.

An element's loss is divided by the count of the whole update. The gradients of micro-batches therefore add up to those
of all examples in one batch, even if the micro-batches differ in size. In a graph, the micro-batches of a batch are a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._data.batch import batch_size, copied, open_batch_size, rows
from multihead._ground.calls import graph_function
from multihead._ground.tensors import added, computed_if, in_xla, with_none
from multihead._ground.types import Function, Gradient, Nested, Tensor
from multihead._update.labels import Labels


class MicroBatch(NamedTuple):
    """Some of a batch's examples, with the heads' labels (None for a head without targets in the batch)."""

    inputs: Nested
    labels: list[Labels | None]  # the labels of the heads that are trained
    measured: Sequence[Labels | None] = ()  # the labels of the heads that are only measured


class MicroBatches(Sequence[MicroBatch]):
    """The micro-batches of some batches, `number` per batch, of sizes that differ by one at most, made where used."""

    def __init__(self, batches: Sequence[MicroBatch], number: int) -> None:
        self.batches = list(batches)
        self.number = number

    def __len__(self) -> int:
        return len(self.batches) * self.number

    def __getitem__(self, place: Any) -> Any:
        if place >= len(self):
            raise IndexError(place)
        return _part(self.batches[place // self.number], place % self.number, self.number)


def _part(batch: MicroBatch, place: Tensor, number: int) -> Nested:
    if number == 1:
        return batch
    size = batch_size(batch.inputs)
    return rows(batch, size * place // number, size * (place + 1) // number)


def plus(first: Nested, second: Nested) -> Nested:
    """The sum of two nests of gradients and tensors; None counts as zero."""
    sums = [added(a, b) for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second))]
    return tf.nest.pack_sequence_as(first, sums)


def accumulate(
    compute: Callable[[MicroBatch], Nested], micro_batches: MicroBatches, shapes: Nested, kept: list[Nested] | None = None
) -> Nested:
    """Sums the results of `compute`, a nest, over micro-batches; each starts only after the previous one has been added.

    In a graph, they are calls of one function, so that the values of a micro-batch are released before the next one starts.
    Empty ones are skipped: layers such as batch normalization cannot handle them. `shapes` is a nest of the dense shapes of
    the results, None for those that are always None; it is not used for a single micro-batch.

    With `kept`, the results are pairs: a nest to add, and one that is appended to `kept` per micro-batch. The batches
    are then not split.
    """
    if len(micro_batches) == 1:
        sums = compute(micro_batches[0])
        if kept is not None:
            sums, own = sums
            kept.append(own)
        return sums
    flat_shapes, is_eager, is_dense = tf.nest.flatten(shapes), tf.executing_eagerly(), in_xla()
    number = len(flat_shapes) if kept is None else len(tf.nest.flatten(shapes[0]))

    def compute_if_any(micro_batch: Nested) -> list[Gradient]:
        has_examples = batch_size(micro_batch.inputs) > 0
        if is_dense:  # XLA compiles both branches for the actual sizes, with results of equal sizes
            micro_batch = tf.nest.map_structure(_with_a_row, micro_batch)

        def computed() -> list[Gradient]:
            part_sums = tf.nest.flatten(compute(micro_batch))
            return [
                tf.convert_to_tensor(part) if is_dense and isinstance(part, tf.IndexedSlices) else part for part in part_sums
            ]

        return computed_if(has_examples, computed, flat_shapes)

    # One function body for all: one copy of it per micro-batch would need more memory than is saved.
    options = {"reduce_retracing": True, "experimental_attributes": {"_noinline": True}}
    call: Nested = compute_if_any if is_eager else graph_function(compute_if_any, **options)
    places, in_loops = list(range(len(micro_batches))), not is_eager and not is_dense and micro_batches.number > 1
    if is_eager:
        places = [i for i in places if batch_size(micro_batches[i].inputs) > 0] or places[:1]
    sums = []
    for i in places[:: micro_batches.number] if in_loops else places:
        batch = micro_batches.batches[i // micro_batches.number]
        if in_loops:  # traced for parts of any size
            call.get_concrete_function(open_batch_size(batch))
        before = [total for total in tf.nest.flatten(sums, expand_composites=True) if total is not None]
        with tf.control_dependencies(before):
            # The micro-batch's own tensors must wait as well: the ops of a function run as soon as their inputs exist.
            part_sums = call(copied(micro_batches[i]))
        if in_loops:
            part_sums = _with_others(call, batch, micro_batches.number, part_sums)
        sums = plus(sums, part_sums[:number]) if sums else part_sums[:number]
        if kept is not None:
            kept.append(tf.nest.pack_sequence_as(shapes[1], part_sums[number:]))
    return tf.nest.pack_sequence_as(shapes if kept is None else shapes[0], sums)


def _with_others(call: Function, batch: MicroBatch, number: int, first: list[Gradient]) -> list[Gradient]:
    """The results of the first micro-batch of a batch, plus those of the others, in a loop."""

    def add(place: tf.Tensor, present: list[Gradient]) -> tuple[tf.Tensor, list[Gradient]]:
        part_sums = plus(with_none(present, like=first), call(_part(batch, place, number)))
        return place + 1, [part for part in part_sums if part is not None]

    present = [part for part in first if part is not None]
    shapes = [  # sparse gradients gain rows
        tf.IndexedSlicesSpec(part.shape, part.dtype, part.indices.dtype, part.dense_shape.dtype)
        if isinstance(part, tf.IndexedSlices)
        else part.shape
        for part in present
    ]
    options = {"parallel_iterations": 1, "maximum_iterations": number - 1}
    start, invariants = (tf.constant(1), present), (tf.TensorShape([]), shapes)
    _, present = tf.while_loop(lambda place, _: place < number, add, start, shape_invariants=invariants, **options)
    return with_none(present, like=first)


def _with_a_row(tensor: Tensor) -> Tensor:
    """A tensor with a row of zeros if it has none: layers need not be able to compute without any."""
    if not tf.is_tensor(tensor) or not tensor.shape.rank:
        return tensor
    missing = tf.maximum(1 - tf.shape(tensor)[0], 0)
    padded = tf.pad(tensor, tf.pad([[0, missing]], [[0, tensor.shape.rank - 1], [0, 0]]))
    return tf.ensure_shape(padded, [None, *tensor.shape[1:]])
