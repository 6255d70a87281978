"""The command line: options and one-line errors."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples import _cluster
from examples._command_line import InputError, Parser, fail, what_to_install, whole
from examples._rows import QUOTES, SEPARATORS

PROGRAM = "examples.seq2seq_price"
DEFAULT_OUTPUT = "runs/seq2seq_price"
CHECKPOINT, SETTINGS_FILE = "checkpoint", "model.json"
"""In `--output`: the folder of an interrupted run's checkpoint; what is saved with a model."""
ORDERS: dict[str, Any] = {
    "epochs": 9, "units": 64, "embedding": 32, "attention": "none", "dropout": 0.0, "batch_size": 64,
    "learning_rate": 0.01, "weight_decay": 0.0,
}  # fmt: skip
FILES: dict[str, Any] = {
    "epochs": 30, "units": 128, "embedding": 64, "attention": "auto", "dropout": 0.4, "batch_size": 128,
    "learning_rate": 0.004, "weight_decay": 0.05,
}  # fmt: skip
TRANSFORMER: dict[str, Any] = {"attention": "multi-head", "layers": 2, "learning_rate": 0.002}
"""The defaults on generated orders, with `--train`, and of a transformer."""
DESCRIPTION = """\
Trains one encoder with two heads: a decoder that writes a sequence, and a classifier that estimates a price range.
Without --train, it generates orders at a furniture workshop and compares: each head alone, the plain sum of their losses,
and balanced gradients. With --train it trains on your files, with --load it uses a trained model."""
COLUMN: dict[str, Any] = {"metavar": "COLUMN"}
FILE: dict[str, Any] = {"metavar": "FILE"}
COUNT: dict[str, Any] = {"metavar": "N", "type": whole(1)}


# An option in one line, or its values in one and its help in the next.
# fmt: off
def build_parser() -> argparse.ArgumentParser:
    """The options, with help texts and defaults."""
    parser = Parser(PROGRAM, description=DESCRIPTION)
    add = parser.add_argument_group("data (plain or gzipped files; generated data without --train)").add_argument
    add("--train", **FILE, help="CSV or TSV file to train on")
    add("--dev", **FILE, help="validation data of the same format; required with --train")
    add("--test", **FILE, help="test data of the same format")
    add("--separator", choices=tuple(SEPARATORS), help="what separates the cells of a row (default: found, and shown)")
    add("--quotes", choices=QUOTES, help="what quotes are: marks around cells, or text (default: found, and shown)")
    add("--source", **COLUMN, default="text", help="column with the source texts (default: text)")
    add("--target", **COLUMN, default="meaning", help="column with the target sequences (default: meaning)")
    add("--label", **COLUMN, nargs="+", default=["price_range"], help="column with the price ranges; each additional column "
        "adds a classifier, a head named after the column (default: price_range)")
    add("--number", **COLUMN, nargs="+", default=[], help="numeric columns, each of which adds a regressor")
    add("--tags", **COLUMN, nargs=1, default=[],
        help="column with one tag per word of the source text, space-separated; adds a tagger")
    add("--bands", metavar="N", type=whole(2),
        help="divide a numeric label column (the first one) into N price ranges with equal numbers of rows")
    add("--missing", choices=("ignore", "class"), default="ignore",
        help="treat an empty label as missing, or as a class of its own; an empty target is missing in any case")
    add("--missing-values", metavar="LIST", type=lambda text: tuple(text.split(",")), default=(),
        help="cells that mean that a label, number, tag or target is missing, besides empty ones, for example n/a,NaN,-")
    add("--orders", metavar="N", type=whole(20), default=6000,
        help="generated orders to train on; N/6 more, or N/10 for one model only, are held out (default: 6000)")

    add = parser.add_argument_group("model").add_argument
    add("--units", **COUNT, help="size of the recurrent states" + _defaults("units"))
    add("--embedding", **COUNT, help="size of the token embeddings" + _defaults("embedding"))
    add("--cell", choices=("gru", "lstm", "transformer"), default="gru", help="recurrent layers of a type, or a transformer")
    add("--layers", **COUNT, help="layers of the encoder and of the decoder (default: 1, of a transformer 2)")
    add("--attention", choices=("auto", "luong", "bahdanau", "none"),
        help="attention of a recurrent decoder; auto: where sources are long" + _defaults("attention"))
    add("--dropout", metavar="RATE", type=float, help="dropout rate" + _defaults("dropout"))

    add = parser.add_argument_group("training").add_argument
    add("--epochs", **COUNT, help="passes over the training rows" + _defaults("epochs"))
    add("--patience", **COUNT, help="stop after N epochs without a lower validation loss, and restore the weights of the "
        "best epoch (default: all epochs, and the weights of the last one)")
    add("--batch-size", **COUNT, help="rows per batch" + _defaults("batch_size"))
    add("--learning-rate", metavar="RATE", type=float,
        help="initial learning rate of AdamW, with cosine decay to 0" + _defaults("learning_rate"))
    add("--weight-decay", metavar="W", type=float, help="weight decay of AdamW" + _defaults("weight_decay"))
    add("--balancer", metavar="NAME",
        help="train one model only, with this balancer for the heads' gradients, for example Sum "
        "(default of one model: NormFloor with a floor of 1)")
    add("--micro-batches", **COUNT, default=1, help="micro-batches per batch, to save memory")
    add("--seed", metavar="N", type=whole(0), default=0, help="random seed for data, initial weights and order (default: 0)")
    add("--resume", action="store_true", help="continue the interrupted run in --output, with the same options")
    _cluster.add_options(parser)

    add = parser.add_argument_group("results").add_argument
    add("--beam", **COUNT, default=1, help="beam width; 1 is greedy search")
    add("--output", metavar="DIR", default=DEFAULT_OUTPUT, help=f"folder for all results (default: {DEFAULT_OUTPUT})")
    add("--export", metavar="DIR", help="folder for the trained heads as SavedModels that take and return texts")
    add("--load", metavar="DIR", help="folder of a finished run; requires --predict or --export")
    add("--predict", metavar="TEXT", nargs="+", help="texts to predict for; requires --load")
    return parser
# fmt: on


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses and checks the options; on an error, exits with one line on standard error and status 2."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.cell == "transformer" and options.attention is not None:
        parser.error(f"--attention requires --cell gru or lstm. Received: --attention {options.attention}. Omit it.")
    of_kind = {**(ORDERS if options.train is None else FILES), **(TRANSFORMER if options.cell == "transformer" else {})}
    for name, default in {"layers": 1, **of_kind}.items():
        if vars(options)[name] is None:
            setattr(options, name, default)
    options.attention = None if options.attention == "none" else options.attention
    rates = {name: vars(options)[name] for name in ("dropout", "learning_rate", "weight_decay")}
    if not (0 <= options.dropout < 1 and 0 < options.learning_rate < math.inf and 0 <= options.weight_decay < math.inf):
        parser.error(
            "--dropout must be at least 0 and below 1, --learning-rate above 0, and --weight-decay at least 0. "
            f"Received: {rates}. Correct the rate."
        )
    asked = options.predict is not None or options.export is not None
    if (options.load is None and options.predict is not None) or (options.load is not None and not asked):
        parser.error(
            "--load and --predict go together. Pass the folder of a finished run and the texts to predict for, or the "
            "folder to --export it to."
        )
    if options.train is None:
        of_files = ("dev", "test", "bands", "separator", "quotes", "number", "tags", "missing_values")
        unused = next((name for name in of_files if vars(options)[name]), "label" if options.label[1:] else None)
        if unused is not None:
            flag = f"--{unused.replace('_', '-')}"
            parser.error(f"{flag} requires --train. Pass the file to train on, or omit {flag}.")
    elif options.dev is None:
        parser.error("--train requires --dev. Pass the file to validate on.")
    _cluster.check_options(parser, options)
    return options


def compares(options: argparse.Namespace) -> bool:
    """Whether the ways to train are compared, on generated orders, rather than one model trained or used."""
    chosen = (options.train, options.load, options.balancer)
    return all(each is None for each in chosen) and options.strategy == "none" and not options.resume


def check_output(options: argparse.Namespace) -> bool:
    """Checks that no run in `--output` would be overwritten, and that there is one to resume.

    Returns:
        Whether a run of several workers, which is started again, has already finished.

    Raises:
        InputError: A run would be overwritten, or there is none to resume.
    """
    folder = Path(options.output)
    is_interrupted = (folder / CHECKPOINT / "run.checkpoint").is_file()
    is_finished = (folder / SETTINGS_FILE).is_file() and not is_interrupted
    received = f"Received: {options.output!r}, which has "
    received += "an interrupted one." if is_interrupted else "a finished one." if is_finished else "none."
    if not options.resume and (is_interrupted or is_finished):
        remedy = "Add --resume to continue it, or pass" if is_interrupted else "Pass"
        raise InputError(
            f"`--output` must be a folder without a run. {received} {remedy} another --output, or remove the folder."
        )
    # Workers are started again by a program, which need not know how far they were.
    if options.resume and not is_interrupted and options.strategy != "multi-worker":
        remedy = "Pass the folder to --load to use its model, or another --output." if is_finished else "Omit --resume."
        raise InputError(f"`--resume` requires an interrupted run. {received} {remedy}")
    return is_finished


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the example, and returns the exit status: 0, or 2 after a one-line error message."""
    options = parse(arguments)
    absent = what_to_install(("matplotlib", "rich"))
    if absent is not None:
        return fail(PROGRAM, absent)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        if options.ray_workers is not None and options.load is None:
            check_output(options)
            _cluster.run_by_ray(as_worker, vars(options), options.ray_workers, options.ray_restarts)
            return 0
        from examples.seq2seq_price import comparison, run

        work = comparison.compare if compares(options) else run.train if options.load is None else run.use
        work(options)
    except (ImportError, InputError) as error:
        return fail(PROGRAM, str(error))
    except KeyboardInterrupt:
        if options.load is None and (Path(options.output) / CHECKPOINT / "run.checkpoint").is_file():
            return fail(PROGRAM, "interrupted; what was trained is kept. Add --resume to the same command to continue.")
        return fail(PROGRAM, "interrupted, before anything was saved. Start the same command again.")
    return 0


def as_worker(options: dict[str, Any]) -> None:
    """What each worker of Ray runs; one that is started again continues."""
    from examples.seq2seq_price import run

    run.train(argparse.Namespace(**{**options, "resume": True}))


def _defaults(name: str) -> str:
    return f" (default: {ORDERS[name]}, with --train {FILES[name]})"
