"""Optional packages; tables, by rich or in plain text where rich is not installed; and numbers as text."""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence

from multihead._ground.types import Figure


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
