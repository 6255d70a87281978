"""The recorded lines of `benchmarks.equal_cost`: their names, figures and changes against alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks._published import PLAIN, RESULTS
from multihead.comparison import Difference
from multihead.comparison._findings import difference_of, relative_changes

LINES = RESULTS / "equal_cost.jsonl"
ALONE, ENDING = "alone", ", equal cost"
RATES = ", rates as alone"
"""What follows the name of a variant whose heads have the learning rates that were chosen for them alone."""

Line = Mapping[str, Any]


def values(line: Line, variant: str, part: str = "figures") -> np.ndarray:
    """The figures of a variant on the test data, `[heads, seeds]`; NaN where training did not stay finite.

    A variant may have the first of the line's seeds only. Those on the `"validation"` data are not known of all variants.
    """
    return np.array([line[part][variant][head] for head in line["directions"]], float)


def with_alone(line: Line, variant: str) -> tuple[np.ndarray, np.ndarray]:
    """The figures of a variant, and of each head alone at the same seeds."""
    found = values(line, variant)
    return found, values(line, ALONE)[:, : found.shape[1]]


def signs(line: Line) -> np.ndarray:
    """1 for a head whose figure is better when higher, and -1 for the others, `[heads]`."""
    return np.array([1.0 if each == "max" else -1.0 for each in line["directions"].values()])


def change(line: Line, variant: str) -> Difference:
    """The mean relative change against alone, delta-m, in percent."""
    return difference_of(100 * relative_changes(*with_alone(line, variant), signs(line)), 0.95)


def of_heads(line: Line, variant: str) -> dict[str, Difference]:
    """The relative change of each head against alone, in percent."""
    pairs = zip(line["directions"], *with_alone(line, variant), signs(line))
    found = {}
    for head, each, alone, sign in pairs:
        found[head] = difference_of(100 * relative_changes(each[None], alone[None], sign[None]), 0.95)
    return found


def is_fixed(line: Line, variant: str) -> bool:
    """Whether a variant is a sum with fixed weights."""
    return variant == PLAIN or variant.rpartition(" ")[0] in line["directions"]


def first_weight(line: Line, variant: str) -> float:
    """The weight of the first head over that of the others in a variant with fixed weights, from its name; 1 for another."""
    head, _, weight = variant.removesuffix(ENDING).rpartition(" ")
    if head not in line["directions"]:
        return 1.0
    return float(weight) if head == next(iter(line["directions"])) else 1 / float(weight)
