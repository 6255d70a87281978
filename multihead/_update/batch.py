"""Batches: `(inputs, targets)` or `(inputs, targets, sample_weights)`, the last two keyed by head name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._keras import spec_of_one_replica
from multihead._validation import check_dense, check_head_names, quoted


class Batch(NamedTuple):
    """A batch with its targets and sample weights by head name; heads without targets are absent."""

    inputs: Any
    targets: dict[str, Any]
    sample_weights: dict[str, Any]


def unpack(data: Any, head_names: Sequence[str]) -> Batch:
    """Splits a batch into its parts and checks their keys against the heads.

    Args:
        data: `(inputs, targets)` or `(inputs, targets, sample_weights)`. With a single head, its targets and weights
            need not be in a dict.
        head_names: The registered heads.

    Raises:
        ValueError: There are no targets, or a key of the targets or weights is not the name of a head.
    """
    inputs, targets, sample_weights = (*data, None, None)[:3] if isinstance(data, (tuple, list)) else (data, None, None)
    if targets is None:
        raise ValueError(
            "A batch must be (inputs, targets) or (inputs, targets, sample_weights) for training and evaluation. "
            f"Received: a batch without targets. Pass targets as a dict by head name; the heads are {quoted(head_names)}."
        )
    named_targets = _by_head("targets", targets, head_names)
    named_weights = {} if sample_weights is None else _by_head("sample_weights", sample_weights, head_names)
    return Batch(inputs, named_targets, named_weights)


def _by_head(argument: str, values: Any, head_names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        if len(head_names) != 1:
            raise ValueError(
                f"`{argument}` must be a dict by head name if there are several heads. "
                f"Received: {type(values).__name__}; the heads are {quoted(head_names)}. "
                f"Pass {{{head_names[0]!r}: ...}}."
            )
        values = {head_names[0]: values}
    check_head_names(argument, values, head_names)
    given = {name: value for name, value in values.items() if value is not None}
    for name, value in given.items():
        check_dense(f"`{argument}[{name!r}]`", value)
    return given


def batch_size(nest: Any) -> tf.Tensor:
    """The number of examples in a nest of tensors with the same first axis, an int32 scalar."""
    return tf.shape(next(tensor for tensor in tf.nest.flatten(nest) if tensor is not None))[0]


def as_tensors(nest: Any) -> Any:
    """Converts the arrays and numbers in a nest to tensors; None stays None."""
    convert = lambda leaf: leaf if leaf is None or tf.is_tensor(leaf) else tf.convert_to_tensor(leaf)  # noqa: E731
    return tf.nest.map_structure(convert, nest)


def specs_of(x: Any, y: Any, sample_weight: Any) -> Any | None:
    """The specs of the batches that `fit(x, y, sample_weight)` will see; None if they are known only from the data.

    Batch sizes are None, and so are other sizes that vary.
    """
    if y is None and hasattr(x, "element_spec"):
        return tf.nest.map_structure(spec_of_one_replica, x.element_spec)
    if y is None:
        return None
    return tf.nest.map_structure(_array_spec, (x, y) if sample_weight is None else (x, y, sample_weight))


def _array_spec(array: Any) -> tf.TensorSpec:
    tensor = array if hasattr(array, "dtype") and hasattr(array, "shape") else tf.convert_to_tensor(array)
    return tf.TensorSpec([None, *tensor.shape[1:]], tf.as_dtype(tensor.dtype))


def open_batch_size(nest: Any) -> Any:
    """The specs of a nest of tensors or specs, with None as the size of the first axis."""
    return tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]] if t.shape.rank else t.shape, t.dtype), nest)


def encode_specs(specs: Any) -> Any:
    """Converts specs to JSON data: tuples and lists are marked, a spec becomes its shape and dtype."""
    if isinstance(specs, tf.TensorSpec):
        return {"spec": [specs.shape.as_list(), specs.dtype.name]}
    if isinstance(specs, Mapping):
        return {"dict": {key: encode_specs(value) for key, value in specs.items()}}
    if isinstance(specs, (tuple, list)):
        return {"tuple" if isinstance(specs, tuple) else "list": [encode_specs(value) for value in specs]}
    return None


def decode_specs(encoded: Any) -> Any:
    """The inverse of `encode_specs`."""
    if encoded is None:
        return None
    ((kind, value),) = encoded.items()
    if kind == "spec":
        return tf.TensorSpec(value[0], value[1])
    if kind == "dict":
        return {key: decode_specs(inner) for key, inner in value.items()}
    return (tuple if kind == "tuple" else list)(decode_specs(inner) for inner in value)
