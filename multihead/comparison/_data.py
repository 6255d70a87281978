"""The data of a comparison: the same batches in the same order for every variant, and the proof of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from multihead._data.batch import unmasked
from multihead._data.data import digest_of
from multihead._data.reading import as_arrays, as_targets
from multihead._ground.calls import no_autograph
from multihead._ground.types import Config, Dataset, Nested
from multihead._ground.validation import check_head_names, did_you_mean, quoted

TRAIN, VALIDATION, TEST = "train", "validation", "test"
_PARTS = (TRAIN, VALIDATION, TEST)


def data_parts(data: Dataset, seed: int) -> dict[str, Dataset]:
    """The parts of the data for a seed: data sets of batches, or tuples `(x, y)` or `(x, y, sample_weight)`."""
    parts = data(seed) if callable(data) else data
    received = f"a dict of {quoted(parts)}" if isinstance(parts, Mapping) else f"{type(parts).__name__}"
    unknown = [name for name in parts if name not in _PARTS] if isinstance(parts, Mapping) else []
    if not isinstance(parts, Mapping) or unknown or not {TRAIN, VALIDATION} <= set(parts):
        hint = did_you_mean(unknown, _PARTS, "Pass {'train': (x, y), 'validation': (x, y), 'test': (x, y)}.")
        raise ValueError(
            "`data` must be a dict with 'train' and 'validation', and 'test' if there is one, or a function of the seed "
            f"that returns it. Received: {received}. {hint}"
        )
    return {name: _read_part(name, part) for name, part in parts.items()}


def _read_part(name: str, received: object) -> Dataset:
    if isinstance(received, tf.data.Dataset):
        return received
    if not isinstance(received, (tuple, list)) or len(received) not in (2, 3):
        raise TypeError(
            f"`data[{name!r}]` must be (x, y), (x, y, sample_weight) or a `tf.data.Dataset` of batches. Received: "
            f"{type(received).__name__}. Every run reads it from its start: a generator can be read only once."
        )
    x, *labels = received
    part = [as_arrays(f"data[{name!r}][0]", x)]
    for place, by_head in enumerate((dict(values) for values in labels if values is not None), start=1):
        paths = {head: f"data[{name!r}][{place}][{head!r}]" for head in by_head}
        arrays = {head: unmasked(paths[head], value, are_targets=place == 1) for head, value in by_head.items()}
        read = as_targets if place == 1 else as_arrays
        part.append({head: read(paths[head], array) for head, array in arrays.items()})
    return tuple(part)


def check_targets(parts: Mapping[str, Dataset], heads: Collection[str]) -> None:
    """Checks that all parts have targets for every head, and for no other."""
    for name, part in parts.items():
        elements = part.element_spec if isinstance(part, tf.data.Dataset) else part
        targets = elements[1] if isinstance(elements, tuple) and len(elements) > 1 else {}
        missing = [head for head in heads if head not in targets]
        if missing:
            raise ValueError(
                f"`data[{name!r}]` must have targets for every head. Received: none for {quoted(missing)}. Add them; a "
                "missing label is NaN or the head's `ignore_label`."
            )
        for by_head in (element for element in elements[1:] if isinstance(element, Mapping)):
            check_head_names(f"data[{name!r}]", by_head, list(heads))


def keep_heads(part: Dataset, heads: Collection[str]) -> Dataset:
    """A part, or a batch, without the targets and weights of other heads."""
    if isinstance(part, tf.data.Dataset):
        return part.map(no_autograph(lambda *batch: keep_heads(batch, heads)))
    x, *by_head = part
    kept = (
        {name: value for name, value in values.items() if name in heads} for values in by_head if isinstance(values, Mapping)
    )
    return (x, *(values for values in kept if values))


def arguments(part: Dataset, batch_size: int) -> Config:
    """A part as arguments of `fit` and `evaluate`."""
    if isinstance(part, tf.data.Dataset):
        return {"x": part}
    return {**dict(zip(("x", "y", "sample_weight"), part)), "batch_size": batch_size}


def is_endless(part: Dataset) -> bool:
    """Whether a part is a data set that repeats itself."""
    return isinstance(part, tf.data.Dataset) and int(part.cardinality()) == tf.data.INFINITE_CARDINALITY


def batches_per_epoch(part: Dataset, batch_size: int) -> int:
    """The number of batches of one pass over the training data."""
    if not isinstance(part, tf.data.Dataset):
        return math.ceil(len(part[1][next(iter(part[1]))]) / batch_size)
    if is_endless(part):
        raise ValueError(
            "`budget` must be a number of updates for data that have no end. Received: epochs, and a data set that repeats "
            "itself. Pass {'updates': ...}."
        )
    length = int(part.cardinality())
    return length if length >= 0 else sum(1 for _ in part)


def batches_of(part: Dataset, batch_size: int, seed: int) -> Iterator[Nested]:
    """The batches of one pass after the other; each pass over arrays has its own order, which depends on the seed alone."""
    generator = np.random.default_rng(seed)
    while True:
        batch = None
        for batch in part if isinstance(part, tf.data.Dataset) else _array_batches(part, batch_size, generator):
            yield batch
        if batch is None:
            raise ValueError(
                "`data['train']` must yield at least one batch per pass. Received: a data set without any. Check its source."
            )


def _array_batches(part: Dataset, batch_size: int, generator: np.random.Generator) -> Iterator[Nested]:
    order = generator.permutation(len(part[1][next(iter(part[1]))]))
    for rows in np.split(order, range(batch_size, len(order), batch_size)):
        yield tf.nest.pack_sequence_as(part, [_rows_of(leaf, rows) for leaf in tf.nest.flatten(part)])


def _rows_of(leaf: Nested, rows: np.ndarray) -> Nested:
    """Some rows, in any order, of an array or a tensor: dense, ragged or sparse."""
    if not isinstance(leaf, tf.SparseTensor):
        return tf.gather(leaf, rows) if tf.is_tensor(leaf) else leaf[rows]
    places = np.full(leaf.shape[0], -1)
    places[rows] = np.arange(len(rows))
    indices = leaf.indices.numpy().copy()
    indices[:, 0] = places[indices[:, 0]]
    kept = indices[:, 0] >= 0
    return tf.sparse.reorder(tf.SparseTensor(indices[kept], leaf.values.numpy()[kept], [len(rows), *leaf.shape[1:]]))


def recorded(batches: Iterable[Nested], digests: list[int]) -> Iterator[Nested]:
    """The same batches; after 1, 2, 4, 8 ... of them, a digest of all batches so far is added to `digests`."""
    digest = 0
    for count, batch in enumerate(batches, start=1):
        digest = digest_of(batch, digest)
        if count & (count - 1) == 0:
            digests.append(digest)
        yield batch
