"""Figures of updates: what one is, and how a trainer records those that it shows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from multihead._ground import replicas
from multihead._update.products import cosines_of
from multihead._update.spec import UpdateSpec
from multihead._update.update import Update
from multihead.telemetry._recorded import Recorded


class Figure(NamedTuple):
    """A figure in the logs, over the applied updates of the epoch so far.

    Attributes:
        name: Its name; logged as `{head}_{name}` if there is one per head, and `{head}_{other}_{name}` if one per pair.
        value: Computes it from an update: a scalar, `[num_heads]`, or `[num_heads, num_heads]` for pairs; None if the
            update does not provide it. Of several replicas, each returns the whole figure.
        is_shown: Whether a trainer with this spec and level logs it.
        per: `"head"`: one per head, over the updates that train the head; `"pair"`: one per pair of heads, over those that
            train both; `"update"`: one.
        metric: How updates are aggregated: `keras.metrics.Mean` or `keras.metrics.Sum`.
        averaged: Whether `"full"` also shows its running average.
    """

    name: str
    value: Callable[[Update], tf.Tensor | None]
    is_shown: Callable[[UpdateSpec, str | None], bool]
    per: str = "head"
    metric: Any = keras.metrics.Mean
    averaged: bool = False


class UpdateFigures:
    """The figures of updates that a trainer shows.

    Args:
        spec: How updates are computed.
        level: The value of `telemetry=`.
        figures: All figures; those that are shown are recorded.
        latest: The number of latest updates that are kept.
    """

    def __init__(self, spec: UpdateSpec, level: str | None, figures: Sequence[Figure], latest: int) -> None:
        self._spec = spec
        self._heads = [head.name for head in spec.network.heads]
        shown = [figure for figure in figures if figure.is_shown(spec, level)]
        self._means = [figure for figure in shown if figure.metric is keras.metrics.Mean]
        self._sums = [figure for figure in shown if figure.metric is not keras.metrics.Mean]
        self._losses = [] if level is None else ["loss", *(f"{head}_loss" for head in self._heads)]
        averaged = [name for figure in self._means if figure.averaged for name in self._names(figure)]
        self._recorded: Recorded | None = None
        self._layers = [] if not spec.layers_every else [(layer, n) for layer in spec.layers.names for n in self._of_layer()]
        if shown or self._losses:
            self._recorded = Recorded(
                means=[*self._losses, *(name for figure in self._means for name in self._names(figure))],
                sums=[name for figure in self._sums for name in self._names(figure)],
                averages=[*self._losses, *averaged] if level == "full" else [],
                others=[f"{name}@{layer}" for layer, name in self._layers],
                latest=latest,
            )

    @property
    def metrics(self) -> list[Any]:
        """What holds them, as a list of metrics."""
        return [] if self._recorded is None else [self._recorded]

    def _names(self, figure: Figure) -> list[str]:
        if figure.per == "update":
            return [figure.name]
        if figure.per == "head":
            return [f"{head}_{figure.name}" for head in self._heads]
        return [f"{self._heads[i]}_{self._heads[j]}_{figure.name}" for i, j in self._spec.pairs]

    def _of_layer(self) -> list[str]:
        """The names of the figures of one layer, in the order of `_values_of_layers`."""
        pairs = itertools.combinations(self._heads, 2)
        of_heads = [f"{head}_{name}" for name in ("norm", "share", "update_cosine") for head in self._heads]
        return [*of_heads, *(f"{one}_{other}_cosine" for one, other in pairs), "update_norm"]

    def update(self, update: Update, applied: tf.Tensor) -> None:
        """Adds one update; see `telemetry.LogMetrics`."""
        if self._recorded is None:
            return
        values, counts = [], []
        if self._losses:
            total = update.total.total + update.added_loss
            values += [total[tf.newaxis], tf.math.divide_no_nan(update.loss_sums, update.total_counts)]
            counts += [applied[tf.newaxis], applied & update.active]
        for figure in (*self._means, *self._sums):
            found, is_counted = self._value(figure, update)
            values.append(tf.cast(found, tf.float32) / replicas.num_replicas())
            counts.append(applied & is_counted)
        everything = tf.concat(values, axis=0)
        is_counted = tf.concat(counts, axis=0) & tf.math.is_finite(everything)
        self._recorded.update_state(everything, is_counted, self._values_of_layers(update, applied), applied)

    def _value(self, figure: Figure, update: Update) -> tuple[tf.Tensor, tf.Tensor]:
        """A figure of an update as a vector, and for which of its entries the update counts."""
        found, pairs, active = figure.value(update), self._spec.pairs, update.active
        number = len(self._names(figure))
        if found is None or not number:
            return tf.zeros([number]), tf.zeros([number], tf.bool)
        if figure.per == "update":
            return found[tf.newaxis], tf.ones([1], tf.bool)
        if figure.per == "head":
            return found, active
        both = tf.stack([active[i] & active[j] for i, j in pairs])
        return tf.gather_nd(found, tf.constant(pairs)), both

    def _values_of_layers(self, update: Update, applied: tf.Tensor) -> tf.Tensor:
        """The figures of all layers in one vector; NaN in updates that do not measure them."""
        measured = self._spec.measures_layers_at(update.step)
        nothing = tf.fill([len(self._layers)], float("nan"))
        if update.by_layer is None or measured is None:
            return nothing
        by_layer, coefficients = update.by_layer, update.combined.coefficients

        def values() -> tf.Tensor:
            norms, cosines = tf.sqrt(tf.linalg.diag_part(by_layer)), cosines_of(by_layer)
            of_heads = tf.cast(norms[:, :-1], tf.float32)
            parts = tf.abs(coefficients) * of_heads
            shares = tf.math.divide_no_nan(parts, tf.reduce_sum(parts, axis=1, keepdims=True))
            pairs = [cosines[:, i, j, tf.newaxis] for i, j in itertools.combinations(range(len(self._heads)), 2)]
            of_update = tf.cast(norms[:, -1:], tf.float32)
            found = tf.concat([of_heads, shares, cosines[:, :-1, -1], *pairs, of_update], axis=1)
            return tf.reshape(found, [-1]) / replicas.num_replicas()

        return tf.cond(measured & applied, values, lambda: nothing)

    def results(self) -> tuple[dict[str, tf.Tensor], dict[str, dict[str, tf.Tensor]], dict[str, tf.Tensor]]:
        """The figures of the epoch by name: of updates, of each head, and of pairs of heads."""
        found = {} if self._recorded is None else self._recorded.by_name()

        def some(names: Sequence[str]) -> dict[str, tf.Tensor]:
            with_averages = [each for name in names for each in (name, f"{name}_average")]
            return {name: found[name] for name in with_averages if name in found}

        shown = (*self._means, *self._sums)
        of_update = [name for figure in shown if figure.per == "update" for name in self._names(figure)]
        of_pairs = [name for figure in shown if figure.per == "pair" for name in self._names(figure)]
        of_heads = {}
        for head in self._heads:
            loss = {name: found[name] for name in [f"{head}_loss_average"] if name in found}
            of_heads[head] = {**loss, **some([f"{head}_{figure.name}" for figure in shown if figure.per == "head"])}
        total = {name: found[name] for name in ["loss_average"] if name in found}
        return {**total, **some(of_update)}, of_heads, some(of_pairs)

    def latest(self) -> list[dict[str, Any]]:
        """The figures of the latest updates, oldest first: by name, `applied`, and `layers` where they were measured.

        What an update does not have is None.
        """
        rows = [] if self._recorded is None else self._recorded.read_latest()
        return [self._line(row) for row in rows]

    def _line(self, row: np.ndarray) -> dict[str, Any]:
        values = [float(value) if np.isfinite(value) else None for value in row]
        first = len(values) - 1 - len(self._layers)
        columns = [] if self._recorded is None else self._recorded.columns
        sums = [name for figure in self._sums for name in self._names(figure)]
        line: dict[str, Any] = {name: value for name, value in zip(columns[:first], values) if name not in sums}
        layers: dict[str, dict[str, Any]] = {}
        for (layer, name), value in zip(self._layers, values[first:]):
            layers.setdefault(layer, {})[name] = value
        if any(value is not None for value in values[first:-1]):
            line["layers"] = layers
        return {"applied": bool(row[-1] > 0.5), **line}

    @property
    def num_recorded(self) -> int:
        """The number of updates so far, skipped ones included."""
        return 0 if self._recorded is None else self._recorded.num_recorded

    @property
    def averaged(self) -> list[str]:
        """The names of figures with a running average."""
        return [] if self._recorded is None else self._recorded.averaged

    @property
    def has_averages(self) -> bool:
        """Whether running averages are of anything yet."""
        return self._recorded is not None and self._recorded.has_averages

    def restore_averages(self, values: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """See `Recorded.restore_averages`."""
        if self._recorded is not None:
            self._recorded.restore_averages(values, counts)
