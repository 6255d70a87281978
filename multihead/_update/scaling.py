"""Learning the scalings of targets from the training data, before the first update."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from multihead._data.batch import Batch, as_tensors, unpack
from multihead._data.data import Data, num_examples
from multihead._ground import replicas
from multihead._ground.calls import graph_function
from multihead._ground.replicas import has_several_workers
from multihead._ground.types import Config, Function, Layer, Tensor
from multihead._ground.validation import check_head_names, quoted
from multihead._update.labels import read_labels
from multihead._update.spec import UpdateSpec
from multihead.heads._named import NamedHead

_ROWS_AT_ONCE = 2**16


class Moments(NamedTuple):
    """Statistics of labels, per column or for all, as float64 tensors or arrays of one shape."""

    number: Tensor
    mean: Tensor  # 0 without labels
    squares: Tensor  # the sum of squared distances from the mean

    def plus(self, other: Moments) -> Moments:
        """The statistics of the labels of both, as NumPy arrays."""
        one, two = (Moments(*(np.asarray(moment) for moment in moments)) for moments in (self, other))
        number = one.number + two.number
        part = two.number / np.maximum(number, 1)
        apart = two.mean - one.mean
        return Moments(number, one.mean + apart * part, one.squares + two.squares + apart**2 * one.number * part)


def scale_targets(heads: Sequence[NamedHead], by_name: Config | None) -> tuple[NamedHead, ...]:
    """The heads with the scalings that `compile(target_scaling=)` gives."""
    if by_name is None:
        return tuple(heads)
    if not isinstance(by_name, Mapping):
        example = {next((head.name for head in heads), "price"): "standardize"}
        raise ValueError(
            "`target_scaling` of `compile` must be a dict by head name. "
            f"Received: target_scaling={by_name!r}. Pass, say, {example}."
        )
    check_head_names("target_scaling", by_name, [head.name for head in heads])
    return tuple(head.with_scaling(by_name[head.name]) if head.name in by_name else head for head in heads)


def warn_of_model(name: str, heads: Sequence[NamedHead]) -> None:
    """Says that the model of a trainer made by `from_model` no longer predicts in the targets' units."""
    scaled = [head.name for head in heads if head.scaling is not None]
    if scaled:
        warnings.warn(
            f"The model {name!r}, of which this trainer was made, now predicts scaled values of head {quoted(scaled)}; "
            "`trainer.to_keras()` makes a Keras model on the same layers that predicts in the targets' units. "
            "If its weights have been trained on unscaled targets, build it again.",
            UserWarning,
            stacklevel=5,
        )


def warn_of_trained_modules(heads: Sequence[NamedHead]) -> None:
    """Says that modules of heads with new scalings have learned targets in another scale: their predictions are far off."""
    if names := [head.name for head in heads if head.is_trained]:
        warnings.warn(
            f"`target_scaling` of {quoted(names)} is another one than in the updates so far: what such a module has learned "
            "now means other numbers, which can be worse than untrained ones. Build the layers of the encoder and the heads "
            "again, and pass `target_scaling` before the first `fit`.",
            UserWarning,
            stacklevel=5,
        )


def unfitted_heads(heads: Sequence[NamedHead]) -> list[NamedHead]:
    """The heads whose scaling of targets is still to be learned."""
    return [head for head in heads if head.scaling is not None and head.scaling.current.mean is None]


def check_known(heads: Sequence[NamedHead], method: str) -> None:
    lacking = unfitted_heads(heads)
    if lacking:
        raise ValueError(
            f"`target_scaling` of {quoted(head.name for head in lacking)} must be known before `{method}`: it is learned by "
            f"`fit`. Received: a trainer without a `fit`. Call `fit` first, or give the numbers: "
            "`target_scaling=scaling.Standardize(mean=..., deviation=...)`."
        )


def fit_scalings(
    heads: Sequence[NamedHead],
    data: Data,
    steps: int | None,
    names: Sequence[str],
    spec: UpdateSpec | None,
    strategy: tf.distribute.Strategy,
    *,
    eagerly: bool,
) -> None:
    """Reads the data of a call of `fit` once, and learns the scalings from them that no checkpoint has restored since.

    A resumed run reads them, too: a data set that shuffles again for every pass must come in the same order as before.
    `heads` are those whose scaling was not known when the call began, `names` those of all heads.
    """
    if not heads:
        return
    batches = None
    if spec is not None:
        masked = any(spec.network.predictions[head.name].masked for head in spec.network.heads if head in heads)
        if data.is_arrays and not masked:  # no mask of the predictions says which labels count, so that no inputs are needed
            batches = data._replace(x=np.zeros([num_examples(data.x)], "float32")).whole(_ROWS_AT_ONCE, steps)
        else:
            batches = data.whole(None, steps)
    if batches is None or spec is None:
        with_steps = "" if steps is None else f" with steps_per_epoch={steps}"
        raise ValueError(
            f"`target_scaling` of {quoted(head.name for head in heads)} cannot be learned from data that can be "
            f"read only once, or that may have no end. Received: x of type {type(data.x).__name__}{with_steps}. "
            "Give the numbers, `target_scaling=scaling.Standardize(mean=..., deviation=...)`, or pass data with an end."
        )
    heads = unfitted_heads(heads)
    if not heads and data.is_arrays:
        return
    moments = moments_of(spec, heads, (as_tensors(unpack(batch, names)) for batch in batches), eagerly=eagerly)
    for head in heads:
        _learn(head, _over_workers(moments[head.name], strategy))


def moments_of(
    spec: UpdateSpec, heads: Sequence[NamedHead], batches: Iterable[Batch], *, eagerly: bool
) -> Mapping[str, Moments]:
    """Statistics of the labels of some heads, by name, each label counted once; without heads, batches are only drawn."""
    network = replace(spec.network, heads=tuple(heads))

    def compute(batch: Batch) -> dict[str, Moments]:
        present, labels = dict[str, Moments](), read_labels(network, batch, check=spec.running.check_labels)
        for head, head_labels in zip(heads, labels):
            if head_labels is not None and head.scaling is not None:
                predicted = network.predictions[head.name].spec
                changed, counts = head.scaling.changed(head_labels.in_units, head_labels.weights, predicted, head.loss.over)
                shape = [-1, *head.scaling.mean.shape]
                values, counts = (tf.reshape(numbers, shape) for numbers in (changed, tf.cast(counts, tf.float64)))
                number = tf.reduce_sum(counts, axis=0)
                mean = tf.math.divide_no_nan(tf.reduce_sum(values * counts, axis=0), number)
                present[head.name] = Moments(number, mean, tf.reduce_sum(tf.square(values - mean) * counts, axis=0))
        return present

    measure: Function = compute if eagerly else graph_function(compute, reduce_retracing=True)
    by_name: dict[str, Moments] = {}
    for batch in batches:
        for name, moments in (measure(batch) if heads else {}).items():
            by_name[name] = by_name[name].plus(moments) if name in by_name else moments
    none = Moments(np.zeros([]), np.zeros([]), np.zeros([]))
    return {head.name: by_name.get(head.name, none) for head in heads}


def _learn(head: NamedHead, moments: Moments) -> None:
    """Sets the mean and the deviation of a head's scaling to those of labels."""
    scaling: Layer = head.scaling
    number, mean, squares = (np.asarray(moment, "float64") for moment in moments)
    deviation = np.sqrt(squares / np.maximum(number, 1))
    deviation = np.where(deviation > 0, deviation, 1.0)
    if not number.any() or not np.isfinite([mean, deviation]).all():
        received = "no label" if not number.any() else f"labels of mean {mean} and deviation {deviation}"
        raise ValueError(
            f"`target_scaling` of head {head.name!r} is learned from its labels, which must be finite. Received: "
            f"{received}. Correct the labels, or give mean and deviation: "
            f"`scaling.{type(scaling.scaling).__name__}(mean=..., deviation=...)`."
        )
    for variable, value in ((scaling.mean, mean), (scaling.deviation, deviation), (scaling.known, 1.0)):
        variable.assign(value)


def fit_scalings_to(batches: Sequence[Batch], spec: UpdateSpec, *, eagerly: bool) -> None:
    """Learns the scalings that are not known from some batches, as far as these have labels."""
    heads = unfitted_heads(spec.network.heads)
    moments = moments_of(spec, heads, batches if heads else [], eagerly=eagerly)
    for head in heads:
        if np.any(moments[head.name].number):
            _learn(head, moments[head.name])


def _over_workers(moments: Moments, strategy: tf.distribute.Strategy) -> Moments:
    if not has_several_workers(strategy):
        return moments
    num_local = len(strategy.extended.worker_devices)

    @graph_function
    def total(value: tf.Tensor) -> tf.Tensor:
        def add_up(value: tf.Tensor) -> tf.Tensor:
            return replicas.all_reduce_sum(value / num_local)

        return replicas.local(strategy, strategy.run(add_up, args=(value,)))

    number, mean, squares = (np.asarray(moment, "float64") for moment in moments)
    all_numbers, sums = total(tf.constant([number, number * mean])).numpy()
    center = sums / np.maximum(all_numbers, 1)
    return Moments(all_numbers, center, total(tf.constant(squares + number * (mean - center) ** 2)).numpy())
