"""Tables for people: by rich, or in plain text where rich is not installed."""

from __future__ import annotations

import io
from collections.abc import Sequence

from multihead._extras import optional


def as_text(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as text without colours; the first column is text, the others are numbers.

    Args:
        title: The title above it.
        columns: The columns' names.
        rows: One cell per column.
    """
    tables, consoles, texts = optional("rich.table"), optional("rich.console"), optional("rich.text")
    if tables is None or consoles is None or texts is None:
        return _plain(title, columns, rows)
    table = tables.Table(title=texts.Text(title), title_justify="left")
    for position, column in enumerate(columns):
        table.add_column(texts.Text(column), justify="right" if position else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(texts.Text, row))
    file = io.StringIO()
    consoles.Console(file=file, width=1000, color_system=None, force_terminal=False, legacy_windows=False).print(table)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _plain(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(columns, *rows)]
    lines = [[cell.rjust(width) for cell, width in zip(row, widths)] for row in (columns, *rows)]
    for line, row in zip(lines, (columns, *rows)):
        line[0] = row[0].ljust(widths[0])
    return "\n".join([title, *("  ".join(line).rstrip() for line in lines)])
