"""The rows of a run: generated orders, or tables with columns."""

from __future__ import annotations

import functools
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from examples._cluster import files_of
from examples._command_line import InputError
from examples._orders import BAND_EDGES, draw_rows
from examples._rows import Dialect, Row, read_table
from examples.seq2seq_price.batches import Examples, TextStatistics, statistics_of
from examples.seq2seq_price.columns import Column, LabelColumn, NumberColumn, TagColumn, band_names, head_names, is_number
from examples.seq2seq_price.model import NO_LABEL

Tell = Callable[[str], None]
Table = list[Row]
SHOWN = 5
"""Lines and values that a message or a line names at most."""


@dataclass(frozen=True)
class Data:
    """What a run trains and evaluates on: rows by split, `train` first, and the columns by head, of all but the reply.

    `columns` are the names of the `source`, `target` and `label` columns; `files` has the number of rows of each training
    file, if there are several.
    """

    columns: dict[str, str]
    heads: dict[str, Column]
    splits: dict[str, Examples]
    files: Sequence[int] = ()

    @functools.cached_property
    def statistics(self) -> TextStatistics:
        """What the texts of the training rows are like."""
        return statistics_of(self.splits["train"])


def workshop_data(orders: int, held_out: int, seed: int) -> Data:
    """The example's generated data: `orders` orders to train on, and `held_out` more for validation."""
    numbers = {"train": orders, "dev": held_out}
    tables = {split: draw_rows(number, held_out=split == "dev", seed=seed) for split, number in numbers.items()}
    ranges = LabelColumn("price", "price", band_names(BAND_EDGES), BAND_EDGES)
    return _as_data(tables, {"source": "text", "target": "order", "label": "price"}, [ranges])


def load_data(options: Namespace, tell: Tell = lambda line: None) -> Data:
    """Generates the workshop's orders, or reads the files named in the options, and tells how in a line per file.

    Raises:
        InputError: A file or a column cannot be used.
    """
    if options.train is None:
        return workshop_data(options.orders, options.orders // 10, options.seed)
    paths = {split: getattr(options, split) for split in ("train", "dev", "test") if getattr(options, split) is not None}
    label, *labels = options.label
    added = [*labels, *options.number, *options.tags]
    heads = dict(zip(added, head_names(added)))
    tables, files = {}, {}
    for split, path in paths.items():
        parts = [read_rows(options, file, tell) for file in files_of(path)]
        tables[split], files[split] = sum(parts, []), [len(part) for part in parts]
    cells = {column: _column(tables["train"], column) for column in [options.target, label, *added]}
    if not any(cells[options.target]):
        raise InputError(
            f"The column `{options.target}` must contain a target in some training row. Received: only empty cells. Choose "
            "another column with --target."
        )
    is_class = options.missing == "class"
    columns = [
        LabelColumn.fit("price", label, cells[label], bands=options.bands, missing_is_class=is_class),
        *(LabelColumn.fit(heads[name], name, cells[name], missing_is_class=is_class) for name in labels),
        *(NumberColumn.fit(heads[name], name, cells[name]) for name in options.number),
        *(TagColumn.fit(heads[name], name, cells[name]) for name in options.tags),
    ]
    names = {"source": options.source, "target": options.target, "label": label}
    return _as_data(tables, names, columns, files["train"])


def read_rows(options: Namespace, path: str, tell: Tell = lambda line: None) -> Table:
    """The rows of a table that have a source text and something to learn from it; tells how it was read.

    Raises:
        InputError: The file or a column cannot be used, or no row is left.
    """
    answers = [options.target, *options.label, *options.number, *options.tags]
    lines: list[str] = []
    dialect = Dialect(options.separator, options.quotes)
    rows = read_table(path, [options.source, *answers], dialect, tell=lines.append)
    for row in rows:
        row.update((name, "") for name in {*answers} if row[name] in options.missing_values)
    numeric = [*options.number, *(options.label[:1] if options.bands else [])]
    for name in numeric:
        check_numbers(path, name, rows)
    asked = [row for row in rows if row[options.source]]
    is_class = options.missing == "class"  # then an empty label is an answer
    kept = [row for row in asked if is_class or any(row[name] for name in answers)]
    told = {
        f"without `{options.source}` left out": len(rows) - len(asked),
        "without anything to learn left out": len(asked) - len(kept),
        f"without `{options.target}` train the other heads only": sum(not row[options.target] for row in kept),
    }
    tell("; ".join([*lines, *(f"{number} rows {what}" for what, number in told.items() if number)]))
    if not kept:
        raise InputError(
            f"`{path}` must have rows with a text in the column `{options.source}` and something to learn from it. "
            f"Received: {len(rows)} rows without. Correct the file, or choose other columns with --source and --target."
        )
    return kept


def check_numbers(path: str, column: str, rows: Table) -> None:
    """Checks that all cells of a column that are not empty are finite numbers.

    Raises:
        InputError: Some are not; the message names them all, and the lines on which they stand.
    """
    lines: dict[str, list[int]] = {}
    for row in rows:
        if row[column] and not is_number(row[column]):
            lines.setdefault(row[column], []).append(row.line)
    if lines:
        shown = [f"{cell!r} on {_listed([*map(str, places)], 'line')}" for cell, places in lines.items()]
        raise InputError(
            f"`{path}` must have numbers or empty cells in the column `{column}`. Received: {_listed(shown)}. Correct the "
            f"cells, or name those that mean that there is no number: --missing-values {','.join([*lines][:SHOWN])}"
        )


def classes(data: Data) -> list[str]:
    """For each column of classes a line with the number of training rows of each, so that a class that is none is seen."""
    told = []
    for head, column in data.heads.items():
        if isinstance(column, LabelColumn):
            numbers = data.splits["train"].labels[head]
            names = {**dict(enumerate(column.names)), NO_LABEL: "no label"}
            counts = Counter(names[number] for number in numbers.tolist())
            shown = [f"{name} {count}" for name, count in counts.most_common()]
            told.append(f"{column.column}: {_listed(shown, most=20)}")
    return told


def _listed(items: Sequence[str], noun: str = "", most: int = SHOWN) -> str:
    """The first items, and how many more there are."""
    noun = f"{noun}{'s' * (len(items) > 1)} " if noun else ""
    return noun + ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")


def _as_data(tables: dict[str, Table], names: dict[str, str], columns: Sequence[Column], files: Sequence[int] = ()) -> Data:
    splits = {}
    for split, rows in tables.items():
        texts, targets = (_column(rows, names[role]) for role in ("source", "target"))
        labels = {column.head: column.targets(_column(rows, column.column), texts) for column in columns}
        splits[split] = Examples(texts, targets, labels)
    return Data(names, {column.head: column for column in columns}, splits, files)


def _column(rows: Table, name: str) -> list[str]:
    return [row[name] for row in rows]
