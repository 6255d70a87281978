"""What everything drawn shares: optional packages, tables as text; figures without a display, bars and heat maps."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from multihead._ground.types import Axis, Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C7A00")
"""Okabe and Ito's colours, which colour-blind readers can tell apart, with a darker yellow."""

GREY = "#666666"
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
"""The styles of lines; heads beyond the number of colours have the next style."""

_SOFTWARE = "multihead"
_MARK, _BEGINNING = f"Software\0{_SOFTWARE}".encode(), 1024
"""What PNG files of plots say among their first bytes, before the picture."""


def optional(module: str) -> ModuleType | None:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def needed(module: str, extra: str, what: str) -> ModuleType:
    imported = optional(module)
    if imported is None:
        package = module.partition(".")[0]
        raise ImportError(f"{what} needs {package}. Received: none installed. Run `pip install 'multihead[{extra}]'`.")
    return imported


def table_as_text(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] | None = None
) -> str:
    """A table as text; columns of `numbers`, by default all but the first, are aligned to the right."""
    numbers = columns[1:] if numbers is None else numbers
    widths = [max(map(len, column)) for column in zip(columns, *rows)]
    lines = [title]
    for row in (columns, ["-" * width for width in widths], *rows):
        cells = zip(row, columns, widths)
        aligned = [cell.rjust(width) if column in numbers else cell.ljust(width) for cell, column, width in cells]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def plain(number: float, spread: float = np.nan) -> str:
    """A number with three digits, or two more than its `spread` needs; without an exponent if it is of ordinary size."""
    digits = 3
    if 0 < spread < abs(number) < np.inf:
        digits = int(np.clip(np.ceil(np.log10(abs(number) / spread)) + 2, 3, 12))
    rounded = float(f"{number:.{digits}g}")
    return f"{rounded:,.0f}" if 1000 <= abs(rounded) < 10 ** max(digits, 7) else f"{rounded:.{digits}g}"


def new_figure(what: str, rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, np.ndarray]:
    """A figure of a size in inches, and an array `[rows, columns]` of its axes; no display is needed."""
    figure = needed("matplotlib.figure", "plots", what).Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def check_own(argument: str, files: Sequence[Path]) -> None:
    """Raises a `ValueError` if a file with the name of a plot holds anything but a plot of this library."""
    others = [file for file in files if file.exists() and _MARK not in _beginning(file)]
    if others:
        raise ValueError(
            f"`{argument}` must leave the names of plots to plots of this library, which replace each other. Received: "
            f"{str(others[0])!r}, another file. Pass another name, or move the file."
        )


def _beginning(file: Path) -> bytes:
    with file.open("rb") as opened:  # which may be large
        return opened.read(_BEGINNING)


def save(figure: Figure, file: Path) -> None:
    """Writes a plot as a PNG file that `check_own` recognizes."""
    figure.savefig(file, dpi=150, format="png", metadata={"Software": _SOFTWARE})


def title(axis: Axis, message: str, detail: str = "") -> None:
    """A message above a plot, and a detail in grey below the message."""
    axis.set_title(message, loc="left", fontsize=12, fontweight="bold", pad=24 if detail else 8)
    if detail:
        axis.text(0, 1, detail, transform=axis.transAxes, fontsize=9, color=GREY, va="bottom", ha="left").set_y(1.02)


def open_axis(axis: Axis) -> None:
    """Removes the frame of an axis except for the left and the lower line."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GREY)
    axis.tick_params(which="both", colors=GREY, labelsize=9)


def legend(axis: Axis, **options: object) -> None:
    """Names what is drawn, to the right of an axis."""
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, **options)


def colour(k: int) -> str:
    return COLOURS[k % len(COLOURS)]


def bars(axis: Axis, message: str, names: Sequence[str], values: np.ndarray, texts: Sequence[str]) -> None:
    """Horizontal bars with texts at their ends; non-finite values have no bar."""
    finite = np.where(np.isfinite(values), values, 0.0)
    axis.barh(range(len(names)), finite, height=0.6, color=[colour(k) for k in range(len(names))])
    for k, text in enumerate(texts):
        axis.annotate(text, (finite[k], k), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.margins(x=0.3)
    open_axis(axis)
    axis.tick_params(axis="y", length=0, labelsize=10, labelcolor="black")
    axis.set_title(message, loc="left", fontsize=10)


def heat_map(axis: Axis, message: str, names: Sequence[str], values: np.ndarray) -> None:
    """The pairs below the diagonal of a matrix of cosines, from -1 (orange) to 1 (purple), with their numbers."""
    rows, columns = (names[1:], names[:-1]) if len(names) > 1 else (names, names)
    shown = np.where(np.tri(len(rows), dtype=bool), values[-len(rows) :, : len(rows)], np.nan)
    axis.pcolormesh(np.ma.masked_invalid(shown), vmin=-1, vmax=1, cmap="PuOr", edgecolors="white", lw=2)
    for i, j in zip(*np.nonzero(np.isfinite(shown))):
        text, text_colour = f"{round(float(shown[i, j]), 2) + 0.0:+.2f}", "white" if abs(shown[i, j]) > 0.6 else "black"
        axis.text(j + 0.5, i + 0.5, text, ha="center", va="center", color=text_colour)
    long = max(map(len, columns)) * len(columns) > 60
    axis.set_xticks(np.arange(len(rows)) + 0.5, columns, rotation=30 if long else 0, ha="right" if long else "center")
    axis.set_yticks(np.arange(len(rows)) + 0.5, rows)
    axis.invert_yaxis()
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_title(message, loc="left", fontsize=10)


def cosine_matrix(statistics: Mapping[str, float], heads: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """The names of the rows, the heads and the update, and the cosines below the diagonal; NaN where none is known."""
    names = [*heads, "update"]
    values = np.full([len(names), len(names)], np.nan)
    for (j, one), (i, other) in itertools.combinations(enumerate(names), 2):
        values[i, j] = statistics.get(f"{one}_{other}_cosine", np.nan)
    return names, values
