"""What it costs that coefficients are known one update before: `NormFloor` beside itself with the norms of this update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.research import tables
from benchmarks.research.record import EQUAL_COST, Line, comparison
from multihead import balancing
from multihead.balancing._rows import unit_rows

THIS = ", this update"
FLOORS = {"NormFloor": balancing.NormFloor().floor, "NormFloor 1": 1.0}
"""The variants that have another with `THIS` at the end of its name."""


class FromThisUpdate(balancing.NormFloor):
    """`NormFloor` with running norms up to this update, for which the heads' gradients have to be there first."""

    lags = False

    def known(self, step: tf.Tensor, active: tf.Tensor) -> None:
        return None

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        super().coefficients(gramian)  # moves the running norms
        rows = unit_rows(gramian)
        return rows.coefficients(rows.norms * self._coefficients())


def table(lines: Sequence[Line]) -> str:
    """A row for each data set and head: how much better it is with the lag, in percent, with an interval of 95 %."""
    rows = []
    for line in lines:
        pairs = [
            (f"{name}{ending}", f"{name}{THIS}{ending}")
            for ending in ("", EQUAL_COST)
            for name in FLOORS
            if f"{name}{THIS}{ending}" in line["values"]
        ]
        found = {pair: comparison(line, pair) for pair in pairs}
        for head in line["directions"] if pairs else ():
            cells = [_percent(each, head, *pair) for pair, each in found.items()]
            rows.append([line["set"], head, *[""] * (len(FLOORS) - len(cells)), *cells])
    return tables.markdown(["data set", "head", *(f"`NormFloor({floor})`" for floor in FLOORS.values())], rows)


def _percent(found: Any, head: str, lagging: str, this: str) -> str:
    """How much better a head is with the lag, in percent of its metric without."""
    return tables.interval(found.difference(lagging, head, this), scale=100 / abs(float(np.mean(found.values(this, head)))))
