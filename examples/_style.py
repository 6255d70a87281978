"""The style of the examples' figures: sizes for the width of a page, few lines, words at the data instead of legends."""

from __future__ import annotations

import functools
from collections.abc import Callable
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
"""Matplotlib's parameters. Figures are so narrow that their texts are readable on a phone."""

WIDTH = 6.4


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
