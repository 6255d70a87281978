"""Statistics of updates, and the position of each in the vector that holds all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from multihead._update.spec import UpdateSpec
from multihead._update.update import Update

OF_LAYER = {"norm": "head", "share": "head", "update_cosine": "head", "cosine": "pair", "update_norm": "update"}
"""The statistics of an encoder layer, by name: whether there is one per head, per pair of heads, or one."""


class Statistic(NamedTuple):
    """A statistic in the logs, over the applied updates of the epoch so far.

    Attributes:
        name: Its name; logged as `{head}_{name}` if there is one per head, and `{head}_{other}_{name}` if one per pair.
        value: Computes it from an update: a scalar, `[num_heads]`, or `[num_heads, num_heads]` for pairs; None if the
            update does not provide it. Of several replicas, each returns the whole statistic.
        is_shown: Whether a trainer with this spec and level logs it.
        per: `"head"`: one per head, over the updates that train the head; `"pair"`: one per pair of heads, over those that
            train both; `"update"`: one.
        metric: How updates are aggregated: `keras.metrics.Mean` or `keras.metrics.Sum`. None for losses, which the logs
            aggregate over elements: here, each replica returns its part of them.
        averaged: Whether `"full"` also shows its running average.
    """

    name: str
    value: Callable[[Update], tf.Tensor | None]
    is_shown: Callable[[UpdateSpec, str | None], bool]
    per: str = "head"
    metric: Any = keras.metrics.Mean
    averaged: bool = False


class Shown(NamedTuple):
    """A statistic that is recorded, with the names of its values in the logs.

    Attributes:
        statistic: The statistic.
        names: One name, one per head, or one per pair of heads.
    """

    statistic: Statistic
    names: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """The vector of an update: statistics, their running averages, those of each layer, and whether it was applied.

    Attributes:
        shown: The recorded statistics, in the order of their values.
        averaged: The names of the values that have a running average.
        layers: The names of the measured encoder layers.
        of_layer: The names of the statistics of each layer, in the order of their values.
    """

    shown: tuple[Shown, ...]
    averaged: tuple[str, ...]
    layers: tuple[str, ...]
    of_layer: tuple[str, ...]

    @classmethod
    def of(cls, spec: UpdateSpec, level: str | None, statistics: Sequence[Statistic]) -> Layout:
        """The layout of a trainer with this spec and level; see `UpdateStatistics`."""
        heads = [head.name for head in spec.network.heads]
        shown = [
            Shown(statistic, _names(statistic.name, statistic.per, heads, spec.pairs))
            for statistic in statistics
            if statistic.is_shown(spec, level)
        ]
        averaged = [name for each in shown if level == "full" and each.statistic.averaged for name in each.names]
        pairs = list(itertools.combinations(range(len(heads)), 2))
        of_layer = [each for name, per in OF_LAYER.items() for each in _names(name, per, heads, pairs)]
        layers = list(spec.network.layers) if spec.layers_every else []
        return cls(tuple(shown), tuple(averaged), tuple(layers), tuple(of_layer))

    @cached_property
    def names(self) -> list[str]:
        """The names of all statistics, without averages and layers."""
        return [name for each in self.shown for name in each.names]

    @cached_property
    def columns(self) -> dict[Any, int]:
        """The position of each value in the vector, by its name or, in a layer, by the layer and the name."""
        averages = [f"{name}_average" for name in self.averaged]
        return {name: k for k, name in enumerate([*self.names, *averages, *self._of_layers, "applied"])}

    @property
    def _of_layers(self) -> list[tuple[str, str]]:
        return list(itertools.product(self.layers, self.of_layer))

    @property
    def num_of_layers(self) -> int:
        """The number of statistics of all layers."""
        return len(self.layers) * len(self.of_layer)

    @property
    def is_sum(self) -> list[bool]:
        """For each name, whether its values are added up over the updates of an epoch."""
        return [each.statistic.metric is keras.metrics.Sum for each in self.shown for _ in each.names]

    def logged(self, per: str, position: int | None = None) -> list[str]:
        """The names in the logs of the statistics of updates, of one head or of pairs, each before its average.

        Args:
            per: `"update"`, `"head"` or `"pair"`.
            position: The position of the head; None for all.
        """
        found = []
        for statistic, names in self.shown:
            for name in names[position : None if position is None else position + 1] if statistic.per == per else ():
                found += [name] if statistic.metric is not None else []
                found += [f"{name}_average"] if name in self.averaged else []
        return found

    def line(self, row: np.ndarray) -> dict[str, Any]:
        """A vector by name: `applied`, statistics, averages, and `layers` if they were measured; None for missing values."""
        values = {name: float(row[k]) if np.isfinite(row[k]) else None for name, k in self.columns.items()}
        named = [name for name, is_sum in zip(self.names, self.is_sum) if not is_sum]
        line: dict[str, Any] = {"applied": bool(row[self.columns["applied"]] > 0.5)}
        line.update({name: values[name] for name in [*named, *(f"{name}_average" for name in self.averaged)]})
        if any(values[key] is not None for key in self._of_layers):
            line["layers"] = {layer: {name: values[layer, name] for name in self.of_layer} for layer in self.layers}
        return line


def _names(name: str, per: str, heads: Sequence[str], pairs: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    """The names in the logs of the values of a statistic."""
    if per == "update":
        return (name,)
    if per == "head":
        return tuple(f"{head}_{name}" for head in heads)
    return tuple(f"{heads[i]}_{heads[j]}_{name}" for i, j in pairs)
