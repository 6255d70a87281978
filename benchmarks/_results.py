"""What benchmarks over several seeds do with their results: a cell of a table, the table, and a file of every run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

Run = Mapping[str, float]
"""The figures of one run, by name."""


def mean_and_spread(runs: Sequence[Run], figure: str) -> str:
    """Mean and standard deviation of a figure over the runs that have it; empty if none has."""
    values = [run[figure] for run in runs if figure in run]
    if not values:
        return ""
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def print_table(
    console: Console, variants: Mapping[str, Sequence[Run]], figures: Mapping[str, str], variant: str, title: str
) -> None:
    """Prints a row for each variant and a column for each figure.

    Args:
        console: Where to.
        variants: The runs of each variant.
        figures: The columns' headings, by figure.
        variant: The heading of the variants' names.
        title: Above the table.
    """
    table = Table(variant, *figures.values(), title=title)
    for name, runs in variants.items():
        table.add_row(name, *(mean_and_spread(runs, figure) for figure in figures))
    console.print(table)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first are aligned to the right."""
    bars = ["---", *["---:"] * (len(columns) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (columns, bars, *rows)) + "\n"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file; none if there is no such file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def write(results: Any, path: str | Path) -> None:
    """Writes results as JSON, and creates the folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
