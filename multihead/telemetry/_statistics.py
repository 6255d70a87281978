"""Records the statistics of updates that a trainer shows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.tensors import where
from multihead._update.products import cosines_of
from multihead._update.spec import UpdateSpec
from multihead._update.update import Update
from multihead.telemetry._epoch_sums import Read
from multihead.telemetry._layout import OF_LAYER, Layout, Statistic
from multihead.telemetry._recorded import Recorded


class UpdateStatistics:
    """The statistics of updates that a trainer shows.

    Args:
        spec: How updates are computed.
        level: The value of `telemetry=`.
        statistics: All statistics; those that are shown are recorded.
        latest: The number of latest updates that are kept.

    Attributes:
        layout: Where each statistic lies in the recorded vectors.
    """

    def __init__(self, spec: UpdateSpec, level: str | None, statistics: Sequence[Statistic], latest: int) -> None:
        self._spec = spec
        self.layout = Layout.of(spec, level, statistics)
        self._recorded = Recorded(self.layout, latest)

    @property
    def metrics(self) -> list[Any]:
        """The metric that holds them, as a list; empty if no statistic is shown."""
        return [self._recorded] if self.layout.shown else []

    def update(self, update: Update, applied: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor] | None:
        """This replica's part of the statistics, and for how many updates each counts; None if none is shown."""
        if not self.layout.shown:
            return None
        found = [self._value(statistic, len(names), update) for statistic, names in self.layout.shown]
        values = tf.concat([value for value, _ in found], axis=0)
        is_counted = applied & tf.concat([counts for _, counts in found], axis=0) & tf.math.is_finite(values)
        self._recorded.update_state(values, is_counted, self._values_of_layers(update, applied), applied)
        return where(is_counted, values, 0.0), replicas.part_of(tf.cast(is_counted, tf.float32))

    def _value(self, statistic: Statistic, number: int, update: Update) -> tuple[tf.Tensor, tf.Tensor]:
        """This replica's part of a statistic, `[number]` float32, and for which of its values the update counts."""
        found, pairs, active = statistic.value(update), self._spec.pairs, update.active
        if found is None or not number:
            return tf.zeros([number]), tf.zeros([number], tf.bool)
        found = tf.cast(found, tf.float32)
        if statistic.metric is not None:
            found = replicas.part_of(found)
        if statistic.per == "update":
            return tf.reshape(found, [1]), tf.ones([1], tf.bool)
        if statistic.per == "head":
            return found, active
        both = tf.stack([active[i] & active[j] for i, j in pairs])
        return tf.gather_nd(found, tf.constant(pairs)), both

    def _values_of_layers(self, update: Update, applied: tf.Tensor) -> tf.Tensor:
        """The statistics of all layers in one vector; NaN in updates that do not measure them."""
        if not self.layout.num_of_layers:
            return tf.zeros([0])
        measured = self._spec.measures_layers_at(update.step)
        nothing = tf.fill([self.layout.num_of_layers], float("nan"))
        if update.by_layer is None or measured is None:
            return nothing
        by_layer, coefficients = update.by_layer, update.combined.coefficients

        def values() -> tf.Tensor:
            norms, cosines = tf.sqrt(tf.linalg.diag_part(by_layer)), cosines_of(by_layer)
            of_heads = tf.cast(norms[:, :-1], tf.float32)
            parts = tf.abs(coefficients) * of_heads
            pairs = [cosines[:, i, j, tf.newaxis] for i, j in itertools.combinations(range(of_heads.shape[1]), 2)]
            found = {
                "norm": of_heads,
                "share": tf.math.divide_no_nan(parts, tf.reduce_sum(parts, axis=1, keepdims=True)),
                "update_cosine": cosines[:, :-1, -1],
                "cosine": tf.concat(pairs, axis=1) if pairs else of_heads[:, :0],
                "update_norm": tf.cast(norms[:, -1:], tf.float32),
            }
            return replicas.part_of(tf.reshape(tf.concat([found[name] for name in OF_LAYER], axis=1), [-1]))

        return tf.cond(measured & applied, values, lambda: nothing)

    def by_name(self, read: Read) -> dict[str, tf.Tensor]:
        """The statistics of the epoch so far and the running averages, by name.

        Args:
            read: The sum of each statistic over the updates, and their means. Those that counted in no update are 0, or
                NaN if updates need not measure them.
        """
        means = read.known if self._spec.combiner.may_reuse else read.means
        of = [read.sums if is_sum else means for is_sum in self.layout.is_sum]
        values = [each.statistics[i] for i, each in enumerate(of)]
        averages = self._recorded.averages_by_name() if self.layout.shown else {}
        return {**dict(zip(self.layout.names, values)), **averages}

    def latest(self) -> list[dict[str, Any]]:
        """The statistics of the latest updates by name, oldest first; see `Layout.line`."""
        return [self.layout.line(row) for row in self._recorded.read_latest()]

    @property
    def num_recorded(self) -> int:
        """The number of updates so far, including skipped ones."""
        return self._recorded.num_recorded

    @property
    def has_averages(self) -> bool:
        """Whether any update has contributed to a running average yet."""
        return self._recorded.has_averages

    def restore_averages(self, values: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """See `Recorded.restore_averages`."""
        self._recorded.restore_averages(values, counts)
