"""`python -m multihead plot run.jsonl`: draws the pictures of a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from multihead import plots


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m multihead", description="Tools for runs of multihead.")
    commands = parser.add_subparsers(dest="command", required=True)
    plot = commands.add_parser("plot", help="draw the pictures of a run", description=plots.all_of.__doc__)
    plot.add_argument("run", nargs="+", help="the file that `callbacks.Ledger` has written; several are drawn together")
    plot.add_argument(
        "--output", default=None, metavar="FOLDER", help="the folder of the pictures (default: beside the first run)"
    )
    options = parser.parse_args(arguments)
    try:
        files = plots.all_of(options.run, options.output or f"{options.run[0].removesuffix('.jsonl')}_plots")
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"python -m multihead plot: {error}")
    for file in files:
        sys.stdout.write(f"{file}\n")


if __name__ == "__main__":
    main()
