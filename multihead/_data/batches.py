"""What yields batches: datasets are checked, batches of generators and of `PyDataset` brought to one structure.

A head that has no targets in a batch gets placeholders with a sample weight of 0.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from multihead._data.arrays import as_arrays
from multihead._data.batch import Batch, is_absent, merged_spec, open_batch_size, unpack
from multihead._data.data import Data, check_not_empty, num_examples
from multihead._ground.types import Dataset, Nested, Tensor
from multihead._ground.validation import described, quoted

# How many batches of a generator are looked at, at most, to find a batch with targets for every head.
_LOOKED_AT = 64

_ONE_BY_ONE = (
    "Convert them where they are made, or loop over the batches with `train_on_batch` (`test_on_batch`), which takes each "
    "as it is."
)


def check_batched(nest: Nested, received: str) -> None:
    """Checks that all arrays, tensors or specs in a nest can have an axis of examples in common."""
    shapes = [tf.TensorShape(leaf.shape) for leaf in tf.nest.flatten(nest) if not is_absent(leaf)]
    shapes = [shape for shape in shapes if shape.rank is not None]
    sizes = {shape[0] for shape in shapes if shape.rank} - {None}
    if any(not shape.rank for shape in shapes) or len(sizes) > 1:
        listed = ", ".join(dict.fromkeys(map(str, shapes)))
        raise ValueError(
            "`x` must yield batches: tensors whose first axis is that of the examples. "
            f"Received: {received} tensors of shapes {listed}. For a dataset of single examples, call `.batch(32)` on it."
        )


class _Completion:
    """Brings batches to one structure, `specs`: a head without targets gets placeholders with a sample weight of 0.

    The structure is that of the first batches, which are appended to `read`: two at least, and until every head has had
    targets.
    """

    def __init__(self, x: Dataset, batches: Iterable[Nested], head_names: Sequence[str], read: list[Nested]) -> None:
        self._head_names, self._source = list(head_names), type(x).__name__
        self._inputs: Nested = None
        found: list[Batch] = []
        for batch in itertools.islice(batches, _LOOKED_AT):
            read.append(batch)
            found.append(open_batch_size(self._read(batch)))
            if len(found) > 1 and {name for each in found for name in each.targets} >= set(head_names):
                break
        check_not_empty(x, len(found))
        parts = ([batch.targets for batch in found], [batch.sample_weights for batch in found])
        by_name = ({name: [each[name] for each in part if name in each] for name in self._head_names} for part in parts)
        targets, weights = ({name: self._merged(*each) for name, each in part.items() if each} for part in by_name)
        no_weights = tf.TensorSpec([None], keras.backend.floatx())
        weights = {name: weights.get(name, no_weights) for name in targets}
        inputs = [batch.inputs for batch in found]
        self.specs = Batch(tf.nest.map_structure(self._merged, *inputs), targets, weights)

    def _read(self, batch: Nested) -> Batch:
        """The arrays of a batch, whose inputs have the structure of those of the first batch."""
        named = Batch(*map(as_arrays, Batch._fields, unpack(batch, self._head_names)))
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

    def _merged(self, first: Nested, *others: Nested) -> Nested:
        """The spec that fits all: sizes that differ are open."""
        for other in others:
            if type(other) is not type(first) or other.dtype != first.dtype or other.shape.rank != first.shape.rank:
                one, two = (f"{each.dtype.name} of shape {each.shape}" for each in (first, other))
                raise ValueError(
                    f"The batches of a {self._source} must have the same dtypes and numbers of axes. "
                    f"Received: {one} and {two}. {_ONE_BY_ONE}"
                )
        return merged_spec(first, *others)

    def __call__(self, batch: Nested) -> tuple[Nested, dict[str, Tensor], dict[str, Tensor]]:
        """A completed batch."""
        inputs, targets, weights = self._read(batch)
        late = [name for name in targets if name not in self.specs.targets]
        if late:
            raise ValueError(
                f"A {self._source} must have targets for {quoted(late)} in one of its first {_LOOKED_AT} batches, since a "
                f"later one has. Received: targets for {quoted(self.specs.targets)} there. Bring such a batch to the front."
            )
        number = num_examples(inputs)
        for name, spec in self.specs.targets.items():
            of_weights = [number, *[1] * (self.specs.sample_weights[name].shape.rank - 1)]
            if name not in targets:
                targets[name] = np.zeros([number, *(size or 1 for size in spec.shape[1:])], spec.dtype.as_numpy_dtype)
                weights[name] = np.zeros(of_weights, keras.backend.floatx())
            elif name not in weights:
                weights[name] = np.ones(of_weights, keras.backend.floatx())
        names = self.specs.targets
        return inputs, {name: targets[name] for name in names}, {name: weights[name] for name in names}


def read_iterable(x: Iterable[Nested], head_names: Sequence[str]) -> Data:
    """A generator, which yields its batches once, or an iterable for several passes."""
    batches, read = iter(x), list[Nested]()
    complete = _Completion(x, batches, head_names, read)
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

    def __init__(self, inner: Dataset, complete: _Completion) -> None:
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
        """The batches of one pass."""
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
    complete = _Completion(x, (x[i] for i in indices), head_names, read)
    made = _CompletedSequence(x, complete)
    return Data(made, specs=complete.specs, batches=made.batches, length=length, first=complete(read[0]))
