"""What yields batches: datasets are checked, batches of generators and of `PyDataset` brought to one structure.

A head that has no targets in a batch gets placeholders with a sample weight of 0.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._data.arrays import as_arrays
from multihead._data.data import Data, num_examples
from multihead._ground.keras import spec_of_one_replica
from multihead._ground.validation import quoted
from multihead._update.batch import Batch, is_absent, merged_spec, open_batch_size, unpack
from multihead.heads._reads import described

# How many batches of a generator are looked at, at most, to find a batch with targets for every head.
_LOOKED_AT = 64

_ONE_BY_ONE = (
    "Convert them where they are made, or loop over the batches with `train_on_batch` (`test_on_batch`), which takes each "
    "as it is."
)


def read_dataset(x: Any, head_names: Sequence[str]) -> Data:
    """A dataset of batches."""
    specs = tf.nest.map_structure(spec_of_one_replica, x.element_spec)
    batch = unpack(specs, head_names)
    _check_batched(specs, f"a {type(x).__name__} of")
    return Data(x, specs=open_batch_size(batch))


def _check_batched(specs: Any, received: str) -> None:
    """Checks that all tensors can have an axis of examples in common."""
    leaves = [leaf for leaf in tf.nest.flatten(specs) if not is_absent(leaf) and leaf.shape.rank is not None]
    sizes = {leaf.shape[0] for leaf in leaves if leaf.shape.rank} - {None}
    if any(not leaf.shape.rank for leaf in leaves) or len(sizes) > 1:
        shapes = ", ".join(dict.fromkeys(str(leaf.shape) for leaf in leaves))
        raise ValueError(
            "`x` must yield batches: tensors whose first axis is that of the examples. "
            f"Received: {received} tensors of shapes {shapes}. For a dataset of single examples, call `.batch(32)` on it."
        )


class _Completion:
    """Brings batches to one structure: a head without targets gets placeholders with a sample weight of 0.

    Args:
        first: Some batches, from the first on.
        head_names: The registered heads.
        source: Where they come from, for messages.

    Attributes:
        specs: The specs of a completed batch.
    """

    def __init__(self, first: Sequence[Any], head_names: Sequence[str], source: str) -> None:
        self._head_names = list(head_names)
        self._source = source
        read_ones = [self._read(batch) for batch in first]
        inputs = [open_batch_size(batch.inputs) for batch in read_ones]
        for other in inputs[1:]:
            self._check_inputs(inputs[0], other)
        targets = self._merged_by_head([batch.targets for batch in read_ones])
        weights = self._merged_by_head([batch.sample_weights for batch in read_ones])
        no_weights = tf.TensorSpec([None], keras.backend.floatx())
        self.specs = (
            tf.nest.map_structure(self._merged, *inputs),
            targets,
            {name: weights.get(name, no_weights) for name in targets},
        )

    def _read(self, batch: Any) -> Batch:
        read_one = unpack(batch, self._head_names)
        named = Batch(*map(as_arrays, Batch._fields, read_one))
        _check_batched(specs_of(tuple(named)), f"a {self._source} of")
        return named

    def _check_inputs(self, specs: Any, other: Any) -> None:
        """Checks that the inputs of two batches, given as specs, have one structure."""
        try:
            tf.nest.assert_same_structure(specs, other)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"The batches of a {self._source} must have inputs of one structure. Received: {described(specs)} and "
                f"{described(other)}. {_ONE_BY_ONE}"
            ) from error

    def _merged_by_head(self, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        by_name: dict[str, Any] = {}
        for name in self._head_names:
            specs = [open_batch_size(each[name]) for each in found if name in each]
            if specs:
                by_name[name] = self._merged(*specs)
        return by_name

    def _merged(self, first: Any, *others: Any) -> Any:
        """The spec that fits all: sizes that differ are open."""
        for other in others:
            if type(other) is not type(first) or other.dtype != first.dtype or other.shape.rank != first.shape.rank:
                raise ValueError(
                    f"The batches of a {self._source} must have the same dtypes and numbers of axes. "
                    f"Received: {_as_words(first)} and {_as_words(other)}. {_ONE_BY_ONE}"
                )
        return merged_spec(first, *others)

    def __call__(self, batch: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """A completed batch.

        Raises:
            ValueError: It has targets for a head that had none in the batches that were looked at.
        """
        inputs, targets, weights = self._read(batch)
        input_specs, target_specs, weight_specs = self.specs
        self._check_inputs(input_specs, open_batch_size(inputs))
        late = [name for name in targets if name not in target_specs]
        if late:
            raise ValueError(
                f"A {self._source} must have targets for {quoted(late)} in one of its first {_LOOKED_AT} batches, since a "
                f"later one has. Received: targets for {quoted(target_specs)} there. Bring such a batch to the front."
            )
        number = num_examples(inputs)
        for name, spec in target_specs.items():
            if name not in targets:
                targets[name] = np.zeros([number, *(size or 1 for size in spec.shape[1:])], spec.dtype.as_numpy_dtype)
                weights[name] = np.zeros([number, *[1] * (weight_specs[name].shape.rank - 1)], keras.backend.floatx())
            elif name not in weights:
                weights[name] = np.ones([number, *[1] * (weight_specs[name].shape.rank - 1)], keras.backend.floatx())
        return inputs, {name: targets[name] for name in target_specs}, {name: weights[name] for name in target_specs}


def specs_of(nest: Any) -> Any:
    """The specs of arrays and tensors as they are."""
    return tf.nest.map_structure(
        lambda value: tf.type_spec_from_value(value) if tf.is_tensor(value) else tf.TensorSpec(value.shape), nest
    )


def _as_words(spec: Any) -> str:
    return f"{spec.dtype.name} of shape {spec.shape}"


def _looked_at(batches: Iterable[Any], head_names: Sequence[str]) -> list[Any]:
    """The first batches: two at least, and until every head has had targets."""
    found, seen = [], set()
    for batch in itertools.islice(batches, _LOOKED_AT):
        found.append(batch)
        seen |= set(unpack(batch, head_names).targets)
        if len(found) > 1 and seen >= set(head_names):
            break
    return found


def read_iterable(x: Iterable[Any], head_names: Sequence[str]) -> Data:
    """A generator, which yields its batches once, or an iterable for several passes."""
    source = type(x).__name__
    batches = iter(x)
    first = _looked_at(batches, head_names)
    if not first:
        raise ValueError(
            f"`x` must yield at least one batch. Received: a {source} without any. A generator that was read to its end "
            "gives no more: make a new one."
        )
    complete = _Completion(first, head_names, source)
    if batches is x:
        remaining = (complete(batch) for batch in itertools.chain(first, batches))
        return Data(remaining, specs=Batch(*complete.specs), batches=lambda shuffle: remaining, first=complete(first[0]))

    def again(shuffle: Any = False) -> Iterator[Any]:
        return (complete(batch) for batch in x)

    # Keras accepts data for several passes only as a dataset.
    dataset = tf.data.Dataset.from_generator(again, output_signature=complete.specs)
    return Data(dataset, specs=Batch(*complete.specs), batches=again, first=complete(first[0]))


class _CompletedSequence(keras.utils.Sequence):
    """A `PyDataset` (Keras 2: `Sequence`) around another one, with completed batches."""

    def __init__(self, inner: Any, complete: _Completion) -> None:
        names = ("workers", "use_multiprocessing", "max_queue_size")
        super().__init__(**{name: getattr(inner, name) for name in names if hasattr(keras.utils.Sequence, name)})
        self._inner = inner
        self._complete = complete

    @property
    def num_batches(self) -> int | None:
        return _length(self._inner)

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> Any:
        return self._complete(self._inner[index])

    def on_epoch_begin(self) -> None:
        if hasattr(self._inner, "on_epoch_begin"):
            self._inner.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._inner.on_epoch_end()


def _length(x: Any) -> int | None:
    """How many batches a `PyDataset` gives; None if that is unknown."""
    if not isinstance(x, keras.utils.Sequence):
        return None
    return x.num_batches if hasattr(x, "num_batches") else len(x)


def read_sequence(x: Any, head_names: Sequence[str]) -> Data:
    length = _length(x)
    indices: Iterable[int] = itertools.count() if length is None else range(length)
    first = _looked_at((x[i] for i in indices), head_names)
    if not first:
        raise ValueError(f"`x` must yield at least one batch. Received: a {type(x).__name__} of length 0. Correct it.")
    complete = _Completion(first, head_names, type(x).__name__)
    completed = _CompletedSequence(x, complete)

    def batches(shuffle: Any) -> Iterator[Any]:
        completed.on_epoch_begin()
        order: Iterable[int] = itertools.count() if length is None else range(length)
        if shuffle and length is not None:
            order = random.sample(range(length), length)
        yield from (completed[i] for i in order)
        completed.on_epoch_end()

    return Data(completed, specs=Batch(*complete.specs), batches=batches, length=length, first=complete(first[0]))
