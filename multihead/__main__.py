"""`python -m multihead plot run.jsonl` draws a run; `python -m multihead compare config.py` compares variants."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

from multihead import plots
from multihead._display.drawing import check_own, optional, save
from multihead.comparison._compare import compare


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
        if options.command == "plot":
            written = plots.all_of(options.run, options.output or f"{options.run[0].removesuffix('.jsonl')}_plots")
        else:
            written = _compare(options)
    except (OSError, ValueError, TypeError, RuntimeError, ImportError) as error:
        sys.exit(f"python -m multihead {options.command}: {error}")
    for path in written:
        sys.stdout.write(f"{path}\n")


def _compare(options: argparse.Namespace) -> list[Path]:
    """Runs the comparison of a file whose variables are the arguments of `compare`, prints it and returns what it wrote.

    If matplotlib is installed, the front is drawn too. The file is imported from its folder, under its name without `.py`,
    so that other processes can import it as well.
    """
    path, parameters = Path(options.config), inspect.signature(compare).parameters
    module = None
    if path.is_file() and path.suffix == ".py":
        sys.path.insert(0, str(path.resolve().parent))
        module = importlib.import_module(path.stem)
    if module is None or Path(module.__file__ or "").resolve() != path.resolve():
        raise ValueError(
            "`config` must be a Python file whose name no other module has, such as `my_study.py`. "
            f"Received: {options.config!r}. Correct the path, or rename the file."
        )
    arguments = {name: getattr(module, name) for name in parameters if hasattr(module, name)}
    arguments["file"] = file = Path(options.file or path.with_suffix(".jsonl"))
    if options.processes is not None:
        arguments["processes"] = options.processes
    picture = file.with_suffix(".png")
    check_own("file", [picture])
    result = compare(**arguments)
    sys.stdout.write(f"\n{result}\n\n")
    if optional("matplotlib") is None:
        return [file]
    save(plots.front(result), picture)
    return [file, picture]


if __name__ == "__main__":
    main()
