"""The command line of the study."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples._command_line import InputError, Parser, fail, what_to_install, whole
from examples._rows import QUOTES, SEPARATORS

PROGRAM = "examples.convergence_study"
VARIANTS = (
    "two_optimizers", "two_optimizers_mean", "turns", "while_conflicting", "sum",
    "unreduced_adam", "repaired_adam", "unreduced_adadelta", "repaired_adadelta", "unreduced_sgd", "repaired_sgd",
    "equal_norms", "norm_budget", "upgrad", "nash_mtl", "imtlg", "meta_balance",
    "weight_4", "weight_16", "weight_64", "tuned_weight", "clip_by_part",
)  # fmt: skip
"""All variants except the references, which are always run."""
QUICK_VARIANTS = ("two_optimizers", "turns", "sum", "equal_norms", "unreduced_sgd")
DEFAULTS = {"variants": VARIANTS, "seeds": 5, "updates": 500, "orders": 6000, "measurements": 20}
QUICK = {"variants": QUICK_VARIANTS, "seeds": 1, "updates": 120, "orders": 2000, "measurements": 6}


def build_parser() -> argparse.ArgumentParser:
    """The options, with help texts."""
    from examples.convergence_study import __doc__ as description

    parser = Parser(PROGRAM, description=description)
    add = parser.add_argument
    add("--quick", action="store_true", help="few variants, one seed, few updates; takes two minutes")
    add(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        metavar="VARIANT",
        help="the variants to compare, in addition to each head alone; choose from "
        f"{', '.join(VARIANTS)} (default: all; quick: {', '.join(QUICK_VARIANTS)})",
    )
    for name, what in (
        ("seeds", "number of seeds, for the weights and the order of the batches"),
        ("updates", "updates per run, rounded down to a multiple of the measurements"),
        ("measurements", "measurements per run, at most one per update"),
    ):
        add(f"--{name}", type=whole(1), metavar="N", help=f"{what} (default: {DEFAULTS[name]}; quick: {QUICK[name]})")
    add(
        "--optimizer",
        choices=("adam", "adadelta", "sgd"),
        default="adam",
        help="optimizer of all variants that do not specify their own (default: adam)",
    )
    add("--batch-size", type=whole(1), default=64, metavar="N", help="rows per batch (default: 64)")
    add("--units", type=whole(1), default=64, metavar="N", help="size of the hidden state (default: 64)")
    add("--embedding", type=whole(1), default=32, metavar="N", help="size of the token embeddings (default: 32)")
    add("--output", type=Path, default=Path("runs", "convergence_study"), metavar="DIR", help="folder for the results")
    data = parser.add_argument_group("data (generated orders, unless --train is given)")
    orders = "generated orders to train on, plus a tenth as many for validation "
    orders += f"(default: {DEFAULTS['orders']}; quick: {QUICK['orders']})"
    data.add_argument("--orders", type=whole(1), metavar="N", help=orders)
    data.add_argument("--train", metavar="FILE", help="CSV or TSV file to train on, plain or gzipped")
    data.add_argument("--dev", metavar="FILE", help="validation file of the same format; required with --train")
    data.add_argument("--separator", choices=tuple(SEPARATORS), help="what separates the cells of a row (default: found)")
    data.add_argument("--quotes", choices=QUOTES, help="what quotes are: marks around cells, or text (default: found)")
    for name, default, what in (
        ("source", "text", "source texts"),
        ("target", "meaning", "target sequences"),
        ("label", "price_range", "price ranges"),
    ):
        help_text = f"column with the {what} (default: {default})"
        data.add_argument(f"--{name}", metavar="COLUMN", default=default, help=help_text)
    data.add_argument("--bands", type=whole(1), metavar="N", help="bin a numeric label column into N price ranges")
    data.add_argument(
        "--missing",
        choices=("ignore", "class"),
        default="ignore",
        help="treat an empty label as missing, or as a class of its own (default: ignore)",
    )
    return parser


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses and checks the options; on an error, exits with one line on standard error and status 2."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if (options.train is None) != (options.dev is None):
        parser.error("--train and --dev go together. Pass both files, or neither.")
    if options.train is None and options.bands is not None:
        parser.error("--bands requires --train. Pass the file to train on, or omit --bands.")
    for name, value in (QUICK if options.quick else DEFAULTS).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    # Options that the other example's data loader also reads.
    options.test, options.seed = None, 0
    options.label, options.number, options.tags = [options.label], [], None
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the study.

    Args:
        arguments: The command-line arguments; None for those of the process.

    Returns:
        0, or 2 after a one-line error message.
    """
    options = parse(arguments)
    absent = what_to_install(("matplotlib", "rich"))
    if absent is not None:
        return fail(PROGRAM, absent)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError:
        return fail(PROGRAM, f"`--output` must be a writable folder. Received: {str(options.output)!r}.")
    try:
        _run(options)
    except InputError as error:
        return fail(PROGRAM, str(error))
    except KeyboardInterrupt:
        return fail(PROGRAM, "interrupted; nothing was written.")
    return 0


def _run(options: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from examples.convergence_study import report, study
    from examples.seq2seq_price.data import load_data

    console = Console()

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    made = study.Study(options, load_data(options, say))
    results: dict[str, study.Result] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=made.total)
        try:
            for variant in made.variants:
                bar.update(task, description=variant.name)
                results[variant.name] = made.run(variant, lambda: bar.advance(task))
        except KeyboardInterrupt:
            if len(results) < made.references:
                raise
    if len(results) < len(made.variants):
        say("interrupted: reporting the completed variants")
    study.summarize(results, options.optimizer)
    diagnosis = made.diagnose(options.optimizer)
    said = study.conclude(results, options.optimizer)
    for table in report.make_tables(results):
        console.print(table)
    say("What `diagnose` reports for a price loss that is summed over the batch, before training:")
    say(str(diagnosis))
    for sentence in said:
        say(f"* {sentence}")
    more: dict[str, Any] = {"conclusions": said, "diagnosis": str(diagnosis), "findings": list(diagnosis.findings)}
    report.write_figures(options.output / "figures.json", _plain(options), results, more)
    for axis in ("examples", "seconds"):
        report.draw(options.output / f"by_{axis}.png", results, axis)
    report.draw_pace(options.output / "pace.png", results, options.optimizer)
    say(f"written to {options.output}")


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    """The options in a form that JSON can represent."""
    kept = {name: value for name, value in vars(options).items() if name not in ("test", "seed")}
    return {**kept, "output": str(options.output)}
