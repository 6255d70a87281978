"""What everything drawn shares: optional packages, tables as text; figures without a display, lines, bars and heat maps."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping, Sequence

import numpy as np

from multihead._ground.types import Axis, Config, Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C7A00")
"""Okabe and Ito's colours, which colour-blind readers can tell apart, with a darker yellow."""

GREY = "#666666"
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
"""The styles of lines; heads beyond the number of colours have the next style."""


def optional(module: str) -> Figure:
    """An optional module, or None if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def needed(module: str, extra: str, what: str) -> Figure:
    """An optional module."""
    found = optional(module)
    if found is None:
        package = module.partition(".")[0]
        raise ImportError(f"{what} needs {package}. Received: none installed. Run `pip install 'multihead[{extra}]'`.")
    return found


def as_text(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] | None = None) -> str:
    """A table as text without colours; columns of `numbers`, by default all but the first, are aligned to the right."""
    right = [column in numbers if numbers is not None else place > 0 for place, column in enumerate(columns)]
    tables, consoles, texts = optional("rich.table"), optional("rich.console"), optional("rich.text")
    if tables is None or consoles is None or texts is None:
        return _plain(title, columns, rows, right)
    table = tables.Table(title=texts.Text(title), title_justify="left")
    for column, is_right in zip(columns, right):
        table.add_column(texts.Text(column), justify="right" if is_right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(texts.Text, row))
    file = io.StringIO()
    consoles.Console(file=file, width=1000, color_system=None, force_terminal=False, legacy_windows=False).print(table)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _plain(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    widths = [max(map(len, column)) for column in zip(columns, *rows)]
    lines = [
        "  ".join(cell.rjust(width) if is_right else cell.ljust(width) for cell, width, is_right in zip(row, widths, right))
        for row in (columns, *rows)
    ]
    return "\n".join([title, *(line.rstrip() for line in lines)])


def plain(number: float) -> str:
    """A number with three digits, without an exponent if it is of ordinary size."""
    rounded = float(f"{number:.3g}")
    return f"{rounded:,.0f}" if 1000 <= abs(rounded) < 1e7 else f"{rounded:.3g}"


def new_figure(what: str, rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, Axis]:
    """A figure of a size in inches, and an array `[rows, columns]` of its axes; no display is needed."""
    figure = needed("matplotlib.figure", "plots", what).Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def title(axis: Axis, message: str, detail: str = "") -> None:
    """A message above a plot, and a detail in grey below the message."""
    axis.set_title(message, loc="left", fontsize=12, fontweight="bold", pad=24 if detail else 8)
    if detail:
        axis.text(0, 1, detail, transform=axis.transAxes, fontsize=9, color=GREY, va="bottom", ha="left").set_y(1.02)


def open_axis(axis: Axis) -> None:
    """Removes the frame of an axis except for the left and the lower line."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GREY)
    axis.tick_params(colors=GREY, labelsize=9)


def lines(axis: Axis, x: np.ndarray, by_name: Mapping[str, np.ndarray], texts: Mapping[str, str]) -> None:
    """One line of `[points]` values per name, on an axis whose scales are set, with its text at the right end.

    Texts do not overlap, and non-finite values have no point.
    """
    ends = {}
    for k, (name, values) in enumerate(by_name.items()):
        known = np.isfinite(values)
        if known.any():
            axis.plot(x[known], values[known], color=colour(k), ls=DASHES[k // len(COLOURS) % len(DASHES)], lw=2)
            ends[name] = (x[known][-1], values[known][-1], colour(k))
    open_axis(axis)
    axis.margins(x=0.01)
    if ends:
        label_ends(axis, [(y, texts[name], of_line) for name, (_, y, of_line) in ends.items()])


def label_ends(axis: Axis, labels: Sequence[tuple[float, str, str]], size: float = 10) -> None:
    """Labels (value, text and colour) at the right edge of an axis with everything drawn, apart from each other."""
    axis.figure.draw_without_rendering()
    height = axis.get_window_extent().height
    apart = 1.25 * size * axis.figure.dpi / 72 / height
    to_axes = axis.transData + axis.transAxes.inverted()
    places = [float(to_axes.transform((axis.get_xlim()[1], value))[1]) for value, _, _ in labels]
    for place, (_, text, of_line) in zip(spread(places, apart), labels):
        axis.annotate(
            text, (1, place), xycoords="axes fraction", xytext=(6, 0), textcoords="offset points", va="center",
            color=of_line, fontsize=size, fontweight="bold", annotation_clip=False,
        )  # fmt: skip


def spread(places: Sequence[float], apart: float) -> list[float]:
    """Places that are at least `apart` from each other, in the same order, and as near to the given ones as that allows."""
    order = np.argsort(places, kind="stable")
    pools: list[list[float]] = []  # isotonic regression: the sum and the number of places that share a shift
    for rank, i in enumerate(order):
        pools.append([places[i] - apart * rank, 1.0])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            total, number = pools.pop()
            pools[-1][0] += total
            pools[-1][1] += number
    shifts = [total / number for total, number in pools for _ in range(int(number))]
    found = [0.0] * len(places)
    for rank, i in enumerate(order):
        found[i] = shifts[rank] + apart * rank
    return found


def colour(k: int) -> str:
    """The colour of the `k`-th head."""
    return COLOURS[k % len(COLOURS)]


def bars(axis: Axis, message: str, names: Sequence[str], values: np.ndarray, texts: Sequence[str]) -> None:
    """Horizontal bars with a text at the end of each; non-finite values have no bar."""
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


def heat_map(
    axis: Axis, message: str, rows: Sequence[str], values: np.ndarray, columns: Sequence[str] | None = None
) -> None:
    """A matrix of cosines, from -1 (orange) to 1 (purple), each with its number.

    The cells of non-finite values are empty. Without `columns`, they are the rows, of which only the pairs below the
    diagonal are drawn.
    """
    if columns is None and len(rows) > 1:
        values = np.where(np.tri(len(rows), k=-1, dtype=bool), values, np.nan)[1:, :-1]
        rows, columns = rows[1:], rows[:-1]
    axis.imshow(np.ma.masked_invalid(values), vmin=-1, vmax=1, cmap="PuOr", aspect="auto")
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if np.isfinite(value):
                of_text = "white" if abs(value) > 0.6 else "black"
                axis.text(j, i, f"{round(float(value), 2) + 0.0:+.2f}", ha="center", va="center", color=of_text, fontsize=10)
    columns = rows if columns is None else columns
    long = max(map(len, columns), default=0) * len(columns) > 60
    axis.set_xticks(range(len(columns)), columns, rotation=30 if long else 0, ha="right" if long else "center")
    axis.set_yticks(range(len(rows)), rows)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="white", lw=2)
    axis.tick_params(which="minor", length=0)
    axis.set_title(message, loc="left", fontsize=10)


def cosine_matrix(statistics: Config, heads: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """The rows of the matrix of cosines between heads, and with the update, and the matrix; nothing if none is known."""
    names = [*heads, "update"]
    values = np.full([len(names), len(names)], np.nan)
    np.fill_diagonal(values, 1.0)
    is_any = False
    for i, one in enumerate(heads):
        for j, name in [(len(heads), f"{one}_update_cosine")] + [
            (j, f"{one}_{heads[j]}_cosine") for j in range(i + 1, len(heads))
        ]:
            if statistics.get(name) is not None:
                values[i, j] = values[j, i] = float(statistics[name])
                is_any = True
    return (names, values) if is_any else ([], values)
