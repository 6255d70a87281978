"""The command line: options and one-line errors."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence

from examples._command_line import Parser, fail, what_to_install, whole

PROGRAM = "examples.seq2seq_price"
DEFAULT_OUTPUT = "runs/seq2seq_price"
DESCRIPTION = """\
Trains one encoder with two heads: a decoder that generates a sequence, and a classifier that predicts a price range.
Without --train, it generates its own data, orders at a furniture workshop. With --load, it uses a trained model to predict
(--predict) or exports its heads (--export)."""


def build_parser() -> argparse.ArgumentParser:
    """The options, with help texts and defaults."""
    parser = Parser(PROGRAM, description=DESCRIPTION, formatter_class=_HelpFormatter)
    data = parser.add_argument_group("data (plain or gzipped files; generated data without --train)")
    data.add_argument(
        "--train",
        metavar="FILE",
        nargs="+",
        help="CSV or TSV file to train on; or two parallel text files, source and target, with one text per line; these are "
        "lowercased, and have no prices",
    )
    data.add_argument("--dev", metavar="FILE", nargs="+", help="validation data of the same format; required with --train")
    data.add_argument("--test", metavar="FILE", nargs="+", help="test data of the same format")
    data.add_argument("--source", metavar="COLUMN", default="text", help="column with the source texts")
    data.add_argument("--target", metavar="COLUMN", default="meaning", help="column with the target sequences")
    data.add_argument(
        "--label",
        metavar="COLUMN",
        nargs="+",
        default=["price_range"],
        help="column with the price ranges; each additional column adds a classifier, a head named after the column",
    )
    data.add_argument(
        "--number", metavar="COLUMN", nargs="+", default=[], help="numeric columns, each of which adds a regressor"
    )
    data.add_argument(
        "--tags", metavar="COLUMN", help="column with one tag per word of the source text, space-separated; adds a tagger"
    )
    data.add_argument(
        "--bands",
        type=whole(2),
        metavar="N",
        help="divide a numeric label column (the first one) into N price ranges with equal numbers of rows",
    )
    data.add_argument(
        "--missing",
        choices=("ignore", "class"),
        default="ignore",
        help="treat an empty label as missing, or as a class of its own",
    )
    data.add_argument(
        "--swap-column",
        metavar="COLUMN",
        nargs="+",
        default=[],
        help="columns whose values are swapped at random in source and target in every epoch (for names that happen to "
        "correlate with a price range)",
    )
    data.add_argument("--max-tokens", type=whole(1), default=200, metavar="N", help="maximum length of a source or target")
    data.add_argument(
        "--orders",
        type=whole(20),
        default=20000,
        metavar="N",
        help="generated orders to train on; N/10 more are used for validation",
    )
    model = parser.add_argument_group("model")
    model.add_argument("--units", type=whole(1), default=128, metavar="N", help="size of the recurrent states")
    model.add_argument("--embedding", type=whole(1), default=64, metavar="N", help="size of the token embeddings")
    model.add_argument("--cell", choices=("gru", "lstm"), default="gru", help="type of recurrent layer")
    model.add_argument(
        "--attention", choices=("luong", "bahdanau", "none"), default="luong", help="attention of the decoder"
    )
    model.add_argument("--dropout", type=_number(0, below=1), default=0.1, metavar="RATE", help="dropout rate")
    training = parser.add_argument_group("training")
    training.add_argument("--epochs", type=whole(1), default=16, metavar="N", help="passes over the training rows")
    training.add_argument(
        "--patience",
        type=whole(1),
        metavar="N",
        help="stop after N epochs without a lower validation loss; by default, train for all epochs (in both cases, the "
        "weights of the best epoch are restored)",
    )
    training.add_argument("--batch-size", type=whole(1), default=128, metavar="N", help="rows per batch")
    training.add_argument(
        "--learning-rate",
        type=_number(0, open_start=True),
        default=4e-3,
        metavar="RATE",
        help="initial learning rate of AdamW, with cosine decay to 0",
    )
    training.add_argument(
        "--weight-decay",
        type=_number(0),
        default=0.3,
        metavar="W",
        help="weight decay of AdamW, multiplied by the learning rate",
    )
    training.add_argument(
        "--balancer", metavar="NAME", help="balancer for the heads' gradients, for example UPGrad (default: plain sum)"
    )
    training.add_argument(
        "--balance-at", choices=("representation", "parameters"), default="representation", help="where to balance gradients"
    )
    training.add_argument(
        "--schedule",
        type=_schedule,
        metavar="HEADS=TURNS",
        help="train the heads in alternation, for example price:reply=1:9 (default: together)",
    )
    training.add_argument(
        "--price-weight", type=_number(0), default=1.0, metavar="W", help="weight of the price loss; the reply's is 1"
    )
    training.add_argument(
        "--micro-batches", type=whole(1), default=1, metavar="N", help="micro-batches per batch, to save memory"
    )
    training.add_argument(
        "--clip",
        type=_clip,
        default=("global-norm", 5.0),
        metavar="KIND:LIMIT",
        help="clip gradients by value, norm, average-norm or global-norm, for example global-norm:5; or none",
    )
    training.add_argument(
        "--seed", type=whole(0), default=0, metavar="N", help="random seed for data, initial weights and order"
    )
    training.add_argument(
        "--resume", action="store_true", help="continue the interrupted run in --output, with the same options"
    )
    output = parser.add_argument_group("results")
    output.add_argument("--beam", type=whole(1), default=1, metavar="N", help="beam width; 1 is greedy search")
    output.add_argument("--output", metavar="DIR", default=DEFAULT_OUTPUT, help="folder for all results")
    output.add_argument(
        "--export", metavar="DIR", help="folder for the trained heads as SavedModels that take and return texts"
    )
    output.add_argument("--load", metavar="DIR", help="folder of a finished run; requires --predict or --export")
    output.add_argument("--predict", metavar="TEXT", nargs="+", help="texts to predict for; requires --load")
    return parser


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses and checks the options; on an error, exits with one line on standard error and status 2."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    asked = options.predict is not None or options.export is not None
    if (options.load is None and options.predict is not None) or (options.load is not None and not asked):
        parser.error(
            "--load and --predict go together. Pass the folder of a finished run and the texts to predict for, or the "
            "folder to --export it to."
        )
    if options.train is None:
        unused = [name for name in ("dev", "test", "bands", "tags") if getattr(options, name) is not None]
        unused += ["swap-column"] * bool(options.swap_column) + ["number"] * bool(options.number)
        unused += ["label"] * (len(options.label) > 1)
        if unused:
            parser.error(f"--{unused[0]} requires --train. Pass the file to train on, or omit --{unused[0]}.")
    elif options.dev is None:
        parser.error("--train requires --dev. Pass the file to validate on.")
    else:
        _check_files(parser, options)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the example.

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
        from examples.seq2seq_price import run
    except ImportError as error:
        return fail(PROGRAM, str(error))
    console = run.Console()
    try:
        run.train(options, console) if options.load is None else run.use(options, console)
    except run.InputError as error:
        return fail(PROGRAM, str(error))
    except KeyboardInterrupt:
        return fail(PROGRAM, "interrupted; what was trained is kept. Add --resume to the same command to continue.")
    return 0


def _check_files(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exits with an error for a mix of tables and text files, and for table options with text files."""
    number = len(options.train)
    for name in ("train", "dev", "test"):
        files = getattr(options, name)
        if files is not None and (len(files) > 2 or len(files) != number):
            parser.error(
                f"--{name} must be one table, or two text files as in --train. Received: {len(files)} "
                f"{'file' if len(files) == 1 else 'files'}. Pass as many as in --train."
            )
    several_labels = options.label if len(options.label) > 1 else None
    for name, value in (
        ("bands", options.bands),
        ("swap-column", options.swap_column),
        ("label", several_labels),
        ("number", options.number),
        ("tags", options.tags),
    ):
        if number == 2 and value:
            parser.error(f"--{name} requires a table with columns. Received: two text files. Omit it.")
    if options.tags is not None and options.swap_column:
        parser.error(
            "--tags and --swap-column cannot be combined: a swapped value may have a different number of words. "
            f"Received: --tags {options.tags} --swap-column {' '.join(options.swap_column)}. Omit one of them."
        )


def check_price_alone(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exits if additional heads are requested, for programs without them."""
    for name, value in (("label", options.label[1:]), ("number", options.number), ("tags", options.tags)):
        if value:
            rule = "must name one column" if name == "label" else "must be omitted"
            parser.error(f"`--{name}` {rule}: this program has no heads except reply and price. Received: {value!r}.")


class _HelpFormatter(argparse.HelpFormatter):
    """Adds the default to the help texts."""

    def _get_help_string(self, action: argparse.Action) -> str:
        plain = isinstance(action.default, (int, float, str)) and action.default != argparse.SUPPRESS
        if action.dest == "label":
            return f"{action.help} (default: {' '.join(action.default)})"
        if action.dest == "clip":
            return f"{action.help} (default: global-norm:5)"
        return f"{action.help} (default: %(default)s)" if plain else str(action.help)


def _number(start: float, *, below: float = math.inf, open_start: bool = False):  # noqa: ANN202 - a type for argparse
    rule = f"{'above' if open_start else 'of at least'} {start:g}"
    rule += f" and below {below:g}" if below < math.inf else ""

    def convert(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (start < number < below or (number == start and not open_start)):
            raise argparse.ArgumentTypeError(f"must be a number {rule}. Received: {text!r}.")
        return number

    return convert


def _schedule(text: str) -> dict[str, int]:
    """`price:reply=1:9` as `{"price": 1, "reply": 9}`."""
    heads, _, turns = text.partition("=")
    names, counts = heads.split(":"), turns.split(":")
    whole = all(count.isdigit() and int(count) > 0 for count in counts)
    if len(names) != len(counts) or len(set(names)) != len(names) or not whole:
        raise argparse.ArgumentTypeError(
            f"must be heads and their numbers of updates. Received: {text!r}. Write, for example, price:reply=1:9."
        )
    return {name: int(count) for name, count in zip(names, counts)}


def _clip(text: str) -> tuple[str, float] | None:
    """`global-norm:5` as `("global-norm", 5.0)`, `none` as None."""
    if text == "none":
        return None
    kind, _, limit = text.partition(":")
    try:
        number = float(limit)
    except ValueError:
        number = math.nan
    if kind not in ("value", "norm", "average-norm", "global-norm") or not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(
            "must be none, or value, norm, average-norm or global-norm with a limit above 0. "
            f"Received: {text!r}. Write, for example, global-norm:5."
        )
    return kind, number
