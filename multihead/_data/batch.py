"""Batches: `(inputs, targets)` or `(inputs, targets, sample_weights)`, the last two keyed by head name."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from multihead._ground.types import Config, Nested, Shape, Tensor
from multihead._ground.validation import check_dense, check_head_names, quoted


class Batch(NamedTuple):
    """A batch with its targets and sample weights by head name; heads without targets are absent."""

    inputs: Nested
    targets: dict[str, Tensor]
    sample_weights: dict[str, Tensor]


def unpack(data: Nested, head_names: Sequence[str]) -> Batch:
    """Splits a batch into its parts and checks their keys; a single head's targets and weights need not be in a dict."""
    parts = data if isinstance(data, (tuple, list)) else (data,)
    inputs, targets, sample_weights = (*parts, None, None)[:3]
    if len(parts) > 3 or is_absent(targets):
        received = f"{len(parts)} parts" if len(parts) > 3 else "a batch without targets"
        raise ValueError(
            f"A batch must be (inputs, targets) or (inputs, targets, sample_weights). Received: {received}. Pass several "
            f"inputs as one dict, and targets as a dict by head name; the heads are {quoted(head_names)}."
        )
    named = by_head("targets", targets, head_names)
    return Batch(inputs, named, {} if is_absent(sample_weights) else by_head("sample_weights", sample_weights, head_names))


def by_head(argument: str, values: Nested, head_names: Sequence[str]) -> dict[str, Tensor]:
    """Targets or sample weights (`argument` says which) by head name, without those that are None."""
    if not isinstance(values, Mapping):
        if len(head_names) != 1:
            is_spec = isinstance(values, tf.TypeSpec)  # which nobody passes
            received = f"one tensor of shape {values.shape}" if is_spec else f"a {type(values).__name__}"
            raise ValueError(
                f"`{argument}` must be a dict by head name if there are several heads. "
                f"Received: {received}; the heads are {quoted(head_names)}. "
                f"Pass {{{', '.join(f'{name!r}: ...' for name in head_names)}}}."
            )
        values = {head_names[0]: values}
    check_head_names(argument, values, head_names)
    are_targets = not argument.startswith("sample_weight")
    values = {name: unmasked(f"{argument}[{name!r}]", value, are_targets=are_targets) for name, value in values.items()}
    for name, value in values.items():
        if tf.is_tensor(value) or (isinstance(value, tf.TypeSpec) and not is_absent(value)):
            check_dense(f"`{argument}[{name!r}]`", value)
    return {name: value for name, value in values.items() if not is_absent(value)}


def unmasked(argument: str, value: Nested, *, are_targets: bool = False) -> Nested:
    """An array without a mask: masked targets, and those that are None in a list of numbers, become NaN.

    A `TypeError` if they cannot: NaN marks targets with fractions alone, and no inputs or weights.
    """
    if isinstance(value, np.ma.MaskedArray):
        if not np.ma.getmaskarray(value).any():
            return value.data
        if are_targets and np.issubdtype(value.dtype, np.floating):
            return value.filled(np.nan)
        what, remedy = "with masked values", "Pass `array.filled(0)`."
        if are_targets:
            what = f"of dtype {value.dtype}, which has no NaN to mark what is missing"
            remedy = "Pass `array.filled(-1)`, and `ignore_label=-1` to `add_head`."
        raise TypeError(f"`{argument}` must be an array without a mask. Received: a masked array {what}. {remedy}")
    leaves = _leaves(value) if are_targets and isinstance(value, (list, tuple)) else []
    if any(leaf is None for leaf in leaves) and all(
        leaf is None or isinstance(leaf, (numbers.Real, np.bool_)) for leaf in leaves
    ):
        try:
            return np.asarray(value, np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"`{argument}` must have rows of one length. Received: a {type(value).__name__} of lists of different "
                "lengths. Pad them to one length."
            ) from error
    return value


def _leaves(value: Nested) -> list[object]:
    """What nested lists hold."""
    return [leaf for part in value for leaf in _leaves(part)] if isinstance(value, (list, tuple)) else [value]


def is_absent(value: object) -> bool:
    """Whether this is None, or the spec of None."""
    return value is None or isinstance(value, type(tf.type_spec_from_value(None)))


def batch_size(nest: Nested) -> tf.Tensor:
    """The number of examples in a nest of tensors, dense, ragged or sparse, that share their first axis: an int32 scalar."""
    tensor = next(tensor for tensor in tf.nest.flatten(nest) if tensor is not None)
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.nrows(out_type=tf.int32)
    if isinstance(tensor, tf.SparseTensor):
        return tf.cast(tensor.dense_shape[0], tf.int32)
    return tf.shape(tensor)[0] if tensor.shape[0] is None else tf.constant(tensor.shape[0], tf.int32)


def check_rows(batch: Batch) -> None:
    """Raises a `ValueError` unless targets and weights have as many rows as the inputs, as far as shapes are known."""

    def known_rows(nest: Nested) -> list[int]:
        shapes = [leaf.shape for leaf in tf.nest.flatten(nest) if leaf is not None]
        return [int(shape[0]) for shape in shapes if shape.rank and shape[0] is not None]

    num_examples = known_rows(batch.inputs)[:1]
    for part, by_head in (("targets", batch.targets), ("sample_weights", batch.sample_weights)):
        for head, nest in by_head.items():
            wrong = [number for number in known_rows(nest) if [number] != num_examples]
            if wrong and num_examples:
                raise ValueError(
                    f"`{part}[{head!r}]` must have one row for each example. Received: {wrong[0]} for {num_examples[0]} in "
                    "the inputs. Pass arrays of the same length."
                )


def rows(nest: Nested, start: Tensor, end: Tensor) -> Nested:
    """The rows from `start` to `end` of every tensor in a nest: dense, ragged or sparse; None stays None."""

    def as_tensor(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, tf.SparseTensor):
            return None if tensor is None else tensor[start:end]
        inner = tensor.dense_shape[1:]
        first, last = tf.cast(start, tf.int64), tf.cast(end, tf.int64)
        begin = tf.concat([[first], tf.zeros_like(inner)], axis=0)
        part = tf.sparse.slice(tensor, begin, tf.concat([[last - first], inner], axis=0))
        return tf.SparseTensor(part.indices, part.values, tf.concat([[last - first], inner], axis=0))

    return tf.nest.map_structure(as_tensor, nest)


def as_tensors(nest: Nested) -> Nested:
    """Converts arrays and numbers in a nest to tensors; ragged and sparse tensors stay what they are."""
    return tf.nest.map_structure(
        lambda value: value if value is None or tf.is_tensor(value) else tf.convert_to_tensor(unmasked("x", value)), nest
    )


def open_batch_size(nest: Nested) -> Nested:
    """The specs of a nest of arrays, tensors or specs, with the first axis left open; None stays None."""

    def opened(value: Tensor) -> tf.TypeSpec | None:
        if is_absent(value):
            return None
        spec = tf.type_spec_from_value(value) if tf.is_tensor(value) else value
        if not isinstance(spec, tf.TypeSpec):
            spec = tf.TensorSpec(value.shape, tf.as_dtype(value.dtype))
        return _with_shape(spec, [None, *spec.shape[1:]] if spec.shape.rank else spec.shape)

    return tf.nest.map_structure(opened, nest)


def _with_shape(spec: tf.TypeSpec, shape: Shape) -> tf.TypeSpec:
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)


def merged_spec(spec: Nested, *others: Nested) -> Nested:
    """A spec with each size open in which those of others differ; others of another kind or rank do not count."""
    for other in others:
        if type(other) is type(spec) and spec is not None and spec.shape.rank and spec.shape.rank == other.shape.rank:
            spec = _with_shape(spec, [size if size == seen else None for size, seen in zip(spec.shape, other.shape)])
    return spec


def widened(specs: Batch, others: Batch) -> Batch:
    """The specs of batches, with each size open in which those of others differ; what the others lack stays as it is."""

    def wide(specs: Nested, others: Nested) -> Nested:
        own, other = tf.nest.flatten(specs), tf.nest.flatten(others)
        return tf.nest.pack_sequence_as(specs, list(map(merged_spec, own, other))) if len(own) == len(other) else specs

    labels = [
        {name: wide(spec, other[name]) if name in other else spec for name, spec in own.items()}
        for own, other in zip(specs[1:], others[1:])
    ]
    return Batch(wide(specs.inputs, others.inputs), *labels)


def sample_of(specs: Nested, num_rows: int = 2) -> Nested:
    """Some examples that fit specs: numbers with fractions are 1, others 0; sizes that are open are 1."""

    def made(spec: tf.TypeSpec | None) -> Tensor:
        if spec is None:
            return None
        shape = [num_rows, *(size or 1 for size in spec.shape[1:])]
        dense = tf.ones(shape, spec.dtype) if spec.dtype.is_floating else tf.zeros(shape, spec.dtype)
        if isinstance(spec, tf.RaggedTensorSpec):
            return tf.RaggedTensor.from_tensor(dense, ragged_rank=spec.ragged_rank, row_splits_dtype=spec.row_splits_dtype)
        return tf.sparse.from_dense(dense) if isinstance(spec, tf.SparseTensorSpec) else dense

    return tf.nest.map_structure(made, specs)


def encode_specs(specs: Nested) -> Config | None:
    """Converts specs to JSON data: tuples and lists are marked, a spec becomes its shape and dtype."""
    if isinstance(specs, tf.TensorSpec):
        return {"spec": [specs.shape.as_list(), specs.dtype.name]}
    if isinstance(specs, tf.RaggedTensorSpec):
        return {"ragged": [specs.shape.as_list(), specs.dtype.name, specs.ragged_rank, specs.row_splits_dtype.name]}
    if isinstance(specs, tf.SparseTensorSpec):
        return {"sparse": [specs.shape.as_list(), specs.dtype.name]}
    if isinstance(specs, Mapping):
        return {"dict": {key: encode_specs(value) for key, value in specs.items()}}
    if isinstance(specs, (tuple, list)):
        return {"tuple" if isinstance(specs, tuple) else "list": [encode_specs(value) for value in specs]}
    return None


def decode_specs(encoded: Config | None) -> Nested:
    """The inverse of `encode_specs`."""
    if encoded is None:
        return None
    ((kind, value),) = encoded.items()
    if kind == "spec":
        return tf.TensorSpec(value[0], value[1])
    if kind == "ragged":
        return tf.RaggedTensorSpec(value[0], tf.as_dtype(value[1]), value[2], tf.as_dtype(value[3]))
    if kind == "sparse":
        return tf.SparseTensorSpec(value[0], value[1])
    if kind == "dict":
        return {key: decode_specs(inner) for key, inner in value.items()}
    return (tuple if kind == "tuple" else list)(decode_specs(inner) for inner in value)
