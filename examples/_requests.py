"""Requests to an assistant, read from files as people have them: texts, a tag for each word, and an intent."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np

from examples._command_line import InputError
from examples._rows import QUOTES, SEPARATORS, Dialect, opened, read_table
from examples._spans import iob

FORMATS = ("csv", "conll")
OPTIONS: dict[str, dict[str, Any]] = {
    "--train": {"metavar": "FILE", "help": "requests to train on: a table with the columns text, tags and intent"},
    "--dev": {"metavar": "FILE", "help": "requests to compare with, in the same format"},
    "--format": {"choices": FORMATS, "help": "a table, or lines of a word and its tag (default: csv)"},
    "--separator": {"choices": tuple(SEPARATORS), "help": "what separates the cells of a table (default: found, and shown)"},
    "--quotes": {"choices": QUOTES, "help": "what quotes are: marks around cells, or text (default: found, and shown)"},
}
Rows = list[dict[str, str]]


def read_files(options: Namespace, tell: Callable[[str], None]) -> tuple[Rows, Rows] | None:
    """The rows of `--train` and of `--dev`; None without them.

    Raises:
        InputError: The options do not fit together, or a file, or a row of it, cannot be used.
    """
    if options.train is None or options.dev is None:
        given = [name for name in ("train", "dev", "format", "separator", "quotes") if getattr(options, name)]
        if given:
            received = ", ".join(f"--{name}" for name in given)
            raise InputError(f"Options of files need both `--train` and `--dev`. Received: {received}. Pass both files.")
        return None
    form, dialect = options.format or "csv", Dialect(options.separator, options.quotes)
    train, dev = (read_requests(path, form, dialect, tell) for path in (options.train, options.dev))
    return train, dev


def read_requests(path: str, form: str, dialect: Dialect, tell: Callable[[str], None]) -> Rows:
    """Reads a file, plain or gzipped, in UTF-8.

    A table has the columns `text`, whose words are separated by spaces, `tags`, with a tag for each word, and `intent`. In
    the format `"conll"` a line has a word and its tag, and an empty line ends a sentence; a line with one cell above or
    below the words, or a comment such as `# intent: PlayMusic`, names the intent. Tags are `O`, or `B-x` and `I-x` of a slot
    x; others are read as conlleval reads them. An empty cell is a missing label.

    Args:
        path: The file.
        form: One of `FORMATS`.
        dialect: How a table divides its rows into cells.
        tell: Is told in one line what was read.

    Returns:
        Rows with the columns of the table, the tags in IOB.

    Raises:
        InputError: The file, or a row of it, cannot be used.
    """
    rows = _sentences(path, tell) if form == "conll" else read_table(path, ("text", "tags", "intent"), dialect, tell=tell)
    for number, row in enumerate(rows, 1):
        words, tags = row["text"].split(), row["tags"].split()
        wrong = next((tag for tag in tags if not re.fullmatch("O|[BIESLU]-.+", tag)), None)
        if not words or len(tags) not in (0, len(words)) or wrong:
            received = f"the tag {wrong!r}" if wrong else f"{len(words)} words and {len(tags)} tags"
            raise InputError(
                f"`{path}` must have words in each row, and no tags or one for each word: O, or B-x or I-x of a slot x. "
                f"Received: {received} in row {number}, {row['text'][:40]!r}. Correct the row, or --format."
            )
        row["text"], row["tags"] = " ".join(words), " ".join(iob(tags))
    return rows


def columns(rows: Rows) -> dict[str, np.ndarray]:
    """The cells of each column."""
    return {name: np.array([row[name] for row in rows]) for name in ("text", "tags", "intent")}


def _sentences(path: str, tell: Callable[[str], None]) -> Rows:
    """The sentences of a file with a word and its tag in each line."""
    rows: Rows = []
    words: list[list[str]] = []
    intent, last = "", 0  # the line that has named the intent below words
    with opened(path) as file:
        for number, line in enumerate([*file, "\n"], 1):
            cells = line.split()
            comment = re.match(r"# *intent *[:=](.*)", line, re.IGNORECASE)
            if comment:
                intent = comment[1].strip()
            elif not cells:
                if words:
                    text, tags = (" ".join(column) for column in zip(*words))
                    rows.append({"text": text, "tags": tags, "intent": intent})
                words, intent, last = [], "", 0
            elif len(cells) == 1 and not intent:
                intent, last = cells[0], number if words else 0
            elif len(cells) == 2 and not last:
                words.append(cells)
            elif len(cells) < 3 or cells[0] != "#":
                number, count = (last, 1) if len(cells) == 2 else (number, len(cells))
                raise InputError(
                    f"`{path}` must have a word and its tag in each line. Received: {count} cells in line {number}. Keep "
                    "two columns, with a space or a tab between them; the intent may stand below or above them, by itself."
                )
    if not rows:
        raise InputError(f"`{path}` must have sentences, words with tags. Received: none. Check the file and --format.")
    tell(f"{len(rows)} sentences of {path}")
    return rows
