"""`python -m multihead plot run.jsonl` draws a run; `python -m multihead compare config.py` compares variants."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from multihead import plots
from multihead._display.tables import optional
from multihead.comparison._config import compare_config


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m multihead", description="Tools for runs of multihead.")
    commands = parser.add_subparsers(dest="command", required=True)
    plot = commands.add_parser("plot", help="draw the plots of a run", description=plots.all_of.__doc__)
    plot.add_argument(
        "run", nargs="+", help="the file that `callbacks.UpdateLogger` has written; several are drawn together"
    )
    plot.add_argument(
        "--output", default=None, metavar="FOLDER", help="the folder of the plots (default: beside the first run)"
    )
    compared = commands.add_parser(
        "compare",
        help="compare variants with each other and with each head alone",
        description="Runs `multihead.compare` with the variables of a file as its arguments. Finished runs are written to a "
        "file of JSON lines; started again, the command goes on where it stopped.",
    )
    compared.add_argument("config", help="a file of Python that defines build, data, variants, seeds and budget")
    compared.add_argument(
        "--file", default=None, metavar="LINES", help="the file of finished runs (default: beside the config, .jsonl)"
    )
    compared.add_argument("--processes", type=int, default=None, help="how many runs are trained at once (default: 1)")
    options = parser.parse_args(arguments)
    try:
        written = _draw(options) if options.command == "plot" else _compare(options)
    except (OSError, ValueError, TypeError, RuntimeError, ImportError) as error:
        sys.exit(f"python -m multihead {options.command}: {error}")
    for each in written:
        sys.stdout.write(f"{each}\n")


def _draw(options: argparse.Namespace) -> list[Path]:
    return plots.all_of(options.run, options.output or f"{options.run[0].removesuffix('.jsonl')}_plots")


def _compare(options: argparse.Namespace) -> list[Path]:
    """Compares, prints the result and, if matplotlib is installed, draws the front beside the lines."""
    file = Path(options.file or f"{options.config.removesuffix('.py')}.jsonl")
    given = {} if options.processes is None else {"processes": options.processes}
    found = compare_config(options.config, file=file, **given)
    sys.stdout.write(f"\n{found}\n\n")
    if optional("matplotlib") is None:
        return [file]
    plots.front(found).savefig(file.with_suffix(".png"))
    return [file, file.with_suffix(".png")]


if __name__ == "__main__":
    main()
