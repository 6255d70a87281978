"""The same computation for one batch after another, as a loop: the graph holds it once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import tensorflow as tf

from multihead._ground.calls import graph_function
from multihead._ground.tensors import in_xla, with_none
from multihead._update.batch import merged_spec, open_batch_size


def can_loop() -> bool:
    """Whether there is a graph to loop in, and one that takes parts of different sizes, which XLA does not."""
    return not tf.executing_eagerly() and not in_xla()


def by_spec(nests: Sequence[Any]) -> list[list[Any]]:
    """Consecutive nests of tensors in groups that differ in nothing but the number of examples."""
    return [list(group) for _, group in groupby(nests, key=open_batch_size)]


def common_spec(nests: Sequence[Any]) -> Any:
    """The specs of nests that differ in nothing but the number of examples, which is open unless it is known to be equal."""
    return tf.nest.map_structure(lambda *tensors: merged_spec(*map(_spec, tensors)), *nests)


def _spec(tensor: Any) -> Any:
    return None if tensor is None else tf.type_spec_from_value(tensor)


class Stored:
    """Nests of tensors that differ in nothing but the number of examples, as a sequence that is indexed in the graph.

    Args:
        nests: The nests, of dense, ragged or sparse tensors and None.
    """

    def __init__(self, nests: Sequence[Any]) -> None:
        self._spec = common_spec(nests)
        self._arrays = [_filled(tensors) for tensors in zip(*(components(nest) for nest in nests))]

    def __getitem__(self, place: tf.Tensor) -> Any:
        return read(self._arrays, place, self._spec)


def each(compute: Callable[[Any], Any], nests: Sequence[Any]) -> list[Any]:
    """`compute` of each nest, in a loop where the graph allows it.

    Args:
        compute: From a nest of tensors to a nest of tensors and None; where it is None depends on the specs only.
        nests: The nests.
    """
    if len(nests) == 1 or not can_loop():
        return [compute(nest) for nest in nests]
    in_graph = graph_function(compute)
    return [result for group in by_spec(nests) for result in _in_a_loop(in_graph, group)]


def _in_a_loop(compute: Any, nests: Sequence[Any]) -> list[Any]:
    like = compute.get_concrete_function(common_spec(nests)).structured_outputs
    stored, number = Stored(nests), len(nests)

    def step(place: tf.Tensor, results: list[tf.TensorArray]) -> tuple[tf.Tensor, list[tf.TensorArray]]:
        found = components(compute(stored[place]))
        return place + 1, [array.write(place, tensor) for array, tensor in zip(results, found)]

    start = tf.constant(0), [empty(tensor.dtype, number) for tensor in components(like)]
    _, results = tf.while_loop(lambda place, _: place < number, step, start, maximum_iterations=number)
    return [read(results, place, like) for place in range(number)]


def components(nest: Any) -> list[Any]:
    """The dense tensors, or specs, that a nest consists of, without None."""
    return [tensor for tensor in tf.nest.flatten(nest, expand_composites=True) if tensor is not None]


def read(arrays: Sequence[tf.TensorArray], place: Any, like: Any) -> Any:
    """A nest with the structure and the shapes of another, of tensors or specs, from arrays of its components."""
    found = [array.read(place) for array in arrays]
    for tensor, other in zip(found, components(like)):
        tensor.set_shape(other.shape)
    flat = with_none(found, like=tf.nest.flatten(like, expand_composites=True))
    return tf.nest.pack_sequence_as(like, flat, expand_composites=True)


def _filled(tensors: Sequence[tf.Tensor]) -> tf.TensorArray:
    array = empty(tensors[0].dtype, len(tensors))
    for place, tensor in enumerate(tensors):
        array = array.write(place, tensor)
    return array


def empty(dtype: tf.DType, size: int) -> tf.TensorArray:
    return tf.TensorArray(dtype, size, infer_shape=False, clear_after_read=False)
