"""The plot of a front: what one head gains and the other pays, for several ways to train."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from multihead._display.drawing import DASHES, GREY, colour, new_figure, open_axis, title
from multihead._ground.types import Axis, Config, Figure

_MARKERS = {"alone": "*", "fixed": "o", "rule": "D"}
_EDGE = 1.03
"""Where the names stand, in widths of the axis."""


class Point(NamedTuple):
    """A variant in the plot.

    `role` is `"alone"` for the single-task models, `"fixed"` for a sum with fixed weights of the same model, otherwise
    `"rule"`; `base` is the variant that this one is at equal cost. By head: mean metrics, their standard deviations over
    seeds (NaN for one seed), and mean relative changes against alone, above 0 is better.
    """

    name: str
    role: str
    base: str | None
    means: Sequence[float]
    deviations: Sequence[float]
    changes: Sequence[float]


def draw_front(
    points: Sequence[Point], names: Mapping[str, str], directions: Mapping[str, str], seeds: int, split: str
) -> Figure:
    """Two heads have an axis each, more are side by side; `names` and `directions` are the metrics and their best ends."""
    detail, is_scatter = f"{split} data, {seeds} seed{'' if seeds == 1 else 's'}", len(names) == 2
    figure, axes = new_figure("`plots.front`", 1, 1, (5.4, 5.4) if is_scatter else (max(6.0, 2.5 + 1.1 * len(names)), 5))
    axis = axes[0, 0]
    rules = list(dict.fromkeys(point.base or point.name for point in points if point.role == "rule"))
    colours = {point.name: colour(rules.index(point.base or point.name)) for point in points if point.role == "rule"}
    colours |= {point.name: {"alone": "black", "fixed": GREY}[point.role] for point in points if point.role != "rule"}
    if is_scatter:
        points = [point for point in points if np.isfinite(point.means).all()]
        _scatter(axis, points, colours)
        hollow = "; hollow: at equal cost" if any(point.base for point in points) else ""
        title(axis, "What each head gains and pays", f"{detail}{hollow}; bars: standard deviation")
        for side, head in zip((axis.xaxis, axis.yaxis), names):
            way = "lower" if directions[head] == "min" else "higher"
            side.set_label_text(f"{names[head]} ({way} is better, and further out)", color=GREY)
            side.set_inverted(way == "lower")
        _label_points(figure, axis, {point.name: point.means for point in points}, colours)
    else:
        _parallel(figure, axis, points, list(names.values()), colours)
        dashed = "; dashed: at equal cost" if any(point.base for point in points) else ""
        title(axis, "What each head gains and pays", f"change against each head alone; {detail}{dashed}")
    return figure


def _scatter(axis: Axis, points: Sequence[Point], colours: Mapping[str, str]) -> None:
    """A point per variant, a line over those with fixed weights, and arrows to those at equal cost."""
    known = {point.name: point for point in points}
    for at_equal_cost, style in ((False, "-"), (True, "--")):
        fixed = [list(point.means) for point in points if point.role == "fixed" and bool(point.base) == at_equal_cost]
        axis.plot(*zip(*sorted(fixed)), color=GREY, lw=1.5, ls=style, alpha=0.6, zorder=1)
    for point in points:
        (x, y), (width, height), point_colour = point.means, point.deviations, colours[point.name]
        axis.errorbar([x], [y], [height], [width], color=point_colour, lw=0.8, alpha=0.5, zorder=2)
        if point.base in known:
            arrow = {"arrowstyle": "->", "color": point_colour, "lw": 0.8, "ls": ":", "shrinkA": 5, "shrinkB": 5}
            axis.annotate("", (x, y), (known[point.base].means[0], known[point.base].means[1]), arrowprops=arrow)
        if point.role == "alone":
            axis.axvline(x, color=GREY, lw=0.8, ls=":", zorder=0)
            axis.axhline(y, color=GREY, lw=0.8, ls=":", zorder=0)
        size, face = 14 if point.role == "alone" else 7, "white" if point.base else point_colour
        axis.plot([x], [y], _MARKERS[point.role], color=point_colour, mfc=face, ms=size, zorder=3)
    axis.margins(0.1)
    axis.locator_params(axis="x", nbins=5)
    open_axis(axis)


def _label_points(figure: Figure, axis: Axis, ends: Mapping[str, Sequence[float]], colours: Mapping[str, str]) -> None:
    """Names at the right edge, apart from one another, with lines to the points that do not cross."""
    figure.draw_without_rendering()
    places = (axis.transData + axis.transAxes.inverted()).transform(list(ends.values()))
    order, apart = np.argsort(places[:, 1]), 1.3 * 9 * figure.dpi / 72 / axis.get_window_extent().height
    shifts = np.maximum.accumulate(places[order, 1] - apart * np.arange(len(order)))
    heights = np.empty(len(order))
    heights[order] = np.clip(shifts, 0, 1 - apart * (len(order) - 1)) + apart * np.arange(len(order))
    pairs = list(itertools.combinations(range(len(order)), 2))
    while crossing := [pair for pair in pairs if _cross(places[list(pair)], heights[list(pair)])]:
        one, other = crossing[0]
        heights[[one, other]] = heights[[other, one]]  # both lines together become shorter, so this ends
    for name, height in zip(ends, heights):
        axis.annotate(
            name, (ends[name][0], ends[name][1]), xytext=(_EDGE, height), textcoords="axes fraction",
            va="center", fontsize=9, color=colours[name], annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colours[name], "lw": 0.4, "relpos": (0, 0.5), "shrinkB": 4},
        )  # fmt: skip


def _cross(starts: np.ndarray, heights: np.ndarray) -> bool:
    """Whether two lines cross, which lead from two points to heights at the edge."""
    left = starts[:, 0].max()
    at_left = [b + (h - b) * (left - a) / (_EDGE - a) for (a, b), h in zip(starts, heights)]
    return bool((at_left[0] - at_left[1]) * (heights[0] - heights[1]) < -1e-12)


def _parallel(figure: Figure, axis: Axis, points: Sequence[Point], names: Sequence[str], colours: Mapping[str, str]) -> None:
    """A line per variant over the heads: its relative change against alone, above 0 is better."""
    ends, places = {}, np.arange(len(names))
    for point in points:
        changes = np.asarray(point.changes, float)
        known = np.isfinite(changes)
        if not known.any():
            continue
        look: Config = {"color": colours[point.name], "ls": DASHES[bool(point.base)], "marker": _MARKERS[point.role]}
        axis.plot(places[known], changes[known], **look, lw=2, ms=5)
        ends[point.name] = places[known][-1], changes[known][-1]
    long = sum(map(len, names)) > 12 * len(names)
    axis.set_xticks(places, names, rotation=30 if long else 0, ha="right" if long else "center")
    axis.yaxis.set_major_formatter("{x:+.1%}")
    axis.margins(x=0.02)
    axis.grid(axis="x", color="#dddddd")
    open_axis(axis)
    _label_points(figure, axis, ends, colours)
