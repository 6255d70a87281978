"""Windows of consecutive batches as the elements of a dataset: how `gradient_accumulation_steps` works in `fit`.

One element is one update, so Keras counts updates: steps, progress bar, callbacks and `steps_per_execution` work as usual.
"""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from multihead._data.batch import batch_size, rows, sample_of
from multihead._ground.calls import as_is
from multihead._ground.types import Dataset, Nested

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
    empty = sample_of(batches.element_spec, 0)

    @as_is
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
    """One element per window and replica of this worker, each with the replica's part of every batch."""
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
