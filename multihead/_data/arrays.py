"""Arrays of all examples: everything that Keras accepts as an array becomes a NumPy array or a tensor, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._data.batch import Batch, by_head, open_batch_size, unmasked
from multihead._data.data import Data, num_examples
from multihead._ground.keras import is_tensor
from multihead._ground.types import Dataset, Nested, Tensor
from multihead._ground.validation import is_number, quoted


def as_arrays(argument: str, value: object) -> Nested:
    """A structure of arrays: lists of numbers, data frames and sparse matrices too; lists of arrays become tuples."""
    if isinstance(value, Mapping):
        return {key: as_arrays(f"{argument}[{key!r}]", each) for key, each in value.items()}
    if isinstance(value, (list, tuple)) and not _is_list_of_numbers(value):
        parts = [as_arrays(f"{argument}[{place}]", each) for place, each in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return _as_array(argument, value)


def _is_list_of_numbers(value: object) -> bool:
    """Whether this is a list of numbers or strings, or a list of such lists: one array, and no list of arrays."""
    if isinstance(value, (list, tuple)):
        return len(value) > 0 and all(map(_is_list_of_numbers, value))
    return isinstance(value, (bool, float, int, str, bytes, np.generic))


def _as_array(argument: str, value: Any) -> Nested:
    if value is None or is_tensor(value):
        return value
    value, received = unmasked(argument, value), type(value).__name__
    if hasattr(value, "tocoo"):  # a sparse matrix of SciPy
        matrix = value.tocoo()
        indices = np.stack([matrix.row, matrix.col], axis=1).astype("int64")
        return tf.sparse.reorder(tf.SparseTensor(indices, _as_array(argument, matrix.data), matrix.shape))
    if hasattr(value, "iloc"):  # a data frame or a series of pandas
        value = value.to_numpy()
    elif isinstance(getattr(value, "dtype", None), np.dtype) and not isinstance(value, np.ndarray):
        return value  # another array type, possibly larger than the memory
    elif not isinstance(value, np.ndarray):
        if not (hasattr(value, "__array__") or isinstance(value, (list, tuple)) or is_number(value)):
            raise TypeError(
                f"`{argument}` must be an array, a tensor, a data frame or a list of numbers. Received: a {received}. "
                "Convert it with `numpy.asarray`, or pass a `tf.data.Dataset`, a generator or a `PyDataset` as `x`."
            )
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise TypeError(
                f"`{argument}` must have rows of one length. Received: a {received} of lists of different lengths. Pad "
                "them to one length, or pass inputs as a `tf.RaggedTensor`."
            ) from error
    is_text = value.dtype == object and value.size and all(isinstance(each, (str, bytes)) for each in value.flat)
    if is_text or value.dtype.kind in "SU":
        return tf.convert_to_tensor(value, tf.string)
    if value.dtype == object:
        types = sorted({type(each).__name__ for each in value.flat})
        raise TypeError(
            f"`{argument}` must be numbers of one dtype, or strings. Received: a {received} of objects of type "
            f"{quoted(types)}. Convert it, for example with `.astype('float32')`; NaN marks a missing label."
        )
    is_floating = np.issubdtype(value.dtype, np.floating)  # then it gets Keras's dtype, in which Keras passes it on
    return value.astype(keras.backend.floatx(), copy=False) if is_floating else value


def read_arrays(x: Dataset, y: Nested, sample_weight: Nested, head_names: Sequence[str]) -> Data:
    if x is None:
        raise ValueError("`x` must be given. Received: x=None. Pass the inputs, or a dataset of batches.")
    if y is None:
        raise ValueError(
            "`y` must be given if `x` are arrays. Received: y=None with x of type "
            f"{type(x).__name__}. Pass the targets as a dict by head name; the heads are {quoted(head_names)}."
        )
    inputs = as_arrays("x", x)
    targets = _named_arrays("y", "targets", y, head_names)
    weights = {}
    if sample_weight is not None:
        weights = _named_arrays("sample_weight", "sample_weights", sample_weight, head_names)
        superfluous = [name for name in weights if name not in targets]
        if superfluous:
            raise ValueError(
                f"`sample_weight` must name heads that have targets: {quoted(superfluous)} has none. "
                f"Received: weights for {quoted(weights)} and targets for {quoted(targets)}. Leave them out."
            )
    given = (("y", targets), ("sample_weight", weights))
    paths = {f"{argument}[{name!r}]": value for argument, values in given for name, value in values.items()}
    _check_lengths({"x": inputs, **paths})
    if weights:
        number = num_examples(inputs)
        # Keras takes weights for every head, or for none.
        weights = {name: weights.get(name, np.ones([number], keras.backend.floatx())) for name in targets}
    return Data(inputs, targets, weights or None, open_batch_size(Batch(inputs, targets, weights)))


def _named_arrays(argument: str, name: str, values: Any, head_names: Sequence[str]) -> dict[str, Tensor]:
    """One array per head, from a dict, a data frame with the heads as columns, a series, or a single head's array."""
    if hasattr(values, "iloc"):
        if values.ndim == 2 and set(values.columns) & set(head_names):
            values = {column: values[column] for column in values.columns}
        elif values.ndim == 1 and values.name in head_names:
            values = {values.name: values}
    arrays = {}
    for head, value in by_head(name, values, head_names).items():
        array = as_arrays(f"{argument}[{head!r}]", value)
        if isinstance(array, (tuple, dict)):
            raise TypeError(
                f"`{argument}[{head!r}]` must be one array. Received: a {type(value).__name__} of {len(array)}. Add a head "
                "for each of them, or stack them."
            )
        arrays[head] = array
    return arrays


def _check_lengths(named: Mapping[str, Nested]) -> None:
    """Checks that all arrays have as many rows as the first of `x`."""
    lengths: dict[int, str] = {}
    for name, nest in named.items():
        for leaf in tf.nest.flatten(nest):
            if leaf is not None:
                if not leaf.shape.rank if hasattr(leaf.shape, "rank") else not leaf.shape:
                    raise ValueError(
                        f"`{name}` must have one row per example. Received: a single value. Pass an array of examples."
                    )
                lengths.setdefault(int(leaf.shape[0]), name)
    if len(lengths) > 1:
        received = ", ".join(f"{length} in `{name}`" for length, name in lengths.items())
        raise ValueError(
            "`x`, `y` and `sample_weight` must have one row for each example. "
            f"Received: rows {received}. Pass arrays of the same length."
        )
