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

from multihead._data.batch import Batch, batch_size, is_absent, rows
from multihead._ground.calls import no_autograph
from multihead._ground.trials import made_up_rows
from multihead._ground.types import Dataset, Nested
from multihead._ground.validation import is_number

_BATCH_SIZE = 32


class Data(NamedTuple):
    """The data of one call."""

    x: Dataset  # the inputs as arrays, or something that yields batches
    y: Nested = None  # the targets as arrays by head name, or None
    sample_weight: Nested = None  # the sample weights as arrays by head name, or None
    specs: Batch | None = None  # of a batch, with open batch size; None if nothing is known before the first batch
    batches: Callable[[bool | str], Iterator[Nested]] | None = None  # of Python: one pass, shuffled if asked
    length: int | None = None  # their number, if it is known
    first: Nested = None  # the first of these batches
    batch_size: int | None = None  # of arrays, if `fit` was told

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
        """The first examples, and a fraction of all examples at the end."""
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
        """The batches as a dataset; arrays without a batch size are divided into `steps`. Errors name `argument`."""
        if self.is_arrays:
            parts = (self.x, self.y) if self.sample_weight is None else (self.x, self.y, self.sample_weight)
            size = num_examples(self.x)
            batch_size = batch_size or (math.ceil(size / steps) if steps else _BATCH_SIZE)
            if any(isinstance(leaf, tf.SparseTensor) for leaf in tf.nest.flatten(parts)):
                examples = tf.data.Dataset.from_tensor_slices(parts)
                return (examples.shuffle(size, seed=seed) if shuffle else examples).batch(batch_size)
            numbers = tf.data.Dataset.range(size)
            numbers = (numbers.shuffle(size, seed=seed) if shuffle and shuffle != "batch" else numbers).batch(batch_size)
            if shuffle == "batch":
                numbers = numbers.map(no_autograph(lambda chosen: tf.random.shuffle(chosen, seed)))
            # Taken from whole arrays, whole batches at a time.
            whole = tf.data.Dataset.from_tensors(parts).repeat()
            return tf.data.Dataset.zip((numbers, whole)).map(
                no_autograph(lambda chosen, arrays: tf.nest.map_structure(lambda array: tf.gather(array, chosen), arrays))
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

        With a number of `steps` in an epoch, data whose length is unknown may have no end.
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

    @no_autograph
    def present(inputs: Nested, *others: Nested) -> Nested:
        kept = ({k: v for k, v in part.items() if v is not None} if isinstance(part, dict) else part for part in others)
        return (inputs, *(part for part in kept if part is not None))

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


# Windows of consecutive batches as the elements of a dataset: how `gradient_accumulation_steps` works in `fit`. One element
# is one update, so that Keras counts updates: steps, progress bar, callbacks and `steps_per_execution` work as usual.

_KEY = "window"


def batches_of_update(data: Dataset, gradient_accumulation_steps: int) -> list[Nested]:
    """The batches of one update, from a window, a list of batches (tuples), or one batch."""
    is_list = isinstance(data, list) and all(isinstance(batch, tuple) for batch in data)
    is_window = isinstance(data, dict) and set(data) == {_KEY}
    batches = list(data[_KEY]) if is_window else list(data) if is_list else [data]
    is_alone = not is_list and not is_window
    if not 0 < len(batches) <= gradient_accumulation_steps or (is_alone and gradient_accumulation_steps > 1):
        most = "a list of at most" if gradient_accumulation_steps > 1 else "at most"
        received = "one batch" if is_alone else f"a list of {len(batches)}"
        remedy = f"Pass one batch, or `gradient_accumulation_steps={len(batches)}` to `compile`."
        if gradient_accumulation_steps > 1:
            remedy = "Pass the batches of one update as a list, `compute_gradients([(inputs, targets), ...])`."
        raise ValueError(
            f"`batch` must be {most} {gradient_accumulation_steps} batches, the `gradient_accumulation_steps` of `compile`. "
            f"Received: {received}. {remedy}"
        )
    return batches


def in_windows(
    batches: tf.data.Dataset, size: int, ahead: int, strategy: tf.distribute.Strategy, steps_per_epoch: int | None
) -> tuple[Dataset, int | None]:
    """Groups batches into windows of `size` batches; returns these and `steps_per_epoch`, as `fit` of Keras takes them.

    If the last window of an epoch has fewer, it is padded with empty batches. `ahead` windows are made before they are
    needed.
    """
    empty = made_up_rows(batches.element_spec, 0)

    @no_autograph
    def as_element(*window: Nested) -> dict[str, Nested]:
        # A structure of datasets becomes a dataset of structures, padded to the full number of batches.
        successive = tf.data.Dataset.zip(window if len(window) > 1 else window[0])
        filled = successive.concatenate(tf.data.Dataset.from_tensors(empty).repeat(size))
        return {_KEY: tuple(filled.skip(i).take(1).get_single_element() for i in range(size))}

    windows = batches.window(size).map(as_element)
    windows = windows.prefetch(ahead) if ahead else windows
    if strategy.num_replicas_in_sync == 1:
        return windows, steps_per_epoch
    if steps_per_epoch is None:
        steps_per_epoch = int(windows.cardinality())
        if steps_per_epoch < 0:
            raise ValueError(
                "`steps_per_epoch` is required with gradient_accumulation_steps on several replicas if the cardinality "
                "of the dataset is unknown or infinite. Received: steps_per_epoch=None. Pass the number of updates per "
                "epoch."
            )
    return strategy.distribute_datasets_from_function(partial(_of_replicas, windows.repeat())), steps_per_epoch


def _of_replicas(windows: tf.data.Dataset, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """One element per window and replica of this worker, with the replica's part of every batch."""
    num_replicas = context.num_replicas_in_sync
    here = num_replicas // context.num_input_pipelines
    mine = [context.input_pipeline_id * here + i for i in range(here)]

    def part(batch: Nested, replica: int) -> Nested:
        size = batch_size(batch)
        return rows(batch, size * replica // num_replicas, size * (replica + 1) // num_replicas)

    def parts(window: Nested) -> tf.data.Dataset:
        elements = [{_KEY: tuple(part(batch, replica) for batch in window[_KEY])} for replica in mine]
        first, *others = map(tf.data.Dataset.from_tensors, elements)
        for other in others:
            first = first.concatenate(other)
        return first

    return windows.flat_map(parts)
