"""The fronts of `benchmarks.equal_cost`: sums with fixed weights of two heads, and how far rules are beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._as_large import LARGE
from benchmarks._equal_cost_lines import (
    ALONE,
    ENDING,
    RATES,
    Line,
    first_weight,
    is_fixed,
    of_heads,
    signs,
    values,
    with_alone,
)
from benchmarks._published import markdown, number_of, spread
from benchmarks._results import read_lines
from multihead._display.front import Point, draw_front

STUDY, DIGITS = ("study", "Adam"), ("multimnist_cl_rr", "Adam")
"""The data sets and optimizers with a grid of weights."""
RESAMPLES = 1000


def front_of(lines: Sequence[Line], which: tuple[str, str]) -> str:
    """The variants of a data set with an optimizer, in Markdown; empty without them or without a grid of weights.

    The fixed weights come first, by the weight of the first head.
    """
    line = _line(lines, which)
    weights = [] if line is None else _weights(line)
    if line is None or len(weights) < 3:
        return ""
    others = [variant for variant in line["figures"] if not variant.endswith(ENDING) and variant not in weights]
    rows = []
    for variant in (*weights, *others):
        twice = f"{variant}{ENDING}" if f"{variant}{ENDING}" in line["figures"] else None
        cells = [spread(each) for each in values(line, variant)]
        cells += [spread(each) for each in values(line, twice)] if twice else [""] * len(line["directions"])
        seeds = values(line, variant).shape[1]
        is_rule = (
            variant in others and variant != ALONE and not variant.endswith(LARGE)
        )  # of the same model as the fixed weights
        fewer = "" if seeds == len(line["seeds"]) else f"; {number_of(range(seeds))}"
        lead = beyond(line, variant) if is_rule else (np.nan,)
        rows.append(
            [variant, *cells, "{:+.1f} ({:+.1f} to {:+.1f})".format(*lead) + fewer if np.isfinite(lead).all() else ""]
        )
    metrics = list(line["metrics"].values())
    title = (
        f"{which[0]}: {line['updates'][ALONE]} updates, {which[1]}, {number_of(line['seeds'])}, test data; {line['keras']}"
    )
    columns = ["variant", *metrics, *(f"{each} at equal cost" for each in metrics), "beyond the fixed weights, percent"]
    return f"{title}\n\n" + markdown(columns, rows)


def beyond(line: Line, variant: str) -> tuple[float, float, float]:
    """How far a variant is beyond the front of the fixed weights, in percent of the figures alone, with a 95 % interval.

    The front joins the weights' mean relative changes against alone, by the change of the first head, as in the picture; it
    ends at the outermost weights. The distance is the least, over the points of the front, of the largest lead of the
    variant in one of the heads: so much could both heads lose before a point of the front is better for both. Below 0, a
    point of the front is better for both heads by as much. The interval is that of the percentiles of 1,000 resamples of the
    seeds. NaN if the variant lacks a figure; weights that lack one are left out.
    """
    changes = {name: _changes(line, name) for name in (variant, *_weights(line))}
    seeds = min(each.shape[1] for each in changes.values())
    changes = {name: each for name, each in changes.items() if name == variant or np.isfinite(each[:, :seeds]).all()}
    draws = np.random.default_rng(0).integers(0, seeds, (RESAMPLES, seeds))
    found = [_distance(changes, variant, each) for each in (np.arange(seeds), *draws)]
    return found[0], *np.quantile(found[1:], [0.025, 0.975])  # type: ignore[return-value]


def _distance(changes: dict[str, np.ndarray], variant: str, seeds: np.ndarray) -> float:
    means = {name: each[:, seeds].mean(axis=1) for name, each in changes.items()}
    here = means.pop(variant)
    corners = np.array(sorted(map(list, means.values())))
    shares = np.linspace(0, 1, 100)[:, None, None]
    points = (corners[:-1] + shares * (corners[1:] - corners[:-1])).reshape(-1, len(here))
    return float((here - points).max(axis=1).min())


def _changes(line: Line, variant: str) -> np.ndarray:
    """The changes of a variant against alone, in percent of the mean figures alone, `[heads, seeds]`."""
    found, alone = with_alone(line, variant)
    return 100 * signs(line)[:, None] * (found - alone) / alone.mean(axis=1, keepdims=True)


def _line(lines: Sequence[Line], which: tuple[str, str]) -> Line | None:
    return next((each for each in lines if (each["set"], each["optimizer"]) == which), None)


def _weights(line: Line) -> list[str]:
    """The variants with fixed weights in as many updates, by the weight of the first head."""
    return sorted(
        (variant for variant in line["figures"] if is_fixed(line, variant)), key=lambda variant: first_weight(line, variant)
    )


def draw_front_of(path: Path, which: tuple[str, str]) -> Any:
    """Draws the variants of a data set with an optimizer, with an axis for each head; None without a line.

    Those with a larger encoder, or with other learning rates for the heads, are left out.

    Args:
        path: The file of the results.
        which: The data set and the optimizer.
    """
    line = _line(read_lines(path), which)
    if line is None:
        return None
    points = []
    for variant in (variant for variant in line["figures"] if LARGE not in variant and RATES not in variant):
        base = variant.removesuffix(ENDING)
        role = ALONE if variant == ALONE else "fixed" if is_fixed(line, base) else "rule"
        means, deviations = zip(*((each.mean(), each.std(ddof=1)) for each in values(line, variant)))
        changes = [each.mean for each in of_heads(line, variant).values()]
        points.append(Point(variant, role, base if base != variant else None, means, deviations, changes))
    return draw_front(points, line["metrics"], line["directions"], len(line["seeds"]), "test")
