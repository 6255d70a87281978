"""Windows of consecutive batches as the elements of a dataset: what `accumulate_steps` passes to Keras's training loop.

One element is one update, so Keras counts updates: steps, progress bar, callbacks and `steps_per_execution` work as usual.
"""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_KEY = "window"


def is_window(data: Any) -> bool:
    """Whether the data that Keras passes to a training step are a window of batches."""
    return isinstance(data, dict) and set(data) == {_KEY}


def batches_of(data: Any) -> list[Any]:
    """The batches of a window; a list of one batch if the data are not a window."""
    return list(data[_KEY]) if is_window(data) else [data]


class Windows:
    """Groups the data of `fit` into windows of batches.

    Args:
        steps: Batches per window. If the last window of an epoch has fewer, it is padded with empty batches.
        strategy: The strategy that `fit` runs under.
    """

    def __init__(self, steps: int, strategy: tf.distribute.Strategy) -> None:
        self._steps = steps
        self._strategy = strategy

    def arguments_of_fit(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Converts the named arguments of `fit` on batches to those of `fit` on windows.

        Raises:
            ValueError: The data cannot be grouped into windows: they are neither a dataset nor arrays, or their length is
                unknown and there are several replicas.
        """
        arguments = dict(arguments)
        batches = self._batches(arguments)
        if self._strategy.num_replicas_in_sync == 1:
            return {**arguments, "x": self._windows(batches)}
        windows = self._windows(batches)
        if arguments.get("steps_per_epoch") is None:
            length = int(windows.cardinality())
            if length < 0:
                raise ValueError(
                    "`steps_per_epoch` is required with accumulate_steps on several replicas if the cardinality of the "
                    "dataset is unknown or infinite. Received: steps_per_epoch=None. Pass the number of updates per epoch."
                )
            arguments["steps_per_epoch"] = length
        distributed = self._strategy.distribute_datasets_from_function(
            lambda context: self._of_replicas(windows.repeat(), context)
        )
        return {**arguments, "x": distributed}

    def _batches(self, arguments: dict[str, Any]) -> tf.data.Dataset:
        x, y = arguments.pop("x"), arguments.pop("y", None)
        batch_size, shuffle = arguments.pop("batch_size", None), arguments.pop("shuffle", True)
        sample_weight = arguments.pop("sample_weight", None)
        if arguments.pop("validation_split", 0.0):
            raise ValueError(
                "`validation_split` cannot be combined with accumulate_steps. "
                f"Received: accumulate_steps={self._steps}. Pass `validation_data`."
            )
        if isinstance(x, tf.data.Dataset):
            return x
        if y is None or not all(isinstance(leaf, np.ndarray) or tf.is_tensor(leaf) for leaf in tf.nest.flatten((x, y))):
            raise ValueError(
                "`x` must be a `tf.data.Dataset` of batches, or arrays together with `y`, for accumulate_steps. "
                f"Received: x of type {type(x).__name__}. Wrap a generator with `tf.data.Dataset.from_generator`."
            )
        parts = (x, y) if sample_weight is None else (x, y, sample_weight)
        examples = tf.data.Dataset.from_tensor_slices(parts)
        if shuffle:
            examples = examples.shuffle(int(examples.cardinality()), reshuffle_each_iteration=True)
        return examples.batch(batch_size or 32)

    def _windows(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        empty = tf.nest.map_structure(_empty, batches.element_spec)

        def as_element(*window: Any) -> dict[str, Any]:
            # A structure of datasets becomes a dataset of structures, padded to the full number of batches.
            successive = tf.data.Dataset.zip(window if len(window) > 1 else window[0])
            filled = successive.concatenate(tf.data.Dataset.from_tensors(empty).repeat(self._steps))
            return {_KEY: tuple(filled.skip(i).take(1).get_single_element() for i in range(self._steps))}

        return batches.window(self._steps).map(as_element).prefetch(1)

    def _of_replicas(self, windows: tf.data.Dataset, context: tf.distribute.InputContext) -> tf.data.Dataset:
        """One element per window and replica of this worker, each with the replica's part of every batch."""
        num_replicas = context.num_replicas_in_sync
        here = num_replicas // context.num_input_pipelines
        mine = [context.input_pipeline_id * here + i for i in range(here)]

        def part(window: Any, replica: int) -> Any:
            def of_batch(batch: Any) -> Any:
                size = tf.shape(tf.nest.flatten(batch)[0])[0]
                start, end = size * replica // num_replicas, size * (replica + 1) // num_replicas
                return tf.nest.map_structure(lambda tensor: tensor[start:end], batch)

            return {_KEY: tuple(of_batch(batch) for batch in window[_KEY])}

        def parts(window: Any) -> tf.data.Dataset:
            first, *rest = [tf.data.Dataset.from_tensors(part(window, replica)) for replica in mine]
            for other in rest:
                first = first.concatenate(other)
            return first

        return windows.flat_map(parts)


def named_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `keras.Model.fit` after `x` and `y`, by name."""
    names = [name for name in inspect.signature(keras.Model.fit).parameters if name not in ("self", "x", "y")]
    return {**dict(zip(names, args)), **kwargs}


def _empty(spec: Any) -> tf.Tensor:
    shape = [0, *(size or 0 for size in spec.shape.as_list()[1:])]
    return tf.zeros(shape, spec.dtype)
