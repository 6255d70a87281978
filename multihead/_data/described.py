"""The data of a `fit` as text, by which a resumed run sees that they are the same."""

from __future__ import annotations

import zlib

import numpy as np
import tensorflow as tf

from multihead._data.arguments import Call
from multihead._data.data import Data, num_examples
from multihead._ground.types import Dataset

_OF_THE_LOOP = ("batch_size", "steps_per_epoch", "validation_batch_size", "validation_steps", "validation_freq")


def described(call: Call) -> dict[str, str]:
    """What decides which batches come in which order, as text by name.

    Sizes, the options of loops and, of a `tf.data.Dataset`, the numbers of its transformations, such as a shuffle's seed.
    """
    found = {name: str(call.others[name]) for name in _OF_THE_LOOP if call.others.get(name) is not None}
    if call.data.is_arrays or call.data.batches is not None:
        found["shuffle"] = str(call.others.get("shuffle", True))
    found.update(_of_data("x", call.data))
    if call.validation is not None:
        found.update(_of_data("validation_data", call.validation))
    return found


def _of_data(argument: str, data: Data) -> dict[str, str]:
    if data.is_arrays:
        return {argument: f"arrays of {num_examples(data.x)} examples"}
    if data.batches is not None:
        return {argument: f"batches from Python, {'unknown' if data.length is None else data.length} per epoch"}
    if not isinstance(data.x, tf.data.Dataset):
        return {argument: type(data.x).__name__}
    number = int(data.x.cardinality())
    found = {argument: f"a dataset of {number if number >= 0 else 'unknown or infinite'} batches"}
    for place, part in enumerate(_parts(data.x)):
        numbers = ", ".join(f"{name}={value}" for name, value in sorted(_numbers(part).items()))
        found[f"{argument}, part {place}"] = f"{type(part).__name__.lstrip('_')}({numbers})"
    return found


def has_unseeded_shuffle(data: Data | None) -> bool:
    """Whether the data are a `tf.data.Dataset` that is shuffled in another order in each process."""
    if data is None or not isinstance(data.x, tf.data.Dataset):
        return False
    numbers = [_numbers(part) for part in _parts(data.x)]
    return any(each.get("seed") == 0 and each.get("seed2") == 0 for each in numbers)


def digest_of_first(data: Data | None) -> int | None:
    """A number that depends on the first batch that Python has made; None for other data."""
    if data is None or data.first is None:
        return None
    digest = 0
    for leaf in tf.nest.flatten(data.first, expand_composites=True):
        array = np.asarray(leaf)
        digest = zlib.crc32(repr(array.tolist()).encode() if array.dtype == object else array.tobytes(), digest)
    return digest


def _parts(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """A dataset and those that it is made from, the last transformation first."""
    found = [dataset]
    for part in found:
        found.extend(part._inputs())
    return found


def _numbers(part: Dataset) -> dict[str, int]:
    """The whole numbers of a transformation, such as a batch size, by name."""
    found = {}
    for name, value in sorted(vars(part).items()):
        is_number = tf.is_tensor(value) and value.dtype.is_integer and value.shape.rank == 0 and hasattr(value, "numpy")
        if is_number or isinstance(value, (bool, int)):
            found[name.lstrip("_")] = int(value)
    return found
