"""What all pictures of this package share: figures without a display, colours, bars and heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from multihead._extras import needed

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""


def new_figure(what: str, rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """Creates a figure and an array `[rows, columns]` of axes; no display is needed.

    Args:
        what: What is drawn, for the message.
        rows: Rows of axes.
        columns: Columns of axes.
        size: Width and height in inches.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = needed("matplotlib.figure", "plots", what).Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def bars(axis: Any, title: str, names: Sequence[str], values: np.ndarray, texts: Sequence[str]) -> None:
    """Horizontal bars with a text at the end of each; what is not finite has no bar."""
    finite = np.where(np.isfinite(values), values, 0.0)
    axis.barh(range(len(names)), finite, color=[COLOURS[k % len(COLOURS)] for k in range(len(names))])
    for k, text in enumerate(texts):
        axis.annotate(text, (finite[k], k), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.margins(x=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(title, loc="left", fontsize=10)


def heat_map(axis: Any, title: str, names: Sequence[str], values: np.ndarray) -> None:
    """A matrix of cosines, from -1 (orange) to 1 (purple), each with its number."""
    axis.imshow(np.where(np.isfinite(values), values, 0.0), vmin=-1, vmax=1, cmap="PuOr")
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            colour = "white" if abs(value) > 0.6 else "black"
            axis.text(j, i, f"{value:.2f}" if np.isfinite(value) else "none", ha="center", va="center", color=colour)
    axis.set_xticks(range(len(names)), names)
    axis.set_yticks(range(len(names)), names)
    axis.set_title(title, loc="left", fontsize=10)
