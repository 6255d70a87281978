"""Mixing datasets: train heads on separate datasets in one `fit`."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from multihead._data.reading import check_batched
from multihead._ground.calls import no_autograph
from multihead._ground.types import Nested, Tensor
from multihead._ground.validation import check_dense, check_head_names, check_positive, check_whole, quoted

__all__ = ["mix_datasets"]


def mix_datasets(
    datasets: Mapping[str, tf.data.Dataset],
    *,
    weights: Mapping[str, float] | None = None,
    temperature: float | None = None,
    seed: int = 0,
) -> tf.data.Dataset:
    """Samples batches from the datasets of several heads into one dataset.

    Each batch comes from one dataset, drawn with probability `p_k / sum_j p_j`: `p_k` is `weights[k]`, or
    `n_k^(1 / temperature)` with `n_k` the number of batches of dataset `k` (Devlin, "Multilingual BERT", 2018, writes
    the exponent as `S = 1 / temperature`). Temperature 1 samples in proportion to size; a high temperature samples
    evenly. The choice is a function of `seed`, TensorFlow's global seed, the number of passes so far and the position in
    the pass. A pass, that is, an epoch, has as many batches as all datasets together; a dataset that runs out starts again.
    A dataset of known length that is drawn less often than it has batches starts at a random position in each pass, so that
    all of it is used eventually.

    The other heads have no labels in a batch: their targets are placeholders with a sample weight of 0. These heads are
    idle, and neither their forward nor their backward pass is computed.

    Args:
        datasets: Datasets by head name, with batches `(inputs, target)` or `(inputs, target, sample_weight)`, or with both
            in dicts under this head's name alone. The inputs of all datasets must have the same structure and dtypes.
        weights: Sampling proportions by head name, above 0; every dataset must be named.
        temperature: Above 0. At most one of `weights` and `temperature` may be given; without both, the temperature is 1.
        seed: Seed of the random choices, a whole number.

    Returns:
        A dataset of `(inputs, targets, sample_weights)` with targets and weights for every head. Its cardinality is known
        if those of all datasets are.

    Raises:
        ValueError: An argument is out of range, the inputs differ in structure, or a batch has labels of other heads.
        TypeError: One of the datasets is something else, such as a generator, or a target is ragged or sparse.

    Example:
        >>> prices = tf.data.Dataset.from_tensor_slices(([[1.0], [2.0]], [[10.0], [20.0]])).batch(1)
        >>> sizes = tf.data.Dataset.from_tensor_slices(([[3.0]], [[0.5]])).batch(1)
        >>> mixed = mix_datasets({"price": prices, "size": sizes})
        >>> [len([name for name in weights if weights[name] > 0]) for _, _, weights in mixed]
        [1, 1, 1]
    """
    if weights is not None and temperature is not None:
        raise ValueError(
            "At most one of `weights` and `temperature` may be given. "
            f"Received: weights={weights!r}, temperature={temperature!r}. Omit one."
        )
    datasets = _checked_datasets(datasets)
    seed = check_whole("seed", seed)
    names = list(datasets)
    lengths = {name: int(dataset.cardinality()) for name, dataset in datasets.items()}
    probabilities = _probabilities(names, lengths, weights, temperature)
    labelled = [_labelled(name, datasets) for name in names]

    total = sum(lengths.values()) if min(lengths.values()) >= 0 else None

    @no_autograph
    def in_pass(draw: tf.Tensor) -> tf.data.Dataset:
        """The batches of a pass; `draw` is a random number of this pass."""

        @no_autograph
        def choose(position: tf.Tensor) -> tf.Tensor:
            logits = tf.math.log(tf.constant([probabilities], tf.float32))
            return tf.random.stateless_categorical(logits, 1, seed=tf.stack([draw, position]))[0, 0]

        parts = [dataset.repeat() for dataset in labelled]
        for k, (name, probability) in enumerate(zip(names, probabilities)):
            if total is not None and probability * total < lengths[name]:
                part_seed = tf.stack([draw, tf.constant(-1 - k, tf.int64)])
                parts[k] = parts[k].skip(tf.random.stateless_uniform([], part_seed, 0, lengths[name], tf.int64))
        return tf.data.Dataset.choose_from_datasets(parts, tf.data.Dataset.counter().map(choose))

    passes = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).take(1)
    mixed = passes.flat_map(in_pass)
    return mixed if total is None else mixed.take(total).apply(tf.data.experimental.assert_cardinality(total))


def _probabilities(
    names: list[str], lengths: dict[str, int], weights: Mapping[str, float] | None, temperature: float | None
) -> list[float]:
    if weights is not None:
        check_head_names("weights", weights, names, complete=True)
        proportions = [check_positive(f"weights[{name!r}]", weights[name]) for name in names]
    else:
        exponent = 1 / check_positive("temperature", 1.0 if temperature is None else temperature)
        unknown = [name for name in names if lengths[name] <= 0]
        if unknown:
            raise ValueError(
                f"`weights` must be given if the cardinality of a dataset is unknown, infinite or 0, as for "
                f"{quoted(unknown)}. Received: weights=None. Pass `weights`, or use `assert_cardinality` on the dataset."
            )
        largest = max(lengths.values())
        proportions = [(lengths[name] / largest) ** exponent for name in names]
    return list(np.array(proportions) / sum(proportions))


def _checked_datasets(datasets: Mapping[str, tf.data.Dataset]) -> dict[str, tf.data.Dataset]:
    """The datasets, with targets and sample weights of their heads that stood in dicts taken out of these."""
    if not isinstance(datasets, Mapping) or not datasets:
        raise ValueError(
            "`datasets` must be a mapping from head names to datasets. "
            f"Received: datasets={datasets!r}. Pass, for example, {{'price': prices, 'reply': replies}}."
        )
    described: dict[str, Nested] = {}
    taken: dict[str, tf.data.Dataset] = {}
    for name, dataset in datasets.items():
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                f"`datasets[{name!r}]` must be a `tf.data.Dataset`. Received: a {type(dataset).__name__}. Wrap a generator "
                "with `tf.data.Dataset.from_generator(function, output_signature=...)`."
            )
        spec = dataset.element_spec
        if not isinstance(spec, tuple) or len(spec) not in (2, 3):
            raise ValueError(
                f"`datasets[{name!r}]` must yield batches (inputs, target) or (inputs, target, sample_weight). "
                f"Received: elements of {spec!r}. Map the dataset to this structure."
            )
        for kind, part in zip(("target", "sample weight"), spec[1:]):
            if tf.nest.is_nested(part) and not (isinstance(part, Mapping) and set(part) == {name}):
                raise ValueError(
                    f"`datasets[{name!r}]` must yield the target of its head alone, and its sample weight, as a tensor, or "
                    f"in a dict under {name!r}. Received: {part!r}. Map the dataset to this structure. For batches with "
                    "labels of several heads, map all datasets to targets of all heads, with missing labels where there are "
                    "none, and mix them with `tf.data.Dataset.sample_from_datasets`."
                )
            own = part[name] if tf.nest.is_nested(part) else part
            if not isinstance(own, tf.TensorSpec) or own.shape.rank is None:  # strings may become numbers after mixing
                check_dense(f"The {kind} in `datasets[{name!r}]`", own)
        check_batched(spec, f"`datasets[{name!r}]` with", "`datasets`")
        taken[name] = dataset.map(functools.partial(_taken_out, name)) if any(map(tf.nest.is_nested, spec[1:])) else dataset
        described[name] = tf.nest.map_structure(lambda leaf: (leaf.dtype.name, leaf.shape.rank), spec[0])
        first = next(iter(described))
        if described[name] != described[first]:
            raise ValueError(
                f"The inputs of all `datasets` must have the same structure, dtypes and ranks. Received: {first!r} with "
                f"{described[first]} and {name!r} with {described[name]}. Map them to one structure, or loop over the "
                "batches with `train_on_batch`, which takes them as they are."
            )
    return taken


@no_autograph
def _taken_out(name: str, inputs: Nested, *labels: Nested) -> Nested:
    """A batch with the target and the sample weight of a head alone."""
    return inputs, *(part[name] if isinstance(part, Mapping) else part for part in labels)


def _labelled(name: str, datasets: Mapping[str, tf.data.Dataset]) -> tf.data.Dataset:
    """The dataset of one head, with placeholders for the targets of the others."""

    @no_autograph
    def complete(inputs: Nested, target: Tensor, sample_weight: Tensor = None) -> Nested:
        size = tf.shape(tf.nest.flatten(inputs)[0])[0]
        targets, weights = {}, {}
        for other, dataset in datasets.items():
            spec = dataset.element_spec[1]
            rank = 1 if len(dataset.element_spec) == 2 else dataset.element_spec[2].shape.rank
            shape = [size, *(axis or 1 for axis in spec.shape.as_list()[1:])]
            targets[other] = tf.zeros(shape, spec.dtype)
            weights[other] = tf.zeros([size] + [1] * (rank - 1))
        targets[name] = target
        weights[name] = tf.ones_like(weights[name]) if sample_weight is None else tf.cast(sample_weight, tf.float32)
        return inputs, targets, weights

    return datasets[name].map(complete, num_parallel_calls=tf.data.AUTOTUNE)
