"""What the example programs share: options, the check for extras, a progress bar, tables and figures."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from examples import _style
from examples._command_line import InputError, Parser, fail, what_to_install, whole


class Session:
    """One run of a program: its options and its output.

    Args:
        program: The program's name.
        options: `seed`, `quick`, the folder `output`, and the program's own.
    """

    def __init__(self, program: str, options: argparse.Namespace) -> None:
        from rich.console import Console

        self.program = program
        self.seed: int = options.seed
        self.quick: bool = options.quick
        self.folder: Path = options.output
        self.options = options
        self._console = Console()

    def say(self, text: str) -> None:
        """Prints a paragraph."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def progress(self, description: str, total: int) -> Iterator[Callable[[], None]]:
        """Shows a progress bar while the block runs; call the function it yields after each of `total` steps."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task(description, total=total)
            yield lambda: bar.advance(task)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Prints a table; the first column is text, the others are numbers."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(title), title_justify="left")
        for position, column in enumerate(columns):
            table.add_column(Text(column), justify="right" if position else "left", no_wrap=not position)
        for row in rows:
            table.add_row(*map(Text, row))
        self._console.print(table)

    def save(self, figure: Any, name: str | None = None) -> Path:
        """Saves a figure in the program's folder, under the program's name by default, and prints the path."""
        path = self.folder / f"{name or self.program}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=_style.DPI)
        self.say(f"wrote {path}")
        return path


def run_program(
    program: str,
    description: str | None,
    body: Callable[[Session], None],
    arguments: Sequence[str] | None = None,
    *,
    needs: Sequence[str] = ("matplotlib", "rich"),
    own: Mapping[str, Mapping[str, Any]] | None = None,
) -> int:
    """Parses the command line, checks for extras, sets the seeds and runs a program.

    Args:
        program: The program's name.
        description: Its docstring.
        body: The program itself.
        arguments: The command-line arguments; None for those of the process.
        needs: Modules of the extras that it imports.
        own: Options of its own: by name, the arguments of `add_argument`.

    Returns:
        The exit status: 0, or 2 after a one-line error message.
    """
    name = f"examples.{program}"
    parser = Parser(name, description=description)
    shared: dict[str, dict[str, Any]] = {
        "--output": {"type": Path, "default": Path("runs", program), "metavar": "DIR", "help": "folder for the results"},
        "--seed": {"type": whole(0, below=2**31), "default": 0, "metavar": "N", "help": "random seed (default: 0)"},
        "--quick": {"action": "store_true", "help": "a small run that takes seconds"},
    }
    for option, described in {**shared, **(own or {})}.items():
        parser.add_argument(option, **described)
    options = parser.parse_args(arguments)
    absent = what_to_install(needs)
    if absent is not None:
        return fail(name, absent)
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError:
        return fail(name, f"`--output` must be a writable folder. Received: {str(options.output)!r}.")
    keras.utils.set_random_seed(options.seed)
    try:
        body(Session(program, options))
    except InputError as error:
        return fail(name, str(error))
    except KeyboardInterrupt:
        return fail(name, "interrupted.")
    return 0
