"""`Data`: the data of one call, in one form.

Arrays are NumPy arrays or tensors in tuples and dicts, with targets and sample weights by head name. Batches of Python
generators and of `keras.utils.PyDataset` are triples of one structure. Datasets are unchanged.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from multihead._data.batch import Batch, is_absent, rows
from multihead._ground.calls import as_is
from multihead._ground.types import Dataset, Nested
from multihead._ground.validation import is_number

_BATCH_SIZE = 32


class Data(NamedTuple):
    """The data of one call."""

    x: Dataset  # the inputs as arrays, or something that yields batches
    y: Nested = None  # the targets as arrays by head name, or None
    sample_weight: Nested = None  # the sample weights as arrays by head name, or None
    specs: Batch | None = None  # of a batch, with open batch size; None if nothing is known before the first batch
    batches: Callable[[bool | str], Iterator[Nested]] | None = (
        None  # one pass, shuffled if asked, if Python makes the batches
    )
    length: int | None = None  # their number, if it is known
    first: Nested = None  # the first of these batches
    batch_size: int | None = None  # of arrays, if it was given

    @property
    def is_arrays(self) -> bool:
        """Whether these are arrays, of all examples."""
        return self.y is not None

    def sample(self) -> Nested:
        """Some examples as a batch, without consuming them; None if unavailable."""
        if self.is_arrays:
            return rows((self.x, self.y, self.sample_weight), 0, self.batch_size or _BATCH_SIZE)
        return next(iter(_without_absent(self.x)), None) if isinstance(self.x, tf.data.Dataset) else self.first

    def split(self, fraction: float) -> tuple[Data, Data]:
        """The first examples, and the given fraction of all examples at the end."""
        if not self.is_arrays:
            raise ValueError(
                "`validation_split` must be 0 unless `x` and `y` are arrays. "
                f"Received: validation_split={fraction!r} with x of type {type(self.x).__name__}. Pass `validation_data`."
            )
        whole = (self.x, self.y, self.sample_weight)
        size = num_examples(self.x)
        first = math.floor(size * (1 - fraction)) if is_number(fraction) and 0 < fraction < 1 else 0
        if not 0 < first < size:
            raise ValueError(
                "`validation_split` must be a fraction between 0 and 1 that leaves examples on both sides. "
                f"Received: validation_split={fraction!r} for {size} examples. Correct it, or pass `validation_data`."
            )
        (x, y, w), (last_x, last_y, last_w) = rows(whole, 0, first), rows(whole, first, size)
        return self._replace(x=x, y=y, sample_weight=w), self._replace(x=last_x, y=last_y, sample_weight=last_w)

    def as_dataset(
        self, batch_size: int | None, steps: int | None, shuffle: bool | str, argument: str, seed: int | None = None
    ) -> tf.data.Dataset:
        """The batches as a dataset, for the sake of an argument; arrays without a batch size become so many steps."""
        if self.is_arrays:
            parts = (self.x, self.y) if self.sample_weight is None else (self.x, self.y, self.sample_weight)
            size = num_examples(self.x)
            batch_size = batch_size or (math.ceil(size / steps) if steps else _BATCH_SIZE)
            if any(isinstance(leaf, tf.SparseTensor) for leaf in tf.nest.flatten(parts)):
                examples = tf.data.Dataset.from_tensor_slices(parts)
                return (examples.shuffle(size, seed=seed) if shuffle else examples).batch(batch_size)
            numbers = tf.data.Dataset.range(size)
            numbers = (numbers.shuffle(size, seed=seed) if shuffle and shuffle != "batch" else numbers).batch(batch_size)
            numbers = numbers.map(as_is(lambda chosen: tf.random.shuffle(chosen, seed))) if shuffle == "batch" else numbers
            # Taken from whole arrays, whole batches at a time.
            whole = tf.data.Dataset.from_tensors(parts).repeat()
            return tf.data.Dataset.zip((numbers, whole)).map(
                as_is(lambda chosen, arrays: tf.nest.map_structure(lambda array: tf.gather(array, chosen), arrays))
            )
        if self.batches is not None:
            made = partial(self.batches, shuffle)
            batches = tf.data.Dataset.from_generator(made, output_signature=tuple(self.specs or ()))
            # What is read and not used is lost to the next pass, and what it draws at random may depend on the moment.
            options = tf.data.Options()
            options.autotune.enabled = False  # it would make maps parallel, and prefetch
            batches = batches.with_options(options)
            return batches if self.length is None else batches.apply(tf.data.experimental.assert_cardinality(self.length))
        if isinstance(self.x, tf.data.Dataset):
            return _without_absent(self.x)
        raise ValueError(
            f"`x` must be arrays together with `y`, a `tf.data.Dataset`, a generator or a `PyDataset` for {argument}. "
            f"Received: x of type {type(self.x).__name__}. Pass the `tf.data.Dataset` itself."
        )

    def whole(self, batch_size: int | None, steps: int | None) -> Dataset:
        """All batches once, in order, before training; None if the data cannot be read once more, or may have no end.

        If the number of steps in an epoch was given, data whose length is unknown may have no end.
        """
        if self.is_arrays:
            return iter(self.as_dataset(batch_size, None, False, "`target_scaling`"))
        if isinstance(self.x, tf.data.Dataset):
            length = int(self.x.cardinality())
            may_end = length >= 0 or (length == tf.data.UNKNOWN_CARDINALITY and steps is None)
            return iter(_without_absent(self.x)) if may_end else None
        return (self.x[i] for i in range(self.length)) if self.length is not None else None


def _without_absent(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset without parts, targets and weights that are None."""
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or not any(map(is_absent, tf.nest.flatten(spec[1:]))):
        return dataset

    @as_is
    def present(inputs: Nested, *others: Nested) -> Nested:
        kept = ({k: v for k, v in each.items() if v is not None} if isinstance(each, dict) else each for each in others)
        return (inputs, *(each for each in kept if each is not None))

    return dataset.map(present)


def check_not_empty(x: Dataset, size: int | None) -> None:
    """Checks that there is an example in data of a known size."""
    if size == 0:
        raise ValueError(
            f"`x` must yield at least one batch. Received: x of type {type(x).__name__} without examples. Check its source: "
            "a file, a filter or a split may be empty, and a generator that was read to its end gives no more."
        )


def num_examples(nest: Nested) -> int:
    leaf = next(leaf for leaf in tf.nest.flatten(nest) if leaf is not None)
    return int(leaf.shape[0])


def digest_of(nest: Nested, digest: int = 0) -> int:
    """A number that depends on all values of a nest of arrays and tensors, and on the digest before it."""
    for leaf in tf.nest.flatten(nest, expand_composites=True):
        array = np.asarray(leaf)
        digest = zlib.crc32(repr(array.tolist()).encode() if array.dtype == object else array.tobytes(), digest)
    return digest
