"""Rows with labels, from tables as people have them: which columns are labels, and which a model reads."""

from __future__ import annotations

import argparse
import keyword
import math
import re
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from examples._command_line import InputError
from examples._rows import QUOTES, SEPARATORS, Dialect, Row, read_table
from examples.ranking.model import Arrays

NUMBERS = ("number", "price")
EXAMPLE = '`--label "rich:income=50000+"`'


class Label(NamedTuple):
    """A label that is made of a column.

    Attributes:
        name: The name of the head.
        column: The column.
        kind: `"probability"`, `"number"` or `"price"`.
        values: Of a probability, the cells that are labelled 1; all others are labelled 0.
    """

    name: str
    column: str
    kind: str
    values: tuple[str, ...]


class Part(NamedTuple):
    """Rows to train on or to compare on.

    Attributes:
        inputs: What the model reads: strings, whole numbers, which are ids, and floats, `[n]`.
        targets: The labels, floats `[n]`, NaN where missing.
        requests: Which request a row belongs to, whole numbers `[n]`; None if that is not known.
    """

    inputs: Arrays
    targets: Arrays
    requests: np.ndarray | None


def label_of(text: str) -> Label:
    """A type for `argparse`: `COLUMN=KIND` or `NAME:COLUMN=KIND`."""
    column, has_kind, kind = text.partition("=")
    name, is_named, rest = column.partition(":")
    column = rest if is_named else column
    values = tuple(value.strip() for value in kind.split("|"))
    if not (has_kind and column.strip() and all(values)):
        raise argparse.ArgumentTypeError(
            "must be `COLUMN=KIND` or `NAME:COLUMN=KIND`. KIND is `number`, `price`, or the cells that count as 1, "
            f"separated by `|`. Received: {text!r}. Write, for example, {EXAMPLE}."
        )
    if not re.fullmatch(r"[A-Za-z]\w*", name.strip(), re.ASCII):
        raise argparse.ArgumentTypeError(
            f"must have a name of letters, digits and underscores. Received: {name.strip()!r}. Write another name before "
            f"the column, for example {EXAMPLE}."
        )
    is_number = kind.strip() in NUMBERS
    kind, values = (kind.strip(), ()) if is_number else ("probability", values)
    return Label(name.strip(), column.strip(), kind, values)


OPTIONS: dict[str, dict[str, Any]] = {
    "--train": {"metavar": "FILE", "help": "a table to train on, CSV or TSV, plain or gzipped"},
    "--dev": {"metavar": "FILE", "help": "a table to compare on, with the same columns"},
    "--label": {
        "action": "append", "type": label_of, "metavar": "[NAME:]COLUMN=KIND",
        "help": "a head, once for each: KIND is number, price (above 0, in euros for example), or the cells of the column "
        "that count as 1, separated by |. An empty cell is a missing label. NAME is the column's by default",
    },
    "--drop": {"nargs": "+", "default": [], "metavar": "COLUMN", "help": "columns that the model does not read"},
    "--category": {"nargs": "+", "default": [], "metavar": "COLUMN", "help": "columns of numbers that are codes or ids"},
    "--request": {"metavar": "COLUMN", "help": "the column with a row's request, for the AUC within a request"},
    "--separator": {"choices": tuple(SEPARATORS), "help": "what separates the cells of a table (default: found, and shown)"},
    "--quotes": {"choices": QUOTES, "help": "what quotes are: marks around cells, or text (default: found, and shown)"},
}  # fmt: skip


def read_files(options: Namespace, tell: Callable[[str], None]) -> tuple[Part, Part, dict[str, str]] | None:
    """What `--train` and `--dev` have, and what each head predicts; None without these options.

    All columns are inputs but those of labels, of `--drop` and of `--request`. A column is one of numbers if all of its
    cells in `--train` are numbers, empty ones aside, and it is not in `--category`.

    Raises:
        InputError: The options do not fit together, or a file, or a column of it, cannot be used.
    """
    if not (options.train and options.dev and options.label):
        received = ", ".join(f"--{name[2:]}" for name in OPTIONS if getattr(options, name[2:]))
        if received:
            raise InputError(
                f"Options of files need `--train`, `--dev` and `--label`. Received: {received}. Pass both files, and a "
                f"label for each head, for example {EXAMPLE}."
            )
        return None
    dialect = Dialect(options.separator, options.quotes)
    rows = read_table(options.train, None, dialect, tell=tell)
    for argument, names in {
        "label": [label.column for label in options.label],
        "drop": options.drop,
        "category": options.category,
        "request": [options.request] if options.request else [],
    }.items():
        _check_columns(f"--{argument}", names, options.train, rows[0])
    labels = {label.name: label for label in options.label}
    if len(labels) < len(options.label):
        raise InputError(f"`--label` must have distinct names. Received: {', '.join(each.name for each in options.label)}.")
    left_out = {*options.drop, options.request, *(label.column for label in options.label)}
    columns = [name for name in rows[0] if name not in left_out]
    names = input_names(columns)
    others = read_table(options.dev, [*columns, *sorted(left_out - {*options.drop, None})], dialect, tell=tell)
    numbers = {name for name in columns if name not in options.category and _is_number(rows, name)}
    named = ", ".join(name for name in columns if name in numbers) or "none"
    tell(f"{len(columns) - len(numbers)} columns of strings, {len(numbers)} of numbers: {named}")
    parts = []
    for path, part in ((options.train, rows), (options.dev, others)):
        inputs = {names[name]: _cells(part, name, name in numbers, path, tell) for name in columns}
        targets = {name: label_values(label, part, path, tell) for name, label in labels.items()}
        requests = np.unique([row[options.request] for row in part], return_inverse=True)[1] if options.request else None
        parts.append(Part(inputs, targets, requests))
    for name, label in labels.items():
        _check_label(label, parts[0].targets[name], rows, options.train)
    return parts[0], parts[1], {name: label.kind for name, label in labels.items()}


def input_names(columns: Sequence[str]) -> dict[str, str]:
    """The names of the model's inputs by column: letters, digits and underscores, as exports need them.

    Raises:
        InputError: There are no columns, or two have the same name then.
    """
    if not columns:
        raise InputError("`--drop` must leave columns for the model to read. Received: none is left. Drop fewer.")
    names = {}
    for column in columns:
        name = re.sub(r"\W+", "_", column, flags=re.ASCII).strip("_")
        names[column] = name if re.match("[A-Za-z]", name) and not keyword.iskeyword(name) else f"column_{name}"
    twice = next((name for name in names.values() if list(names.values()).count(name) > 1), None)
    if twice:
        same = ", ".join(repr(column) for column, name in names.items() if name == twice)
        raise InputError(f"`--train` must have columns that differ in letters or digits. Received: {same}. Rename one.")
    return names


def label_values(label: Label, rows: Sequence[Row], path: str, tell: Callable[[str], None]) -> np.ndarray:
    """The labels of rows, float32 `[n]`, NaN for empty cells.

    Raises:
        InputError: A cell is not a number, or not above 0 as a price must be.
    """
    if label.kind == "probability":
        absent = {*label.values} - {row[label.column] for row in rows}
        if absent:
            tell(f"{label.name}: no cell of {path} is {', '.join(map(repr, sorted(absent)))}")
        cells = [row[label.column] for row in rows]
        return np.array([float(cell in label.values) if cell else math.nan for cell in cells], "float32")
    found = []
    for row in rows:
        number = _number(row[label.column]) if row[label.column] else math.nan
        if number is None or (label.kind == "price" and number <= 0):
            rule = "a number above 0" if label.kind == "price" else "a number"
            raise InputError(
                f"`--label {label.name}` must have {rule}, or nothing, in each row. Received: {row[label.column]!r} on line "
                f"{row.line} of {path}. Correct the cell; if the column has classes, name those that count as 1."
            )
        found.append(number)
    return np.array(found, "float32")


def _check_label(label: Label, values: np.ndarray, rows: Sequence[Row], path: str) -> None:
    """Checks that something can be learned from the labels of the training rows."""
    known = values[~np.isnan(values)]
    cells = sorted({row[label.column] for row in rows})
    shown = ", ".join(map(repr, cells[:8])) + (f" and {len(cells) - 8} others" if len(cells) > 8 else "")
    if label.kind == "probability" and len({*known.tolist()}) < 2:
        raise InputError(
            f"`--label {label.name}` must count some cells of the column as 1 and others as 0. Received: "
            f"{'|'.join(label.values)!r}; the cells of {label.column!r} in {path} are {shown}. Write them as they are there."
        )
    if not len(known):
        raise InputError(f"`--label {label.name}` must have a number in some rows of {path}. Received: none. Leave it out.")


def _check_columns(argument: str, names: Sequence[str], path: str, row: Mapping[str, str]) -> None:
    """Checks that a file has some columns."""
    unknown = [name for name in names if name not in row]
    if unknown:
        raise InputError(
            f"`{argument}` must name columns of {path}. Received: {', '.join(map(repr, unknown))}. The columns are "
            f"{', '.join(map(repr, row))}."
        )


def _number(cell: str) -> float | None:
    """The number in a cell; None if it is not a finite one."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in cell else None


def _is_number(rows: Sequence[Row], column: str) -> bool:
    """Whether all cells of a column are numbers, empty ones aside, and there are some."""
    cells = {row[column] for row in rows} - {""}
    return bool(cells) and all(_number(cell) is not None for cell in cells)


def _cells(rows: Sequence[Row], column: str, is_number: bool, path: str, tell: Callable[[str], None]) -> np.ndarray:
    """The cells of a column as strings, or as floats, NaN for what is not a number."""
    cells = [row[column] for row in rows]
    if not is_number:
        return np.array(cells)
    numbers = [_number(cell) for cell in cells]
    others = sum(number is None and bool(cell) for number, cell in zip(numbers, cells))
    if others:
        tell(f"{others} cells of {column!r} in {path} are not numbers, and are read as missing")
    return np.array([math.nan if number is None else number for number in numbers], "float32")
