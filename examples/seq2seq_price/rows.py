"""Rows from files as people have them: CSV and TSV files, and parallel text files."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from examples._command_line import InputError

GZIP_START = b"\x1f\x8b"


def read_table(path: str | Path, columns: Iterable[str]) -> list[dict[str, str]]:
    r"""Reads columns of a CSV or TSV file, plain or gzipped, in UTF-8.

    The first row contains the column names. Quoted fields may contain separators and line breaks; lines may end with `\n`
    or `\r\n`. The separator is a tab if the file name ends with `.tsv` or `.tsv.gz`, or if the first line contains a tab
    and no comma; otherwise it is a comma.

    Args:
        path: The file.
        columns: The columns to read; duplicates are allowed.

    Returns:
        One dict per row, by column name, with surrounding white space removed.

    Raises:
        InputError: The file is missing, unreadable or empty, or it lacks rows or a column.
    """
    wanted = list(dict.fromkeys(columns))
    with _opened(path) as file:
        return _read_rows(file, Path(path), wanted)


def read_lines(source: str | Path, target: str | Path) -> tuple[list[str], list[str]]:
    """Reads two parallel text files, plain or gzipped, in UTF-8 with one text per line, and lower-cases them.

    Args:
        source: The file with the source texts.
        target: The file with the target texts, with the same number of lines.

    Returns:
        The texts of both files, with single spaces between words.

    Raises:
        InputError: A file is missing, unreadable or empty, or the numbers of lines differ.
    """
    sides = []
    for path in (source, target):
        with _opened(path) as file:
            lines = file.read().removesuffix("\n").split("\n")
        if not any(line.strip() for line in lines):
            raise InputError(f"`{path}` must contain lines of text. Received: none. Check the file.")
        sides.append([" ".join(line.lower().split()) for line in lines])
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"`{source}` and `{target}` must have the same number of lines. Received: {len(sides[0])} and "
            f"{len(sides[1])}. Pass two parallel files."
        )
    return sides[0], sides[1]


@contextmanager
def _opened(path: str | Path) -> Iterator[IO[str]]:
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
        raise InputError(f"`{path}` must be CSV or TSV. Received: {error}. Quote its fields correctly.") from error
    except OSError as error:
        raise InputError(f"`{path}` must be a readable file. Received: {error.strerror}. Correct the path.") from error


def _open_text(path: Path) -> IO[str]:
    """The file as text; gzip is detected by its first bytes. A byte order mark is removed, line endings are kept."""
    with path.open("rb") as file:
        compressed = file.read(2) == GZIP_START
    opener = gzip.open if compressed else open
    return opener(path, "rt", encoding="utf-8-sig", newline="")


def _read_rows(file: IO[str], path: Path, wanted: Sequence[str]) -> list[dict[str, str]]:
    first_line = file.readline()
    if not first_line.strip():
        raise InputError(f"`{path}` must have a first row with column names. Received: an empty file or first line.")
    file.seek(0)
    reader = csv.reader(file, delimiter=_separator(path, first_line))
    header = [name.strip() for name in next(reader)]
    missing = [name for name in wanted if name not in header]
    if missing:
        raise InputError(
            f"`{path}` must have the column {', '.join(map(repr, missing))}. Received: the columns "
            f"{', '.join(map(repr, header))}. Choose columns with --source, --target, --label, --number, --tags and "
            "--swap-column."
        )
    twice = [name for name in wanted if header.count(name) > 1]
    if twice:
        raise InputError(f"`{path}` must have each column once. Received: {twice[0]!r} more than once. Rename one.")
    places = {name: header.index(name) for name in wanted}
    rows = []
    for cells in reader:
        if not any(cells):
            continue
        if len(cells) != len(header):
            raise InputError(
                f"`{path}` must have {len(header)} fields in every row, as in its first. Received: {len(cells)} fields "
                f"in the row that ends on line {reader.line_num}. Quote fields that contain the separator."
            )
        rows.append({name: cells[place].strip() for name, place in places.items()})
    if not rows:
        raise InputError(f"`{path}` must have rows below its column names. Received: none. Check the file.")
    return rows


def _separator(path: Path, first_line: str) -> str:
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".tsv") or ("\t" in first_line and "," not in first_line):
        return "\t"
    return ","
