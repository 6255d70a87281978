"""What users pass becomes `Data`: arrays of all examples, and iterables of batches, checked and brought to one structure.

Everything that Keras accepts as an array becomes a NumPy array or a tensor. A head that has no targets in a batch gets
placeholders with a sample weight of 0.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._data.batch import Batch, by_head, is_absent, merged_spec, open_batch_size, unmasked, unpack
from multihead._data.data import Data, check_not_empty, num_examples
from multihead._ground.digits import Digits
from multihead._ground.keras import KERAS_3, is_tensor
from multihead._ground.types import Dataset, Nested, Tensor
from multihead._ground.validation import described, is_number, quoted


def as_arrays(argument: str, value: object) -> Nested:
    """A structure of arrays: lists of numbers, data frames and sparse matrices too; lists of arrays become tuples."""
    if isinstance(value, Mapping):
        return {key: as_arrays(f"{argument}[{key!r}]", part) for key, part in value.items()}
    if isinstance(value, (list, tuple)) and not _is_list_of_numbers(value):
        parts = [as_arrays(f"{argument}[{place}]", part) for place, part in enumerate(value)]
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
    if hasattr(value, "iloc"):
        value = _of_pandas(value)
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
    is_text = value.dtype == object and value.size and all(isinstance(element, (str, bytes)) for element in value.flat)
    if is_text or value.dtype.kind in "SU":
        return tf.convert_to_tensor(value, tf.string)
    if value.dtype == object:
        types = sorted({type(element).__name__ for element in value.flat})
        raise TypeError(
            f"`{argument}` must be numbers of one dtype, or strings. Received: a {received} of objects of type "
            f"{quoted(types)}. Convert it, for example with `.astype('float32')`; NaN marks a missing label."
        )
    if value.dtype.kind in "mMV":
        raise TypeError(
            f"`{argument}` must be numbers, or strings. Received: a {received} of dtype {value.dtype}. Convert it: of dates "
            "and times, take the days or seconds since one of them, as numbers; of a structured array, its fields as a dict."
        )
    is_floating = np.issubdtype(value.dtype, np.floating)  # then it gets Keras's dtype, in which Keras passes it on
    with np.errstate(over="ignore"):
        return value.astype(keras.backend.floatx(), copy=False) if is_floating else value


def _of_pandas(frame: Any) -> np.ndarray:
    """The values of a data frame or a series of pandas; where numbers or booleans are missing, in any form, they are NaN."""
    values: np.ndarray = frame.to_numpy()
    if values.dtype != object:
        return values
    missing = frame.isna().to_numpy()
    present = values[~missing]
    if not present.size or not all(isinstance(element, (bool, int, float, np.bool_, np.number)) for element in present):
        return values
    return np.where(missing, np.nan, values).astype("float64") if missing.any() else np.array(values.tolist())


def as_targets(argument: str, value: object, *, is_batch: bool = False) -> Nested:
    """Targets as an array, of which the numbers must differ as they did before they were rounded to Keras's precision.

    One batch cannot tell whether they do: its targets stay as they are, a tensor of float64, if they may not.
    """
    array = as_arrays(argument, value)
    is_rounded = KERAS_3 and not is_batch and getattr(array, "dtype", None) == "float64"  # as all that is no batch is there
    if is_rounded or isinstance(array, np.ndarray):
        digits, given = Digits(argument), _in_numpy(value)
        digits.add(given)
        if digits.problem and is_batch:
            return tf.constant(np.where(np.isnan(array), np.nan, given))
        digits.check()
    return array


def _in_numpy(value: Any) -> np.ndarray:
    return _of_pandas(value) if hasattr(value, "iloc") else np.asarray(value)


def read_arrays(x: Dataset, y: Nested, sample_weight: Nested, head_names: Sequence[str], *, is_batch: bool = False) -> Data:
    """Arrays of all examples, or of one batch; targets must keep their differences in Keras's precision."""
    if x is None:
        raise ValueError("`x` must be given. Received: x=None. Pass the inputs, or a dataset of batches.")
    if y is None:
        raise ValueError(
            "`y` must be given if `x` are arrays. Received: y=None with x of type "
            f"{type(x).__name__}. Pass the targets as a dict by head name; the heads are {quoted(head_names)}."
        )
    inputs = as_arrays("x", x)
    targets = _named_arrays("y", "targets", y, head_names, is_batch=is_batch)
    weights = {}
    if sample_weight is not None:
        weights = _named_arrays("sample_weight", "sample_weights", sample_weight, head_names)
        superfluous = [name for name in weights if name not in targets]
        if superfluous:
            raise ValueError(
                f"`sample_weight` must name heads that have targets: {quoted(superfluous)} has none. "
                f"Received: weights for {quoted(weights)} and targets for {quoted(targets)}. Leave them out."
            )
    parts = (("y", targets), ("sample_weight", weights))
    paths = {f"{argument}[{name!r}]": value for argument, values in parts for name, value in values.items()}
    _check_lengths({"x": inputs, **paths})
    if weights:
        number = num_examples(inputs)
        # Keras takes weights for every head, or for none.
        weights = {name: weights.get(name, np.ones([number], keras.backend.floatx())) for name in targets}
    return Data(inputs, targets, weights or None, open_batch_size(Batch(inputs, targets, weights)))


def _named_arrays(
    argument: str, name: str, values: Any, head_names: Sequence[str], *, is_batch: bool = False
) -> dict[str, Tensor]:
    """One array per head, from a dict, a data frame with the heads as columns, a series, or a single head's array."""
    if hasattr(values, "iloc"):
        if values.ndim == 2 and set(values.columns) & set(head_names):
            values = {column: values[column] for column in values.columns}
        elif values.ndim == 1 and values.name in head_names:
            values = {values.name: values}
    arrays = {}
    for head, value in by_head(name, values, head_names).items():
        path = f"{argument}[{head!r}]"
        array = as_targets(path, value, is_batch=is_batch) if name == "targets" else as_arrays(path, value)
        if isinstance(array, (tuple, dict)):
            raise TypeError(
                f"`{argument}[{head!r}]` must be one array. Received: a {type(value).__name__} of {len(array)}. Add a head "
                "per array, or stack them."
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
                        f"`{name}` must have one row per example. Received: a single value. Pass an array of examples; "
                        "repeat what is the same for all: `np.full(number_of_examples, value)`."
                    )
                lengths.setdefault(int(leaf.shape[0]), name)
    if len(lengths) > 1:
        received = ", ".join(f"{length} in `{name}`" for length, name in lengths.items())
        raise ValueError(
            "`x`, `y` and `sample_weight` must have one row per example. "
            f"Received: rows {received}. Pass arrays of the same length."
        )


# How many batches of a generator are looked at, at most, to find a batch with targets for every head.
_LOOKED_AT = 64

_ONE_BY_ONE = (
    "Convert them where they are made, or loop over the batches with `train_on_batch` (`test_on_batch`), which takes them "
    "as they are."
)


def check_batched(nest: Nested, received: str, argument: str = "`x`") -> None:
    """Checks that all arrays, tensors or specs in a nest can have an axis of examples in common."""
    shapes = [tf.TensorShape(leaf.shape) for leaf in tf.nest.flatten(nest) if not is_absent(leaf)]
    shapes = [shape for shape in shapes if shape.rank is not None]
    sizes = {shape[0] for shape in shapes if shape.rank} - {None}
    if any(not shape.rank for shape in shapes) or len(sizes) > 1:
        listed, remedy = ", ".join(dict.fromkeys(map(str, shapes))), ""
        if any(not shape.rank for shape in shapes) and any(shape.rank for shape in shapes):
            remedy = " In batches, repeat a scalar per example: `tf.fill(tf.shape(other_tensor)[:1], scalar)`."
        raise ValueError(
            f"{argument} must yield batches: tensors whose first axis is that of the examples. "
            f"Received: {received} tensors of shapes {listed}. For a dataset of single examples, call `.batch(32)` on it."
            f"{remedy}"
        )


class _BatchNormalizer:
    """Brings batches to one structure, `specs`: a head without targets gets placeholders with a sample weight of 0.

    The structure is that of the first batches, which are appended to `read`: two at least, and until every head has had
    targets.
    """

    def __init__(self, x: Dataset, batches: Iterable[Nested], head_names: Sequence[str], read: list[Nested]) -> None:
        self._head_names, self._source = list(head_names), type(x).__name__
        self._inputs: Nested = None
        self._digits = {name: Digits(f"targets[{name!r}]") for name in head_names}
        specs: list[Batch] = []
        for batch in itertools.islice(batches, _LOOKED_AT):
            read.append(batch)
            specs.append(open_batch_size(self._read(batch)))
            if len(specs) > 1 and {name for spec in specs for name in spec.targets} >= set(head_names):
                break
        check_not_empty(x, len(specs))
        self._check_digits()
        targets = self._merged_by_head([spec.targets for spec in specs])
        weights = self._merged_by_head([spec.sample_weights for spec in specs])
        no_weights = tf.TensorSpec([None], keras.backend.floatx())
        weights = {name: weights.get(name, no_weights) for name in targets}
        inputs = [spec.inputs for spec in specs]
        self.specs = Batch(tf.nest.map_structure(self._merged, *inputs), targets, weights)

    def _merged_by_head(self, parts: Sequence[Mapping[str, Nested]]) -> dict[str, Nested]:
        """By head, the spec that fits all batches that have the head."""
        by_head = {name: [part[name] for part in parts if name in part] for name in self._head_names}
        return {name: self._merged(*specs) for name, specs in by_head.items() if specs}

    def _read(self, batch: Nested) -> Batch:
        """The arrays of a batch, whose inputs have the structure of those of the first batch."""
        given = unpack(batch, self._head_names)
        named = Batch(*map(as_arrays, Batch._fields, given))
        for name, array in named.targets.items():
            if isinstance(array, np.ndarray):
                self._digits[name].add(_in_numpy(given.targets[name]))
        check_batched(tuple(named), f"a {self._source} of")
        inputs = open_batch_size(named.inputs)
        self._inputs = inputs if self._inputs is None else self._inputs
        try:
            tf.nest.assert_same_structure(self._inputs, inputs)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"The batches of a {self._source} must have inputs of one structure. Received: {described(self._inputs)} "
                f"and {described(inputs)}. {_ONE_BY_ONE}"
            ) from error
        return named

    def _check_digits(self) -> None:
        for digits in self._digits.values():
            digits.check()

    def _merged(self, first: Nested, *others: Nested) -> Nested:
        """The spec that fits all: sizes that differ are open."""
        for other in others:
            if type(other) is not type(first) or other.dtype != first.dtype or other.shape.rank != first.shape.rank:
                one, two = (f"{spec.dtype.name} of shape {spec.shape}" for spec in (first, other))
                raise ValueError(
                    f"The batches of a {self._source} must have the same dtypes and numbers of axes. "
                    f"Received: {one} and {two}. {_ONE_BY_ONE}"
                )
        return merged_spec(first, *others)

    def __call__(self, batch: Nested) -> tuple[Nested, dict[str, Tensor], dict[str, Tensor]]:
        inputs, targets, weights = self._read(batch)
        self._check_digits()
        late = [name for name in targets if name not in self.specs.targets]
        if late:
            raise ValueError(
                f"A {self._source} must have targets for {quoted(late)} in one of its first {_LOOKED_AT} batches, since a "
                f"later one has. Received: targets for {quoted(self.specs.targets)} there. Bring such a batch to the front."
            )
        number = num_examples(inputs)
        for name, spec in self.specs.targets.items():
            shape = [number, *[1] * (self.specs.sample_weights[name].shape.rank - 1)]
            if name not in targets:
                targets[name] = np.zeros([number, *(size or 1 for size in spec.shape[1:])], spec.dtype.as_numpy_dtype)
                weights[name] = np.zeros(shape, keras.backend.floatx())
            elif name not in weights:
                weights[name] = np.ones(shape, keras.backend.floatx())
        names = self.specs.targets
        return inputs, {name: targets[name] for name in names}, {name: weights[name] for name in names}


def read_iterable(x: Iterable[Nested], head_names: Sequence[str]) -> Data:
    """A generator, which yields its batches once, or an iterable for several passes."""
    batches, read = iter(x), list[Nested]()
    complete = _BatchNormalizer(x, batches, head_names, read)
    first = complete(read[0])
    if batches is x:
        ahead = (read.pop(0) for _ in range(len(read)))  # none of them is kept
        remaining = (complete(batch) for batch in itertools.chain(ahead, batches))
        return Data(remaining, specs=complete.specs, batches=lambda shuffle: remaining, first=first)
    read.clear()

    def again(shuffle: bool | str = False) -> Iterator[Nested]:
        return (complete(batch) for batch in x)

    # Keras accepts data for several passes only as a dataset.
    dataset = tf.data.Dataset.from_generator(again, output_signature=tuple(complete.specs))
    return Data(dataset, specs=complete.specs, batches=again, first=first)


class _CompletedSequence(keras.utils.Sequence):
    """A `PyDataset` (Keras 2: `Sequence`) around another one, with completed batches."""

    def __init__(self, inner: Dataset, complete: _BatchNormalizer) -> None:
        names = ("workers", "use_multiprocessing", "max_queue_size")
        super().__init__(**{name: getattr(inner, name) for name in names if hasattr(keras.utils.Sequence, name)})
        self._inner = inner
        self._complete = complete

    @property
    def num_batches(self) -> int | None:
        return self._inner.num_batches if hasattr(self._inner, "num_batches") else len(self._inner)

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> Nested:
        return self._complete(self._inner[index])

    def on_epoch_begin(self) -> None:
        if hasattr(self._inner, "on_epoch_begin"):
            self._inner.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._inner.on_epoch_end()

    def batches(self, shuffle: bool | str) -> Iterator[Nested]:
        self.on_epoch_begin()
        length = self.num_batches
        order: Iterable[int] = itertools.count() if length is None else range(length)
        order = random.sample(order, len(order)) if shuffle and isinstance(order, range) else order
        yield from (self[i] for i in order)
        self.on_epoch_end()


def read_sequence(x: Dataset, head_names: Sequence[str]) -> Data:
    """A `PyDataset` (Keras 2: `Sequence`), whose length may be unknown."""
    length = x.num_batches if hasattr(x, "num_batches") else len(x)
    indices: Iterable[int] = itertools.count() if length is None else range(length)
    read = list[Nested]()
    complete = _BatchNormalizer(x, (x[i] for i in indices), head_names, read)
    made = _CompletedSequence(x, complete)
    return Data(made, specs=complete.specs, batches=made.batches, length=length, first=complete(read[0]))
