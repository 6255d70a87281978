"""The metric that holds the figures of updates: their means over an epoch, running averages, and the latest updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.keras import Untracked, first_replica_variable, tensor_variable

DECAY = 0.98
"""The decay of running averages per update: half of the weight is on the last 34 updates."""


class Recorded(keras.metrics.Metric):
    """The figures of updates, in a few vectors, so that any number of figures costs few operations.

    A replica holds its part of each figure; a read from outside adds up the parts.

    Args:
        means: The names of figures that are averaged over the epoch.
        sums: The names of figures that are added up.
        averages: The names of those figures that also have a running average.
        others: The names of figures that are only kept for the latest updates.
        latest: The number of latest updates that are kept.
    """

    def __init__(
        self, *, means: Sequence[str], sums: Sequence[str], averages: Sequence[str], others: Sequence[str], latest: int
    ) -> None:
        super().__init__(name="recorded", dtype="float32")
        self.names = [*means, *sums]
        self.averaged = list(averages)
        self.columns = [*self.names, *(f"{name}_average" for name in averages), *others, "applied"]
        self._num_sums = len(sums)
        self._positions = [self.names.index(name) for name in averages]
        size = len(self.names)
        self.totals = self.add_weight(name="totals", shape=(size,), initializer="zeros")
        self.weights_of_totals = self.add_weight(name="weights_of_totals", shape=(size,), initializer="zeros")
        self.averages = self.add_weight(name="averages", shape=(len(averages),), initializer="zeros")
        self.average_counts = self.add_weight(name="average_counts", shape=(len(averages),), initializer="zeros")
        self.latest = self.add_weight(name="latest", shape=(latest, len(self.columns)), initializer="zeros")
        self._num_recorded = Untracked(first_replica_variable(tf.constant(0, tf.int64)))

    def update_state(self, values: tf.Tensor, counts: tf.Tensor, others: tf.Tensor, applied: tf.Tensor) -> None:
        """Adds one update.

        Args:
            values: This replica's part of each figure of `names`.
            counts: Whether each of them counts in this update.
            others: This replica's part of the figures of `others`; NaN where there is none.
            applied: Whether the update was applied.
        """
        part = 1.0 / replicas.num_replicas()
        used = tf.where(counts, values, 0.0)
        self.totals.assign_add(used)
        self.weights_of_totals.assign_add(tf.where(counts, part, 0.0))
        columns = [tf.where(counts, values, float("nan"))]
        if self._positions:
            columns.append(self._average(tf.gather(used, self._positions), tf.gather(counts, self._positions), part))
        columns += [others, [tf.where(applied, part, 0.0)]]
        row = tf.concat(columns, axis=0)[tf.newaxis]
        kept = tensor_variable(self.latest)
        kept.assign(row if kept.shape[0] == 1 else tf.concat([kept.read_value()[1:], row], axis=0))
        self._num_recorded.value.assign_add(1)

    def _average(self, values: tf.Tensor, counts: tf.Tensor, part: float) -> tf.Tensor:
        """Moves the running averages: with `n` updates so far, by `(1 - decay) / (1 - decay^n)` of the difference.

        This is the exponential average divided by `1 - decay^n`, which is that without a bias towards the initial value.
        """
        averages, numbers = tensor_variable(self.averages), tensor_variable(self.average_counts)
        number = numbers.read_value() + tf.where(counts, part, 0.0)
        rate = (1 - DECAY) / (1 - tf.pow(DECAY, tf.maximum(number / part, 1.0)))
        old = averages.read_value()
        new = tf.where(counts, old + rate * (values - old), old)
        averages.assign(new)
        numbers.assign(number)
        return tf.where(number > 0, new, float("nan"))

    def reset_state(self) -> None:
        """Resets what is of an epoch; running averages and the latest updates stay."""
        for variable in (self.totals, self.weights_of_totals):
            variable.assign(tf.zeros(variable.shape))

    def result(self) -> tf.Tensor:
        """The figures of `names`, over the epoch so far; 0 for what did not count in any update."""
        totals, weights = (tf.convert_to_tensor(tensor_variable(v)) for v in (self.totals, self.weights_of_totals))
        end = len(self.names) - self._num_sums
        return tf.concat([tf.math.divide_no_nan(totals[:end], weights[:end]), totals[end:]], axis=0)

    def by_name(self) -> dict[str, tf.Tensor]:
        """The results by name, running averages included."""
        results = dict(zip(self.names, tf.unstack(self.result(), num=len(self.names))))
        averages = tf.convert_to_tensor(tensor_variable(self.averages))
        counts = tf.convert_to_tensor(tensor_variable(self.average_counts))
        known = tf.unstack(tf.where(counts > 0, averages, float("nan")), num=len(self.averaged))
        return {**results, **{f"{name}_average": value for name, value in zip(self.averaged, known)}}

    @property
    def number_variable(self) -> tf.Variable:
        """The variable that counts the updates."""
        return self._num_recorded.value

    @property
    def num_recorded(self) -> int:
        """The number of updates so far, skipped ones included."""
        return int(tf.convert_to_tensor(self._num_recorded.value))

    def read_latest(self) -> np.ndarray:
        """`[updates, columns]`: the latest updates, oldest first; what an update does not have is NaN."""
        number = self.num_recorded
        rows = np.asarray(tf.convert_to_tensor(tensor_variable(self.latest)))
        return rows[len(rows) - min(number, len(rows)) :]

    @property
    def has_averages(self) -> bool:
        """Whether a running average is of anything yet."""
        return bool(tf.reduce_any(tf.convert_to_tensor(tensor_variable(self.average_counts)) > 0))

    def restore_averages(self, values: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """Sets running averages, of a run that continues, by the names of their figures."""
        known = [values.get(name) is not None for name in self.averaged]
        new = [values[name] if is_known else 0.0 for name, is_known in zip(self.averaged, known)]
        numbers = [counts.get(name, 0) if is_known else 0 for name, is_known in zip(self.averaged, known)]
        tensor_variable(self.averages).assign(tf.constant(new, tf.float32))
        tensor_variable(self.average_counts).assign(tf.constant(numbers, tf.float32))
