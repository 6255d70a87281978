"""The command line: options and one-line errors."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from examples import _cluster
from examples._command_line import InputError, Parser, fail, what_to_install, whole
from examples.seq2seq_price.rows import QUOTES, SEPARATORS

PROGRAM = "examples.seq2seq_price"
DEFAULT_OUTPUT = "runs/seq2seq_price"
CHECKPOINT, SETTINGS_FILE, OPTIONS_FILE = "checkpoint", "model.json", "options.json"
"""In `--output`: the folder of an interrupted run's checkpoint; what is saved with a model; the options of the run."""
MAY_CHANGE = (
    "output", "resume", "load", "predict", "export", "beam", "test", "strategy", "port", "ray_workers", "ray_restarts"
)  # fmt: skip
"""The options that a resumed run need not have in common with the run that was interrupted."""
DESCRIPTION = """\
Trains one encoder with two heads: a decoder that generates a sequence, and a classifier that predicts a price range.
Without --train, it generates its own data, orders at a furniture workshop. With --load, it uses a trained model to predict
(--predict) or exports its heads (--export)."""
COLUMN: dict[str, Any] = {"metavar": "COLUMN"}
FILES: dict[str, Any] = {"metavar": "FILE", "nargs": "+"}
COUNT: dict[str, Any] = {"metavar": "N", "type": whole(1)}


# An option in one line, or its values in one and its help in the next.
# fmt: off
def build_parser() -> argparse.ArgumentParser:
    """The options, with help texts and defaults."""
    parser = Parser(PROGRAM, description=DESCRIPTION, formatter_class=_HelpFormatter)
    add = parser.add_argument_group("data (plain or gzipped files; generated data without --train)").add_argument
    add("--train", **FILES, help="CSV or TSV file to train on; or two parallel text files, source and target, with one text "
        "per line; these are lowercased, and have no prices")
    add("--dev", **FILES, help="validation data of the same format; required with --train")
    add("--test", **FILES, help="test data of the same format")
    add("--separator", choices=tuple(SEPARATORS), help="what separates the cells of a row (default: found, and shown)")
    add("--quotes", choices=QUOTES, help="what quotes are: marks around cells, or text (default: found, and shown)")
    add("--source", **COLUMN, default="text", help="column with the source texts")
    add("--target", **COLUMN, default="meaning", help="column with the target sequences")
    add("--label", **COLUMN, nargs="+", default=["price_range"],
        help="column with the price ranges; each additional column adds a classifier, a head named after the column")
    add("--number", **COLUMN, nargs="+", default=[], help="numeric columns, each of which adds a regressor")
    add("--tags", **COLUMN, help="column with one tag per word of the source text, space-separated; adds a tagger")
    add("--bands", metavar="N", type=whole(2),
        help="divide a numeric label column (the first one) into N price ranges with equal numbers of rows")
    add("--missing", choices=("ignore", "class"), default="ignore",
        help="treat an empty label as missing, or as a class of its own; an empty target is missing in any case")
    add("--swap-column", **COLUMN, nargs="+", default=[], help="columns whose values are swapped at random in source and "
        "target in every epoch (for names that happen to correlate with a price range)")
    add("--max-tokens", **COUNT, default=200, help="maximum length of a source or target")
    add("--orders", metavar="N", type=whole(20), default=20000,
        help="generated orders to train on; N/10 more are used for validation")

    add = parser.add_argument_group("model").add_argument
    add("--units", **COUNT, default=128, help="size of the recurrent states")
    add("--embedding", **COUNT, default=64, help="size of the token embeddings")
    add("--cell", choices=("gru", "lstm", "transformer"), default="gru", help="recurrent layers of a type, or a transformer")
    add("--layers", **COUNT, help="layers of the encoder and of the decoder (default: 1, of a transformer 2)")
    add("--attention", choices=("luong", "bahdanau", "none"), help="attention of a recurrent decoder (default: luong)")
    add("--attention-heads", **COUNT, help="attention heads in each layer of a transformer (default: 4)")
    add("--dropout", metavar="RATE", type=_number(0, below=1), default=0.1, help="dropout rate")

    _add_training_options(parser)
    _cluster.add_options(parser)

    add = parser.add_argument_group("results").add_argument
    add("--beam", **COUNT, default=1, help="beam width; 1 is greedy search")
    add("--output", metavar="DIR", default=DEFAULT_OUTPUT, help="folder for all results")
    add("--export", metavar="DIR", help="folder for the trained heads as SavedModels that take and return texts")
    add("--load", metavar="DIR", help="folder of a finished run; requires --predict or --export")
    add("--predict", metavar="TEXT", nargs="+", help="texts to predict for; requires --load")
    return parser


def _add_training_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("training").add_argument
    add("--epochs", **COUNT, default=16, help="passes over the training rows")
    add("--patience", **COUNT, help="stop after N epochs without a lower validation loss; by default, train for all epochs "
        "(in both cases, the weights of the best epoch are restored)")
    add("--batch-size", **COUNT, default=128, help="rows per batch")
    add("--learning-rate", metavar="RATE", type=_number(0, open_start=True),
        help="initial learning rate of AdamW, with cosine decay to 0 (default: 0.004, of a transformer 0.002)")
    add("--weight-decay", metavar="W", type=_number(0), default=0.3,
        help="weight decay of AdamW, multiplied by the learning rate")
    add("--balancer", metavar="NAME", help="balancer for the heads' gradients, for example UPGrad (default: plain sum)")
    add("--balance-at", choices=("representation", "parameters"), default="representation",
        help="where to balance gradients")
    add("--schedule", metavar="HEADS=TURNS", type=_schedule,
        help="train the heads in alternation, for example price:reply=1:9 (default: together)")
    add("--price-weight", metavar="W", type=_number(0), default=1.0, help="weight of the price loss; the reply's is 1")
    add("--micro-batches", **COUNT, default=1, help="micro-batches per batch, to save memory")
    add("--clip", metavar="KIND:LIMIT", type=_clip, default="global-norm:5",
        help="clip gradients by value, norm, average-norm or global-norm, for example global-norm:5; or none")
    add("--seed", metavar="N", type=whole(0), default=0, help="random seed for data, initial weights and order")
    add("--resume", action="store_true", help="continue the interrupted run in --output, with the same options")
# fmt: on


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses and checks the options; on an error, exits with one line on standard error and status 2."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    _fill_in(parser, options)
    asked = options.predict is not None or options.export is not None
    if (options.load is None and options.predict is not None) or (options.load is not None and not asked):
        parser.error(
            "--load and --predict go together. Pass the folder of a finished run and the texts to predict for, or the "
            "folder to --export it to."
        )
    if options.train is None:
        of_files = {"dev": options.dev, "test": options.test, **_of_tables(options)}
        unused = next((name for name, value in of_files.items() if value), None)
        if unused is not None:
            parser.error(f"--{unused} requires --train. Pass the file to train on, or omit --{unused}.")
    elif options.dev is None:
        parser.error("--train requires --dev. Pass the file to validate on.")
    else:
        _check_files(parser, options)
    _cluster.check_options(parser, options)
    return options


def _fill_in(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """The defaults that depend on `--cell`; exits with an error for an option of the other kind of model."""
    is_transformer = options.cell == "transformer"
    other = "attention" if is_transformer else "attention-heads"
    value = vars(options)[other.replace("-", "_")]
    if value is not None:
        needed = "gru or lstm" if is_transformer else "transformer"
        parser.error(f"--{other} requires --cell {needed}. Received: --{other} {value} --cell {options.cell}. Omit it.")
    if is_transformer:
        options.attention_heads = options.attention_heads or 4
        if options.units % options.attention_heads:
            parser.error(
                "--attention-heads must divide --units. Received: "
                f"--attention-heads {options.attention_heads} --units {options.units}. Choose a divisor, such as 1."
            )
    options.attention = options.attention or ("multi-head" if is_transformer else "luong")
    options.layers = options.layers or (2 if is_transformer else 1)
    options.learning_rate = options.learning_rate or (2e-3 if is_transformer else 4e-3)


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
    if not options.resume and (is_interrupted or is_finished):
        kind = "an interrupted one" if is_interrupted else "a finished one"
        remedy = "Add --resume to continue it, or pass" if is_interrupted else "Pass"
        raise InputError(
            f"`--output` must be a folder without a run. Received: {options.output!r}, which has {kind}. "
            f"{remedy} another --output, or remove the folder."
        )
    # Workers are started again by a program, which need not know how far they were.
    if options.resume and not is_interrupted and options.strategy != "multi-worker":
        remedy = "Pass the folder to --load to use its model, or another --output" if is_finished else "Omit --resume"
        raise InputError(
            f"`--resume` requires an interrupted run. Received: {options.output!r}, which has "
            f"{'a finished one' if is_finished else 'none'}. {remedy}."
        )
    return is_finished


def check_same_options(options: argparse.Namespace, saved: Path) -> None:
    """Checks that the options of a resumed run are those that it began with, in a file; writes them for a new run.

    Raises:
        InputError: Some are not.
    """
    present = json.loads(json.dumps({name: value for name, value in vars(options).items() if name not in MAY_CHANGE}))
    if not options.resume or not saved.is_file():
        saved.write_text(json.dumps(present, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    before = json.loads(saved.read_text(encoding="utf-8"))
    changed = [name for name in present if name in before and present[name] != before[name]]
    if changed:
        option = {name: "--" + name.replace("_", "-") for name in changed}
        raise InputError(
            "`--resume` must have the options with which the run began. Received: "
            f"{', '.join(f'{option[name]} {_shown(present[name])} instead of {_shown(before[name])}' for name in changed)}. "
            "Pass what it was, or omit --resume and pass another --output."
        )


def _shown(value: Any) -> str:
    """A value of an option, as it is typed as far as possible."""
    return "(none)" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)


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
    if options.ray_workers is not None and options.load is None:
        return _by_ray(options)
    try:
        from examples.seq2seq_price import run
    except ImportError as error:
        return fail(PROGRAM, str(error))
    console = run.Console()
    try:
        run.train(options, console) if options.load is None else run.use(options, console)
    except InputError as error:
        return fail(PROGRAM, str(error))
    except KeyboardInterrupt:
        if options.load is None and (Path(options.output) / CHECKPOINT / "run.checkpoint").is_file():
            return fail(PROGRAM, "interrupted; what was trained is kept. Add --resume to the same command to continue.")
        return fail(PROGRAM, "interrupted, before anything was saved. Start the same command again.")
    return 0


def _by_ray(options: argparse.Namespace) -> int:
    try:
        check_output(options)
        _cluster.run_by_ray(as_worker, vars(options), options.ray_workers, options.ray_restarts)
    except InputError as error:
        return fail(PROGRAM, str(error))
    return 0


def as_worker(options: dict[str, Any]) -> None:
    """What each worker of Ray runs; one that is started again continues."""
    from examples.seq2seq_price import run

    run.train(argparse.Namespace(**{**options, "resume": True}), run.Console())


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
    for name, value in _of_tables(options).items():
        if number == 2 and value:
            parser.error(f"--{name} requires a table with columns. Received: two text files. Omit it.")
    if options.tags is not None and options.swap_column:
        parser.error(
            "--tags and --swap-column cannot be combined: a swapped value may have a different number of words. "
            f"Received: --tags {options.tags} --swap-column {' '.join(options.swap_column)}. Omit one of them."
        )


def _of_tables(options: argparse.Namespace) -> dict[str, Any]:
    """What was passed for options that need a table with columns; of the labels, those of additional heads."""
    return {
        "bands": options.bands,
        "separator": options.separator,
        "quotes": options.quotes,
        "swap-column": options.swap_column,
        "label": options.label[1:],
        "number": options.number,
        "tags": options.tags,
    }


class _HelpFormatter(argparse.HelpFormatter):
    """Adds the default to the help texts."""

    def _get_help_string(self, action: argparse.Action) -> str:
        default = " ".join(action.default) if isinstance(action.default, list) else action.default
        shown = isinstance(default, (int, float, str)) and default not in ("", argparse.SUPPRESS) and default is not False
        return f"{action.help} (default: {default})" if shown else str(action.help)


def _number(start: float, *, below: float = math.inf, open_start: bool = False) -> Callable[[str], float]:
    """A type for `argparse`: numbers from `start`, or above it, to below `below`."""
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
