"""The plot of a front: what one head gains and the other pays, for several ways to train."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from multihead._display.drawing import DASHES, GREY, colour, legend, new_figure, open_axis, title
from multihead._ground.types import Axis, Figure

_WHAT = "`plots.front`"
_MARKERS = {"alone": "*", "fixed": "o", "rule": "D"}
_FIXED = "#555555"


class Point(NamedTuple):
    """A variant in the plot.

    Attributes:
        name: Its name.
        role: `"alone"` for the single-task models, `"fixed"` for a sum with fixed weights of the same model, otherwise
            `"rule"`.
        base: The variant that this one is at equal cost; None for a variant in the same number of updates.
        means: The mean metric of each head.
        deviations: Its standard deviation over seeds; NaN for one seed.
        changes: The mean relative change of each head against alone; above 0 is better.
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
    """Draws variants of two heads with an axis for each head, and variants of more heads as lines over the heads.

    `names` are the heads' metrics, and `directions` `"max"` or `"min"`, by head name.
    """
    colours, heads = _colours(points), list(names)
    details = [f"{split} data, {seeds} seed{'' if seeds == 1 else 's'}"]
    has_twice = any(point.base for point in points)
    if len(heads) == 2:
        figure, axes = new_figure(_WHAT, 1, 1, (8, 6))
        _scatter(axes[0, 0], points, [names[head] for head in heads], [directions[head] for head in heads], colours)
        details[0] += "; line: fixed weights"
        details += ["hollow: at equal cost"] * has_twice + ["bars: standard deviation"] * (seeds > 1)
    else:
        figure, axes = new_figure(_WHAT, 1, 1, (max(6.0, 2.5 + 1.1 * len(heads)), 5))
        _parallel(axes[0, 0], points, list(names.values()), colours)
        details = ["change against each head alone", *details, *["dashed: at equal cost"] * has_twice]
    title(axes[0, 0], "What each head gains and pays", "; ".join(details))
    return figure


def _colours(points: Sequence[Point]) -> dict[str, str]:
    """A colour for each variant; a variant at equal cost has that of its base."""
    rules = [point.name for point in points if point.role == "rule" and point.base is None]
    found = {name: colour(k) for k, name in enumerate(rules)}
    for point in points:
        plain = {"alone": "black", "fixed": _FIXED}.get(point.role, colour(len(rules)))
        found.setdefault(point.name, found.get(point.base or "", plain))
    return found


def _scatter(
    axis: Axis, points: Sequence[Point], names: Sequence[str], directions: Sequence[str], colours: Mapping[str, str]
) -> None:
    known = [point for point in points if np.isfinite(point.means).all()]
    for is_equal_cost, style in ((False, "-"), (True, "--")):
        fixed = [point for point in known if point.role == "fixed" and (point.base is not None) == is_equal_cost]
        line = np.array(sorted(list(point.means) for point in fixed))  # in whatever order they were given
        if len(line) > 1:
            axis.plot(line[:, 0], line[:, 1], color=_FIXED, lw=1.5, ls=style, alpha=0.6, zorder=1)
    at = {point.name: point for point in known}
    for point in known:
        (x, y), (width, height) = point.means, point.deviations
        of_point = colours[point.name]
        if math.isfinite(width) and math.isfinite(height):
            axis.errorbar([x], [y], [height], [width], color=of_point, lw=0.8, alpha=0.5, zorder=2)
        if point.base in at:
            arrow = {"arrowstyle": "->", "color": of_point, "lw": 0.8, "ls": ":", "shrinkA": 5, "shrinkB": 5}
            axis.annotate("", point.means, at[point.base].means, arrowprops=arrow)
        if point.role == "alone":
            axis.axvline(x, color=GREY, lw=0.8, ls=":", zorder=0)
            axis.axhline(y, color=GREY, lw=0.8, ls=":", zorder=0)
        size, face = 14 if point.role == "alone" else 7, "white" if point.base is not None else of_point
        axis.plot([x], [y], _MARKERS[point.role], color=of_point, mfc=face, ms=size, zorder=3)
    axis.margins(0.2)
    open_axis(axis)
    for set_label, invert, name, way in zip(
        (axis.set_xlabel, axis.set_ylabel), (axis.invert_xaxis, axis.invert_yaxis), names, directions
    ):
        set_label(f"{name} ({'lower' if way == 'min' else 'higher'} is better, and further out)", color=GREY)
        if way == "min":
            invert()
    _place(axis, [(point.name, point.means, colours[point.name]) for point in known])


def _place(axis: Axis, labels: Sequence[tuple[str, Sequence[float], str]]) -> None:
    """Writes each label beside its point, where it covers no other label and no point, if there is such a place."""
    axis.figure.draw_without_rendering()
    marks = [axis.transData.transform(place) for _, place, _ in labels]
    taken: list[Axis] = []
    for text, place, of_text in labels:
        best: tuple[int, Axis, Axis] | None = None
        for distance, (x, y) in itertools.product((8, 16, 26, 38, 52, 70), ((1, 0), (-1, 0), (0, 1), (0, -1), *_DIAGONALS)):
            label = axis.annotate(
                text, place, xytext=(distance * x, distance * y), textcoords="offset points", color=of_text, fontsize=9,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
                ha=_ALIGNED[x], va={0: "center", 1: "bottom", -1: "top"}[y], zorder=4, annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": of_text, "lw": 0.5} if distance > 20 else None,
            )  # fmt: skip
            label.set_in_layout(False)
            label.get_window_extent()  # moves the text to its place
            box = super(type(label), label).get_window_extent()  # of the text, without the line to the point
            hits = sum(box.overlaps(other) for other in taken) + sum(box.contains(*mark) for mark in marks)
            is_inside = axis.bbox.x0 <= box.x0 and box.x1 <= axis.figure.bbox.x1
            is_inside &= axis.bbox.y0 <= box.y0 and box.y1 <= axis.bbox.y1
            hits += 0 if is_inside else len(labels)  # cut off is worse than covered
            if best is None or hits < best[0]:
                if best is not None:
                    best[1].remove()
                best = (hits, label, box)
            else:
                label.remove()
            if hits == 0:
                break
        if best is not None:
            taken.append(best[2])


_DIAGONALS = tuple(itertools.product((1, -1), (1, -1)))
_ALIGNED = {0: "center", 1: "left", -1: "right"}


def _parallel(axis: Axis, points: Sequence[Point], names: Sequence[str], colours: Mapping[str, str]) -> None:
    """A line for each variant over the heads: its relative change against alone, above 0 is better."""
    places = np.arange(len(names))
    fixed = [point.name for point in points if point.role == "fixed" and point.base is None]
    for point in points:
        changes = np.asarray(point.changes, float)
        known = np.isfinite(changes)
        if point.role == "alone" or not known.any():
            continue
        of_fixed = fixed.index(point.base or point.name) if point.role == "fixed" else 0
        style = DASHES[1] if point.base is not None else DASHES[0]
        lightness = 1.0 / (1 + 0.5 * of_fixed)
        marked = {"marker": _MARKERS[point.role], "ms": 5, "label": point.name}
        axis.plot(places[known], changes[known], color=colours[point.name], ls=style, lw=2, alpha=lightness, **marked)
    axis.axhline(0, color="black", lw=1, ls=":", label="alone")
    long = sum(map(len, names)) > 12 * len(names)
    axis.set_xticks(places, names, rotation=30 if long else 0, ha="right" if long else "center")
    axis.yaxis.set_major_formatter(
        lambda value, _: f"{value:+.0%}" if abs(value) >= 0.0095 or value == 0 else f"{value:+.1%}"
    )
    axis.margins(x=0.02)
    axis.grid(axis="x", color="#dddddd")
    open_axis(axis)
    legend(axis)
