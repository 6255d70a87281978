"""The style of the examples' figures: sizes for the width of a page, few lines, words at the data instead of legends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#666666"

DPI = 130
STYLE: dict[str, Any] = {
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.labelsize": 11,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "font.size": 11,
    "lines.linewidth": 2.0,
    "savefig.dpi": DPI,
    "xtick.color": GREY,
    "ytick.color": GREY,
}
"""Matplotlib's parameters. Figures are 9 inches wide, so that their texts are readable at the width of a page."""

WIDTH = 9.0


def new_figure(rows: int, columns: int, height: float, *, width: float = WIDTH, **options: Any) -> tuple[Any, Any]:
    """A figure, sizes in inches, and its axes, a single one or an array; `options` are those of `Figure.subplots`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def styled(draw: Function) -> Function:
    """A function that draws, in this style."""

    @functools.wraps(draw)
    def in_style(*given: Any, **options: Any) -> Any:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*given, **options)

    return in_style  # type: ignore[return-value]


def label_ends(axis: Any, x: float, ends: Sequence[tuple[float, str, str]], *, gap: float = 0.055) -> None:
    """Names lines at their right ends; names that would overlap move apart.

    Args:
        axis: The axis; its scale and limits are set already.
        x: Where the lines end.
        ends: Value, name and color of each line.
        gap: The smallest distance of two names, as a fraction of the axis's height.
    """
    axis.get_ylim()  # matplotlib computes limits when they are asked for
    to_axis = axis.transAxes.inverted()
    places = sorted((to_axis.transform(axis.transData.transform((x, value)))[1], name, color) for value, name, color in ends)
    heights = [height for height, _, _ in places]
    for k in range(1, len(heights)):
        heights[k] = max(heights[k], heights[k - 1] + gap)
    top = 1.0
    for k in reversed(range(len(heights))):
        heights[k] = min(heights[k], top)
        top = heights[k] - gap
    for height, (_, name, color) in zip(heights, places):
        place = {"xycoords": ("data", "axes fraction"), "xytext": (5, 0), "textcoords": "offset points"}
        axis.annotate(name, (x, height), **place, color=color, va="center", annotation_clip=False)
