"""The metric that holds the running averages of statistics, and those of the latest updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.keras import Untracked, first_replica_variable, tensor_variable
from multihead._ground.tensors import where
from multihead.telemetry._layout import Layout

DECAY = 0.98
"""The decay of running averages per update: half of the weight is on the last 34 updates."""


class Recorded(keras.metrics.Metric):
    """Running averages of statistics, and the statistics of the latest updates, in a few vectors to save operations.

    A replica holds its part of each statistic; a read from outside adds up the parts.

    Args:
        layout: Where each statistic lies in the vectors.
        latest: The number of latest updates that are kept.
    """

    def __init__(self, layout: Layout, latest: int) -> None:
        super().__init__(name="recorded", dtype="float32")
        self._layout = layout
        self._positions = [layout.columns[name] for name in layout.averaged]
        num_averages = len(layout.averaged)
        options: Any = {"initializer": "zeros", "dtype": "float32"}
        self.averages = self.add_weight(name="averages", shape=(num_averages,), **options)
        self.average_counts = self.add_weight(name="average_counts", shape=(num_averages,), **options)
        self.latest = self.add_weight(name="latest", shape=(latest, len(layout.columns)), **options)
        self._num_recorded = Untracked(first_replica_variable(tf.constant(0, tf.int64)))

    def update_state(self, values: tf.Tensor, counts: tf.Tensor, of_layers: tf.Tensor, applied: tf.Tensor) -> None:
        """Adds one update.

        Args:
            values: This replica's part of each statistic.
            counts: Whether each of them counts in this update.
            of_layers: This replica's part of the statistics of all layers; NaN where there is none.
            applied: Whether the update was applied.
        """
        columns = [where(counts, values, float("nan"))]
        if self._positions:
            used, is_used = tf.gather(where(counts, values, 0.0), self._positions), tf.gather(counts, self._positions)
            columns.append(self._average(used, is_used, 1.0 / replicas.num_replicas()))
        if of_layers.shape[0]:
            columns.append(of_layers)
        row = tf.concat([*columns, tf.reshape(replicas.part_of(tf.cast(applied, tf.float32)), [1])], axis=0)
        row = tf.expand_dims(row, 0)
        kept = tensor_variable(self.latest)
        kept.assign(row if kept.shape[0] == 1 else tf.concat([kept.read_value()[1:], row], axis=0))
        self._num_recorded.value.assign_add(1)

    def _average(self, values: tf.Tensor, counts: tf.Tensor, part: float) -> tf.Tensor:
        """Moves the running averages: with `n` updates so far, by `(1 - decay) / (1 - decay^n)` of the difference.

        This is the exponential average divided by `1 - decay^n`, which is that without a bias towards the initial value.
        """
        averages, numbers = tensor_variable(self.averages), tensor_variable(self.average_counts)
        number = numbers.read_value() + where(counts, part, 0.0)
        rate = (1 - DECAY) / (1 - tf.pow(DECAY, tf.maximum(number / part, 1.0)))
        old = averages.read_value()
        new = where(counts, old + rate * (values - old), old)
        averages.assign(new)
        numbers.assign(number)
        return where(number > 0, new, float("nan"))

    def reset_state(self) -> None:
        """Nothing here is of one epoch."""

    def result(self) -> tf.Tensor:
        """The running averages; NaN for those without any update."""
        averages = tf.convert_to_tensor(tensor_variable(self.averages))
        return where(tf.convert_to_tensor(tensor_variable(self.average_counts)) > 0, averages, float("nan"))

    def averages_by_name(self) -> dict[str, tf.Tensor]:
        """The running averages, by name."""
        averaged = self._layout.averaged
        return dict(zip([f"{name}_average" for name in averaged], tf.unstack(self.result()))) if averaged else {}

    @property
    def number_variable(self) -> tf.Variable:
        """The variable that counts the updates."""
        return self._num_recorded.value

    @property
    def num_recorded(self) -> int:
        """The number of updates so far, skipped ones included."""
        return int(tf.convert_to_tensor(self._num_recorded.value))

    def read_latest(self) -> np.ndarray:
        """`[updates, columns]`: the latest updates, oldest first; NaN for missing values."""
        number = self.num_recorded
        rows = np.asarray(tf.convert_to_tensor(tensor_variable(self.latest)))
        return rows[len(rows) - min(number, len(rows)) :]

    @property
    def has_averages(self) -> bool:
        """Whether any update has contributed to a running average yet."""
        return bool(tf.reduce_any(tf.convert_to_tensor(tensor_variable(self.average_counts)) > 0))

    def restore_averages(self, values: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """Sets the running averages of a resumed run, by the names of their statistics; 0 for statistics without a value."""
        known = {name: value for name, value in values.items() if value is not None}
        new = [known.get(name, 0.0) for name in self._layout.averaged]
        numbers = [counts.get(name, 0) if name in known else 0 for name in self._layout.averaged]
        tensor_variable(self.averages).assign(tf.constant(new, tf.float32))
        tensor_variable(self.average_counts).assign(tf.constant(numbers, tf.float32))
