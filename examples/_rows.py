"""Rows from CSV and TSV files as people have them."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from examples._command_line import InputError

GZIP_START = b"\x1f\x8b"
SEPARATORS = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|"}
QUOTES = ("cells", "escaped", "text")
"""What quotes are: marks around cells, in which they are doubled or follow a backslash, or part of the text."""
_SPACE = re.compile(r"[^\S\r\n\t ]")
_NOTHING = re.compile("[\u200b\u2060\ufeff]")
_BACKSLASH = re.compile(r'\\(["\\]?)')
csv.field_size_limit(2**31 - 1)  # a cell may be a whole document


class Dialect(NamedTuple):
    """How a file divides its rows into cells.

    Attributes:
        separator: A name in `SEPARATORS`; None finds it.
        quotes: One of `QUOTES`; None finds it.
    """

    separator: str | None = None
    quotes: str | None = None

    def reader(self, file: IO[str]) -> Iterator[list[str]]:
        """The rows of a file from its beginning; csv.Error for quotes that are wrong."""
        file.seek(0)
        quoting = csv.QUOTE_NONE if self.quotes == "text" else csv.QUOTE_MINIMAL
        options = {"delimiter": SEPARATORS[self.separator or "comma"], "quoting": quoting, "strict": True}
        if self.quotes != "escaped":
            return csv.reader(file, **options)
        # A backslash before another letter is text, which the csv module would leave out.
        lines = (_BACKSLASH.sub(lambda found: "\\" + (found[1] or "\\"), line) for line in file)
        return csv.reader(lines, escapechar="\\", doublequote=False, **options)

    def __str__(self) -> str:
        quotes = {
            "cells": ", quotes mark cells",
            "escaped": ", quotes mark cells, backslashes mark quotes in them",
            "text": ", quotes are text",
        }
        return f"separated by {self.separator}s{quotes.get(self.quotes or '', '')}"


class Row(dict[str, str]):
    """A row's cells by column name; `line` is the number of its last line in the file, from 1."""

    line = 0


class _Cells(list[str]):
    """A row's cells, and the number of its last line."""

    line = 0


def read_table(
    path: str | Path,
    columns: Iterable[str] | None,
    dialect: Dialect = Dialect(),  # noqa: B008 - immutable
    *,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    r"""Reads columns of a CSV or TSV file, plain or gzipped, in UTF-8.

    The first row contains the column names. Lines may end with `\n` or `\r\n`. What the dialect leaves open is found: the
    separator is that with which the first row has the columns (a tab in a file named `.tsv`, if several do). Quotes mark
    cells, which may then contain separators and line breaks. They are part of the text if they cannot be marks or, where
    tabs separate the cells, if they would join lines that are rows, or only some cells have quotes and none needs them. A
    backslash marks a quote inside of a cell where the file cannot be read otherwise. Rows without any text are left out.

    Args:
        path: The file.
        columns: The columns to read; duplicates are allowed. None: all.
        dialect: How the file divides its rows into cells.
        tell: Is told in one line what was read, how, and how many rows were left out.

    Returns:
        The rows, their cells with surrounding white space removed, and plain spaces for any others.

    Raises:
        InputError: The file is missing, unreadable or empty, it lacks rows or a column, or its backslashes before quotes may
            be marks or text.
    """
    wanted = list(dict.fromkeys(columns or ()))
    with opened(path) as file:
        header, dialect = _header(file, Path(path), wanted, dialect)
        if columns is None:
            wanted = _distinct(path, header, header)
        rows, blank, dialect = _rows(file, Path(path), len(header), dialect)
    places = {name: header.index(name) for name in wanted}
    left_out = f"; {blank} blank rows left out" if blank else ""
    tell(f"{len(rows)} rows of {path} ({dialect}){left_out}")
    if not rows:
        raise InputError(f"`{path}` must have rows below its column names. Received: none. Check the file.")
    table = []
    for cells in rows:
        table.append(Row((name, _clean(cells[place])) for name, place in places.items()))
        table[-1].line = cells.line
    return table


@contextmanager
def opened(path: str | Path) -> Iterator[IO[str]]:
    """Opens a file; any error in its contents becomes an `InputError`."""
    try:
        with _open_text(Path(path)) as file:
            yield file
    except UnicodeDecodeError as error:
        raise InputError(
            f"`{path}` must be UTF-8 text. Received: a file with the invalid byte {error.object[error.start]:#04x}. "
            "Save it as UTF-8."
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"`{path}` must be a complete gzip file. Received: {error}. Compress it again.") from error
    except csv.Error as error:
        raise InputError(
            f"`{path}` must be CSV or TSV. Received: {error}. Quote its cells correctly, or pass --quotes text if "
            "quotes are part of the text."
        ) from error
    except OSError as error:
        raise InputError(f"`{path}` must be a readable file. Received: {error.strerror}. Correct the path.") from error


def _open_text(path: Path) -> IO[str]:
    """The file as text; gzip is detected by its first bytes. A byte order mark is removed, line endings are kept."""
    with path.open("rb") as file:
        compressed = file.read(2) == GZIP_START
    opener = gzip.open if compressed else open
    return opener(path, "rt", encoding="utf-8-sig", newline="")


def _header(file: IO[str], path: Path, wanted: Sequence[str], dialect: Dialect) -> tuple[list[str], Dialect]:
    """The column names, and the dialect with its separator."""
    names = list(SEPARATORS) if dialect.separator is None else [dialect.separator]
    if path.name.lower().removesuffix(".gz").endswith(".tsv"):
        names.sort(key=lambda name: name != "tab")
    found = []
    for name in names:
        reader = dialect._replace(separator=name).reader(file)
        try:
            found.append((list(next(reader, [])), name))
        except csv.Error:  # with another separator, or as text, it may be none
            found.append(([cell.strip('"') for cell in next(Dialect(name, "text").reader(file), [])], name))
    found = [([_clean(cell) for cell in cells], name) for cells, name in found]
    if not any(any(cells) for cells, _ in found):
        raise InputError(f"`{path}` must have a first row with column names. Received: an empty file or first line.")
    # The first of those with most of the columns; if there are several, with most columns at all.
    header, name = max(found, key=lambda each: (len({*wanted} & {*each[0]}), len(each[0])))
    missing = [name for name in wanted if name not in header]
    if missing:
        raise InputError(
            f"`{path}` must have the column {', '.join(map(repr, missing))}. Received: the columns "
            f"{', '.join(map(repr, header))}, separated by {name}s. Rename columns, choose others with the "
            "options that --help lists, or choose the separator with --separator."
        )
    _distinct(path, header, wanted)
    return header, dialect._replace(separator=name)


def _distinct(path: str | Path, header: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The columns that are wanted, of which a header has no two of the same name."""
    twice = [name for name in wanted if header.count(name) > 1]
    if twice:
        raise InputError(f"`{path}` must have each column once. Received: {twice[0]!r} more than once. Rename one.")
    return list(wanted)


def _rows(file: IO[str], path: Path, width: int, dialect: Dialect) -> tuple[list[_Cells], int, Dialect]:
    """The rows below the header, the number of blank ones left out, and the dialect with its quotes, if there are any."""
    file.seek(0)
    lines = [line for line in file if '"' in line]
    if not lines:
        return *_parsed(file, path, width, dialect._replace(quotes="text")), dialect._replace(quotes=None)
    if dialect.quotes is not None:
        return *_parsed(file, path, width, dialect), dialect
    found, reason = dict[str, tuple[list[list[str]], int]](), None
    for quotes in QUOTES:
        may_be = {"escaped": any('\\"' in line for line in lines), "text": width > 1}  # with one column, any line is a row
        try:
            if may_be.get(quotes, True):
                found[quotes] = _parsed(file, path, width, dialect._replace(quotes=quotes))
        except (InputError, csv.Error) as error:
            reason = reason or error
    most = max((len(found[quotes][0]) for quotes in ("cells", "escaped") if quotes in found), default=0)
    for quotes in ("cells", "escaped"):  # lines that are rows must not be joined
        if quotes in found and len(found[quotes][0]) < most:
            del found[quotes]
    as_cells, as_escaped, as_text = map(found.get, QUOTES)
    if as_cells and as_escaped and as_cells != as_escaped:
        line = next(line for line in lines if '\\"' in line)
        raise InputError(
            f"`{path}` must show what a backslash before a quote is. Received: {line.strip()!r}, which can be read either "
            "way. Pass --quotes escaped if it marks a quote in a cell, --quotes cells or --quotes text if it is text."
        )
    if as_text and as_cells:
        may_be_text = dialect.separator == "tab"  # which often stands for a format without marks
        is_text = may_be_text and (len(as_text[0]) > len(as_cells[0]) or not _are_marks(as_text[0]))
        quotes = "text" if is_text else "cells"
    elif found:
        quotes = next(iter(found))
    else:
        raise reason or InputError(f"`{path}` must have rows. Received: none that can be read. Check the file.")
    return *found[quotes], dialect._replace(quotes=quotes)


def _are_marks(rows: Sequence[Sequence[str]]) -> bool:
    """Whether quotes around cells, as which they were read, mark them: all cells of a column, or those that need it."""
    for column in zip(*rows):
        texts = [cell for cell in column if any(letter.isalpha() for letter in cell)]
        inner = [cell[1:-1] for cell in texts if len(cell) > 1 and cell[0] == cell[-1] == '"']
        if inner and (len(inner) == len(texts) or any(re.search('[,;]|""', cell) for cell in inner)):
            return True
    return False


def _parsed(file: IO[str], path: Path, width: int, dialect: Dialect) -> tuple[list[_Cells], int]:
    """The rows below the header, and the number of blank ones left out."""
    rows, blank, reader = [], 0, dialect.reader(file)
    next(reader)
    for cells in reader:
        if not any(map(_clean, cells)):
            blank += 1
        elif len(cells) != width:
            raise InputError(
                f"`{path}` must have {width} fields in every row, as in its first. Received: {len(cells)} fields "
                f"in the row that ends on line {reader.line_num} ({dialect}). Quote fields that contain the separator, or "
                "correct --separator or --quotes."
            )
        else:
            rows.append(_Cells(cells))
            rows[-1].line = reader.line_num
    return rows, blank


def _clean(cell: str) -> str:
    """A cell without white space around it, with plain spaces for others, and without invisible marks."""
    return _SPACE.sub(" ", _NOTHING.sub("", cell)).strip()
