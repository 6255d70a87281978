"""Batches: `(inputs, targets)` or `(inputs, targets, sample_weights)`, the last two keyed by head name."""

from __future__ import annotations

import functools
import itertools
import numbers
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from multihead._ground.tensors import in_xla
from multihead._ground.types import Config, Nested, Shape, Tensor
from multihead._ground.validation import check_dense, check_head_names, quoted, stop_unless


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


def check_rows(batch: Batch, num_micro_batches: int = 1) -> Batch:
    """A batch whose targets and weights have one row per example, and its inputs, too, if micro-batches split them.

    A `ValueError` if they are known to have others. Of micro-batches, what only a graph can know is compared there.
    """
    splits, checks = num_micro_batches > 1, list[tf.Tensor]()
    inputs, *labels = (_named_leaves(name, part) for name, part in batch._asdict().items())
    rows_known = {name: 0 if leaf.shape.rank == 0 else leaf.shape[0] for name, leaf in itertools.chain(inputs, *labels)}
    first, example = next((named for named in inputs if rows_known[named[0]]), inputs[0] if inputs else ("inputs", None))
    for name, leaf in itertools.chain(inputs if splits else [], *labels):
        explain = functools.partial(_other_rows, name, first, num_micro_batches)
        sizes = rows_known[name], rows_known.get(first)
        if None not in sizes:
            if sizes[0] != sizes[1]:
                raise ValueError("".join(map(str, explain(*sizes))))
        elif splits and leaf is not example:
            sizes = batch_size(leaf), batch_size(example)
            if in_xla():  # which ignores assertions, but fails here
                checks.append(tf.reshape(tf.range(sizes[0]), sizes[1:]))
            checks += stop_unless(tf.equal(*sizes), functools.partial(explain, *sizes))
    with tf.control_dependencies(checks):
        return copied(batch) if checks else batch


def _other_rows(name: str, first: str, number: int, rows: Tensor, expected: Tensor) -> list[str | tf.Tensor]:
    rule, remedy = f"`{name}` must have one row per example", "Pass arrays of the same length."
    if number > 1:
        rule += f", since micro_batches={number} splits every input, target and weight by rows"
        remedy += " What belongs to all examples: repeat it per example, keep it in a layer, or pass micro_batches=1."
    return [f"{rule}. Received: ", rows, " for ", expected, f" in `{first}`. {remedy}"]


def _named_leaves(name: str, nest: Nested) -> list[tuple[str, Tensor]]:
    """The tensors of a nest, with what names them."""
    if isinstance(nest, (Mapping, tuple, list)):
        parts = nest.items() if isinstance(nest, Mapping) else enumerate(nest)
        return [leaf for key, part in parts for leaf in _named_leaves(f"{name}[{key!r}]", part)]
    return [(name, leaf) for leaf in tf.nest.flatten(nest) if leaf is not None]


def copied(nest: Nested) -> Nested:
    """A nest of tensors, copied under the control dependencies of here."""
    return tf.nest.map_structure(lambda tensor: None if tensor is None else tf.identity(tensor), nest)


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
    """A spec with all sizes open in which those of others differ; others of another kind or rank do not count."""
    for other in others:
        if type(other) is type(spec) and spec is not None and spec.shape.rank and spec.shape.rank == other.shape.rank:
            spec = _with_shape(spec, [size if size == seen else None for size, seen in zip(spec.shape, other.shape)])
    return spec


def widened(specs: Batch, others: Batch) -> Batch:
    """The specs of batches, with all sizes open in which those of others differ; what the others lack stays as it is."""

    def wide(specs: Nested, others: Nested) -> Nested:
        own, other = tf.nest.flatten(specs), tf.nest.flatten(others)
        return tf.nest.pack_sequence_as(specs, list(map(merged_spec, own, other))) if len(own) == len(other) else specs

    labels = [
        {name: wide(spec, other[name]) if name in other else spec for name, spec in own.items()}
        for own, other in zip(specs[1:], others[1:])
    ]
    return Batch(wide(specs.inputs, others.inputs), *labels)


_SPECS = {"spec": tf.TensorSpec, "ragged": tf.RaggedTensorSpec, "sparse": tf.SparseTensorSpec}


def encode_specs(specs: Nested) -> Config | None:
    """Converts specs to JSON data: tuples and lists are marked, a spec becomes its shape and dtype."""
    if isinstance(specs, Mapping):
        return {"dict": {key: encode_specs(value) for key, value in specs.items()}}
    if isinstance(specs, (tuple, list)):
        return {"tuple" if isinstance(specs, tuple) else "list": [encode_specs(value) for value in specs]}
    for kind in (kind for kind, spec_class in _SPECS.items() if isinstance(specs, spec_class)):
        more = [specs.ragged_rank, specs.row_splits_dtype.name] if kind == "ragged" else []
        return {kind: [specs.shape.as_list(), specs.dtype.name, *more]}
    return None


def decode_specs(encoded: Config | None) -> Nested:
    """The inverse of `encode_specs`."""
    if encoded is None:
        return None
    ((kind, value),) = encoded.items()
    if kind in _SPECS:
        return _SPECS[kind](*(tf.as_dtype(part) if isinstance(part, str) else part for part in value))
    if kind == "dict":
        return {key: decode_specs(inner) for key, inner in value.items()}
    return (tuple if kind == "tuple" else list)(decode_specs(inner) for inner in value)
