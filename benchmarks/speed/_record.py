"""The recorded lines of the benchmarks of speed, and the tables that are made of them.

A line has what is measured by one command: `command`, `commit` (None if it is not known), `versions`, `cores`, `rounds` and
`rows`. A row has names, as of a variant, and numbers by their titles. Each program makes its tables from its lines, with a
column for each version of TensorFlow: what it prints is the table of one line, and its page has that of the newest lines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.speed._shared import markdown, ratios

RESULTS = Path(__file__).resolve().parent / "results"
Row = dict[str, Any]
Line = dict[str, Any]


class Table(NamedTuple):
    """A table.

    Attributes:
        title: What it is called.
        lines: The lines that it is made of.
        text: The table, in Markdown.
    """

    title: str
    lines: Sequence[Line]
    text: str


def path_of(program: str) -> Path:
    """The file of a program's lines."""
    return RESULTS / f"{program}.jsonl"


def read(path: Path) -> list[Line]:
    """The lines of a file; none if there is no such file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def versions() -> dict[str, str]:
    """The versions of TensorFlow and Keras."""
    import keras
    import tensorflow as tf

    return {"TensorFlow": tf.__version__, "Keras": keras.__version__}


def finish(
    options: argparse.Namespace,
    rows: Sequence[Row],
    tables: Callable[[Sequence[Line]], Sequence[Table]],
    of_versions: Mapping[str, str] | None = None,
) -> None:
    """Prints the tables of a run and, with `--record`, appends its line to the program's file.

    Args:
        options: The flags, from `parsed`.
        rows: What was measured.
        tables: The program's tables of some lines.
        of_versions: The versions of the libraries, if they are not those of this process.
    """
    line = {
        "command": options.command,
        "commit": options.commit,
        "versions": dict(of_versions or versions()),
        "cores": os.cpu_count(),
        "rounds": options.rounds,
        "rows": list(rows),
    }
    print(page_of(tables([line])), end="", flush=True)
    if options.record:
        path = path_of(options.program)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)


def rows_of(seconds: Mapping[str, Sequence[float]], by: str = "variant", **names: str) -> list[Row]:
    """A row for each way: the milliseconds of a step, and its time relative to the first; both are medians over rounds.

    Args:
        seconds: By way, the seconds of a step in each round.
        by: What the ways are called.
        **names: What else names the rows.
    """
    relative = ratios(seconds)
    return [
        {**names, by: name, "ms": significant(1e3 * statistics.median(times)), "ratio": round(relative[name], 4)}
        for name, times in seconds.items()
    ]


def significant(value: float, digits: int = 4) -> float:
    """A number with so many significant digits."""
    return float(f"{value:.{digits}g}")


def version_of(line: Line) -> str:
    """The version of TensorFlow, as 2.15; 0 if it is not known."""
    return ".".join(line["versions"].get("TensorFlow", "0").split(".")[:2])


def newest(lines: Iterable[Line], keys: Sequence[str], where: Mapping[str, Any]) -> list[Line]:
    """For each version of TensorFlow the last line that has some rows, with these rows only.

    A line whose version is not known counts only where there is no other.

    Args:
        lines: The lines.
        keys: What the rows have.
        where: What stands in the rows.
    """
    found = {}
    for line in lines:
        rows = [row for row in line["rows"] if set(keys) <= row.keys() and all(row.get(k) == v for k, v in where.items())]
        if rows:
            found[version_of(line)] = {**line, "rows": rows}
    if len(found) > 1:
        found.pop("0", None)
    return [found[version] for version in sorted(found, key=lambda version: [int(part) for part in version.split(".")])]


def table(
    lines: Sequence[Line],
    title: str,
    names: Sequence[str],
    numbers: Sequence[str] = (),
    pattern: str = ".2f",
    patterns: Mapping[str, str] | None = None,
    where: Mapping[str, Any] | None = None,
) -> Table:
    """A table with the rows of the newest lines of the versions of TensorFlow.

    With several versions, a table of one number has a column for each; otherwise a cell has the numbers of all versions.

    Args:
        lines: The lines.
        title: What the table is called.
        names: What names a row: each has a column.
        numbers: The titles of the numbers; without any, all that the rows have.
        pattern: The format of the numbers.
        patterns: Other formats, by title.
        where: What stands in the rows of this table.
    """
    where = where or {}
    found = newest(lines, [*names, *numbers], where)
    titles = list(numbers) or [*dict.fromkeys(key for line in found for row in line["rows"] for key in row)]
    titles = [each for each in titles if each not in names and each not in where]
    patterns = dict.fromkeys(titles, pattern) | dict(patterns or {})
    has_column_each = len(titles) == 1 and len(found) > 1
    rows = []
    for key in dict.fromkeys(_key(row, names) for line in found for row in line["rows"]):
        of_key = [next((row for row in line["rows"] if key == _key(row, names)), {}) for line in found]
        cells = [[_shown(row.get(each), patterns[each]) for row in of_key] for each in titles]
        rows.append([*map(str, key), *(cells[0] if has_column_each else map(_joined, cells))])
    columns = [f"TensorFlow {version_of(line)}" for line in found] if has_column_each else titles
    return Table(title, found, markdown([*names, *columns], rows))


def _key(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def _shown(value: Any, pattern: str) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:{pattern}}"


def _joined(values: Sequence[str]) -> str:
    return ", ".join(value or "–" for value in values) if any(values) else ""


def relative_table(lines: Sequence[Line], title: str, by: str = "variant", **where: Any) -> Table:
    """A table of the ratios of `rows_of`, whose title has the time of the first way."""
    made = table(lines, title, [by], ["ratio"], where=where)
    first = [line["rows"][0] for line in made.lines]
    times = " and ".join(duration(row["ms"]) for row in first if "ms" in row)
    return made._replace(title=f"{title} ({first[0][by]}: {times})") if times else made


def duration(milliseconds: float) -> str:
    """Milliseconds, or seconds."""
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


def source(lines: Sequence[Line]) -> str:
    """The commands, commits, versions, cores and rounds of some lines."""

    def each(values: Iterable[Any]) -> str:
        return " and ".join(dict.fromkeys(map(str, values)))

    libraries = dict.fromkeys(name for line in lines for name in line["versions"])
    known = (f"{name} {each(line['versions'][name] for line in lines if name in line['versions'])}" for name in libraries)
    parts = [
        each(f"`{line['command']}`" for line in lines),
        each("commit not recorded" if line["commit"] is None else f"commit {line['commit']}" for line in lines),
        ", ".join(known) or "versions not recorded",
        f"{each(line['cores'] for line in lines)} cores, {each(line['rounds'] for line in lines)} rounds",
    ]
    return "; ".join(parts)


def page_of(tables: Iterable[Table]) -> str:
    """The tables as a page has them: each source stands once before the tables that come from it."""
    parts, before = [], ""
    for each in tables:
        if each.lines:
            text = source(each.lines)
            parts += [] if text == before else [f"{text}\n"]
            parts += [f"{each.title}:\n"] if each.title else []
            parts.append(each.text)
            before = text
    return "\n".join(parts)
