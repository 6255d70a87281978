"""The data of a comparison: the same batches in the same order for each variant, and the proof of it."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from multihead._data.arguments import read
from multihead._data.data import Data, num_examples
from multihead._ground.calls import as_is
from multihead._ground.validation import did_you_mean, quoted
from multihead._update.batch import unpack

TRAIN, VALIDATION, TEST = "train", "validation", "test"
_SPLITS = (TRAIN, VALIDATION, TEST)
MARKS = 8
"""In how many places of a run the digest of the batches so far is kept."""


def splits_of(data: Any, seed: int) -> dict[str, Any]:
    """The parts of the data for a seed, as they were given.

    Raises:
        ValueError: A part is missing, or there is another.
    """
    given = data(seed) if callable(data) else data
    received = f"a dict of {quoted(given)}" if isinstance(given, Mapping) else f"{type(given).__name__}"
    unknown = [name for name in given if name not in _SPLITS] if isinstance(given, Mapping) else []
    if not isinstance(given, Mapping) or unknown or not {TRAIN, VALIDATION} <= set(given):
        hint = did_you_mean(unknown, _SPLITS, "Pass {'train': (x, y), 'validation': (x, y), 'test': (x, y)}.")
        raise ValueError(
            "`data` must be a dict with 'train' and 'validation', and 'test' if there is one, or a function of the seed "
            f"that returns it. Received: {received}. {hint}"
        )
    return dict(given)


def read_split(name: str, given: Any, heads: Sequence[str]) -> Data:
    """One part of the data, checked.

    Args:
        name: `"train"`, `"validation"` or `"test"`.
        given: `(x, y)` or `(x, y, sample_weight)`, arrays with targets by head name, or a `tf.data.Dataset` of batches.
        heads: The heads, each of which must have targets.

    Raises:
        ValueError: It does not suit the heads.
        TypeError: It is something else.
    """
    is_tuple = isinstance(given, (tuple, list)) and len(given) in (2, 3)
    if not is_tuple and not isinstance(given, tf.data.Dataset):
        raise TypeError(
            f"`data[{name!r}]` must be (x, y), (x, y, sample_weight) or a `tf.data.Dataset` of batches. Received: "
            f"{type(given).__name__}. Every run reads it from its start: a generator can be read only once."
        )
    x, y, sample_weight = (*given, None)[:3] if is_tuple else (given, None, None)
    try:
        found = read(x, y, sample_weight, heads)
    except (ValueError, TypeError) as error:
        raise type(error)(f"`compare` cannot use `data[{name!r}]`. {error}") from error
    missing = [head for head in heads if head not in unpack(found.specs, heads).targets]
    if missing:
        raise ValueError(
            f"`data[{name!r}]` must have targets for every head. Received: none for {quoted(missing)}. Add them; a missing "
            "label is NaN or the head's `ignore_label`."
        )
    leaves = tf.nest.flatten((found.x, found.y, found.sample_weight)) if found.is_arrays else []
    if name == TRAIN and any(isinstance(leaf, tf.SparseTensor) for leaf in leaves):
        raise TypeError(
            "`data['train']` must not have sparse tensors among its arrays. Received: a SparseTensor. Pass a "
            "`tf.data.Dataset` of batches instead."
        )
    found.check_any()
    return found


def of_heads(data: Data, heads: Sequence[str], all_heads: Sequence[str]) -> dict[str, Any]:
    """The arguments of `evaluate` for some of the heads."""
    if data.is_arrays:
        weights = data.sample_weight
        kept = None if weights is None else {name: value for name, value in weights.items() if name in heads}
        return {"x": data.x, "y": {name: data.y[name] for name in heads if name in data.y}, "sample_weight": kept}
    return {"x": data.x.map(as_is(lambda *batch: _part(batch, heads, all_heads)))}


def part_of_heads(given: Any, data: Data, heads: Sequence[str], all_heads: Sequence[str]) -> Any:
    """A part as it was given, without the targets and weights of other heads: `(x, y)`, `(x, y, weights)` or a data set."""
    if len(heads) == len(all_heads):
        return given
    found = of_heads(data, heads, all_heads)
    if not data.is_arrays:
        return found["x"]
    return (found["x"], found["y"], found["sample_weight"])[: len(given)]


def _part(batch: Any, heads: Sequence[str], all_heads: Sequence[str]) -> Any:
    """A batch with the targets and weights of some of the heads."""
    inputs, *by_head = unpack(batch, all_heads)
    targets, weights = ({name: value for name, value in each.items() if name in heads} for each in by_head)
    return (inputs, targets, weights) if weights else (inputs, targets)


def batches_per_epoch(data: Data, batch_size: int) -> int:
    """The number of batches of one pass over the training data."""
    if data.is_arrays:
        return math.ceil(num_examples(data.x) / batch_size)
    length = int(data.x.cardinality())
    if length == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "`budget` must be a number of updates for data that have no end. Received: epochs, and a data set that repeats "
            "itself. Pass {'updates': ...}."
        )
    return length if length >= 0 else sum(1 for _ in data.x)


class Feed:
    """The batches of one run: an order that depends on the seed alone, and a digest of what was trained on.

    Args:
        data: The training data.
        all_heads: All heads of `build`.
        batch_size: The number of examples in a batch of arrays.
        seed: The seed of the order of arrays; each epoch has another order, with a smaller last batch.
        marked: The number of batches in which there are `MARKS` marks.

    Attributes:
        order: Digests of all batches up to each mark that was reached, with the targets of all heads.
    """

    def __init__(self, data: Data, all_heads: Sequence[str], *, batch_size: int, seed: int, marked: int) -> None:
        self._data = data
        self._all_heads = list(all_heads)
        self._batch_size = batch_size
        self._seed = seed
        self._every = max(marked // MARKS, 1)
        self.order: list[int] = []

    def batches(self, heads: Sequence[str], number: int) -> Iterator[Any]:
        """Some batches with the targets of some heads."""
        digest, self.order = 0, []
        for count, batch in enumerate(itertools.islice(self._endless(), number), start=1):
            digest = digest_of(batch, digest)
            if count % self._every == 0:
                self.order.append(digest)
            yield _part(batch, heads, self._all_heads)

    def _endless(self) -> Iterator[Any]:
        generator = np.random.default_rng(self._seed)
        while True:
            is_empty = True
            for batch in self._of_arrays(generator) if self._data.is_arrays else self._data.x:
                is_empty = False
                yield batch
            if is_empty:
                raise ValueError(
                    "`data['train']` must yield at least one batch in each pass. Received: a data set without any. Check "
                    "its source."
                )

    def _of_arrays(self, generator: np.random.Generator) -> Iterator[Any]:
        data = self._data
        parts = (data.x, data.y) if data.sample_weight is None else (data.x, data.y, data.sample_weight)
        size = num_examples(data.x)
        order = generator.permutation(size)
        for start in range(0, size, self._batch_size):
            chosen = order[start : start + self._batch_size]
            yield tf.nest.map_structure(lambda array, rows=chosen: _rows(array, rows), parts)


def _rows(array: Any, numbers: np.ndarray) -> Any:
    return tf.gather(array, numbers) if tf.is_tensor(array) else np.asarray(array[numbers])


def digest_of(nest: Any, digest: int = 0) -> int:
    """A number that depends on all values of a nest of arrays and tensors, and on the digest before it."""
    for leaf in tf.nest.flatten(nest, expand_composites=True):
        array = np.asarray(leaf)
        digest = zlib.crc32(repr(array.tolist()).encode() if array.dtype == object else array.tobytes(), digest)
    return digest
