"""What the benchmarks beside published tables share: variants by name, options of the command, and cells of tables."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._results import markdown as markdown
from examples._command_line import InputError, Parser, whole
from multihead import balancing, weighting
from multihead._ground.validation import did_you_mean
from multihead._method import methods
from multihead.comparison import Comparison, Difference
from multihead.comparison._findings import difference_of
from multihead.comparison._jobs import Line, read_lines

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DATA = ROOT.parent / "shared" / "data"
PLAIN = "plain sum"
AT_PARAMETERS = ", parameters"

Variant = dict[str, Any]
"""Options of `compile`, and `weights`, as `multihead.compare` takes them."""


def variants_of(
    names: Sequence[str], heads: Sequence[str], special: Mapping[str, Variant] | None = None
) -> dict[str, Variant]:
    """Variants by their names.

    A variant is `"plain sum"`; a balancer or a weighting of the library by the name of its class, with its defaults; a
    balancer with `", parameters"`, which acts there; or `"{head} {weight}"`, the plain sum with another weight of one head.

    Args:
        names: The names.
        heads: The heads, which have weight 1.
        special: Variants with options of their own, by name; with `", parameters"` they act there.

    Raises:
        InputError: There is no such variant.
    """
    return {name: _variant_of(name, heads, special or {}) for name in names}


def _variant_of(name: str, heads: Sequence[str], special: Mapping[str, Variant]) -> Variant:
    base = name.removesuffix(AT_PARAMETERS)
    level = {"balance_at": "parameters"} if base != name else {}
    if base in special:
        return {**special[base], **level}
    if name == PLAIN:
        return {}
    balancers, weightings = methods(balancing.Balancer), methods(weighting.Weighting)
    if base in balancers:
        return {"balancer": base, **level}
    if name in weightings:
        return {"weighting": name}
    found = re.fullmatch(r"(.+) (\d+(?:\.\d+)?)", name)
    if found and found[1] in heads:
        return {"weights": {found[1]: float(found[2])}}
    known = [PLAIN, *special, *balancers, *weightings]
    hint = did_you_mean([base], known, f"Pass the name of a balancer or a weighting, or {heads[0]!r} and a weight.")
    raise InputError(f"`--variants` must be names of variants. Received: {name!r}. {hint}")


def parser_of(program: str, description: str | None, *, seeds: int, epochs: int, rates: Sequence[float]) -> Parser:
    """The options that the benchmarks have in common.

    Args:
        program: The program's name.
        description: Its description.
        seeds: The default number of seeds.
        epochs: The default number of epochs.
        rates: The default grid of learning rates.
    """
    parser = Parser(program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, metavar="FOLDER", help="folder of the data")
    parser.add_argument("--seeds", type=whole(1), default=seeds, metavar="N", help=f"number of seeds (default: {seeds})")
    parser.add_argument("--epochs", type=whole(1), default=epochs, metavar="N", help=f"number of epochs (default: {epochs})")
    parser.add_argument("--rates", type=float, nargs="+", default=rates, metavar="RATE", help="grid of learning rates")
    parser.add_argument(
        "--variants", nargs="+", metavar="VARIANT", help="names of variants: see the documentation of the command"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="folder of the files of lines")
    parser.add_argument("--quick", action="store_true", help="two variants, one epoch, one seed and a tenth of the data")
    parser.add_argument("--table", action="store_true", help="only print the tables of the lines, in Markdown")
    return parser


def asked(parser: Parser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; with `--quick` smaller ones, and another folder for the lines."""
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.epochs, options.rates = 1, 1, options.rates[:1]
        options.variants = options.variants or [PLAIN, "EqualNorms"]
        if options.results == RESULTS:
            options.results = Path("runs") / "quick"
    if not options.table:
        options.results.mkdir(parents=True, exist_ok=True)
    return options


def finished(path: Path) -> Comparison | None:
    """The comparison of a file; None if there is no such file, or no seed of which each head alone is trained."""
    found = Comparison(read_lines(path)) if path.exists() and path.stat().st_size else None
    return found if found is not None and "alone" in found.variants and found.seeds else None


def judged_on(lines: Sequence[Line], split: str) -> Comparison:
    """A comparison on a part of the data: `"validation"` or `"test"`."""
    settings = {**lines[0]["settings"], "split": split}
    return Comparison([{"settings": settings}, *lines[1:]])


def mean_over_heads(found: Comparison, variant: str) -> np.ndarray:
    """The mean of the heads' figures, `[seeds]`."""
    values: np.ndarray = np.mean([found.values(variant, head) for head in found.heads], axis=0)
    return values


def number_of(seeds: Sequence[int]) -> str:
    """A number of seeds in words."""
    return "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"


def spread(values: np.ndarray, digits: int = 3) -> str:
    """The mean and, with several seeds, the standard deviation."""
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def paired(values: np.ndarray, others: np.ndarray) -> Difference:
    """The paired difference of two variants, with its interval of 95 %."""
    return difference_of(np.asarray(values) - np.asarray(others), 0.95)


def interval(found: Difference, digits: int = 3, scale: float = 1.0) -> str:
    """A difference in words: the mean, and with several seeds the interval of 95 %."""
    words = [f"{scale * value:+.{digits}f}" for value in (found.mean, found.low, found.high)]
    return f"{words[0]} ({words[1]} to {words[2]})" if found.low <= found.high else words[0]
