"""Do `sqrt(n)` times the updates buy back what `n` heads pay for one encoder? 36 small problems, three optimizers.

    python -m benchmarks.pace_law [--problems wine fraud ...] [--optimizers Adam AdamW SGD] [--seeds 10] [--quick] [--show]

The law of the pace (docs/concepts/pace.md) says that with equal running norms each of `n` heads moves at `1 / sqrt(n)` of
its pace alone, so that `sqrt(n)` times the updates should make up for it. The problems, networks and data are those of
`python -m benchmarks.norm_floor`. Each head alone trains once on an encoder of its own, with the problem's updates. The
plain sum, and `NormFloor` with a floor of 0.2 and of 1, train with as many, with `sqrt(n)` and `n` times as many, with
`sqrt(n)` times as many and twice the width of the representation, or the heads' own variables at the learning rates that
were chosen for the heads alone ("own rates"), and with as many updates of `n` times the batch. The
learning rate of each variant, and of each head alone, is the best of three (four for SGD) on three other seeds, and decays
to zero. A problem and an optimizer are a line of JSON in `--output`; what is there is not repeated, and a budget that a line
lacks is added to it. `--budgets` names those to be trained. `--show` prints the tables of a file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks import norm_floor
from benchmarks._results import markdown, read_lines
from benchmarks.norm_floor import BATCH, PROBLEMS, SEEDS, Line, Networks, Rule, State, orders_of
from examples._command_line import InputError
from multihead._runs.files import replace_text
from multihead.comparison import Difference
from multihead.comparison._findings import difference_of

LINES = norm_floor.LINES.with_name("pace_law.jsonl")
VARIANTS = ("plain sum", "floor 0.2", "floor 1")
ALONE = "alone"
OPTIMIZERS: Mapping[str, tuple[float, ...]] = {
    "Adam": (0.5, 1.0, 2.0),
    "AdamW": (0.5, 1.0, 2.0),
    "SGD": (0.2, 1.0, 5.0, 20.0),
}
"""By optimizer the grid of learning rates, as factors of the problem's rate for Adam."""


class Budget(NamedTuple):
    """What a joint model has more than each single-task model.

    Attributes:
        updates: The power of the number of heads by which updates are multiplied.
        width: The factor of the representation's width.
        batch: The power of the number of heads by which the batch is multiplied.
        own_rates: Whether the heads' own variables have the learning rates that were chosen for the heads alone.
    """

    updates: float = 0.0
    width: int = 1
    batch: int = 0
    own_rates: bool = False


BUDGETS: Mapping[str, Budget] = {
    "1": Budget(),
    "sqrt(n)": Budget(updates=0.5),
    "sqrt(n), wide": Budget(updates=0.5, width=2),
    "sqrt(n), own rates": Budget(updates=0.5, own_rates=True),
    "n": Budget(updates=1.0),
    "1, batch n": Budget(batch=1),
}
TUNING_SEEDS = (1000, 1001, 1002)


def alone(k: int) -> Rule:
    """The encoder learns from head `k` only."""

    def coefficients(squares: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        return tf.tile(tf.one_hot([k], squares.shape[1]), [squares.shape[0], 1]), state

    return coefficients


def measure(
    name: str,
    optimizer: str,
    seeds: Sequence[int],
    most: int,
    known: Collection[str] = (),
    budgets: Collection[str] = BUDGETS,
) -> dict[str, dict[str, np.ndarray]]:
    """By variant, `"alone"` first, and head: the figures `[seeds]`; a variant is its name, a colon and its budget.

    Args:
        name: The name of a problem.
        optimizer: The name of an optimizer.
        seeds: The seeds.
        most: The largest number of updates of a single-task model.
        known: Variants that are left out.
        budgets: The names of the budgets.
    """
    problem = PROBLEMS[name](seeds[0])
    heads, updates = list(problem.heads), min(most, problem.updates)
    of_one: dict[str, Rule] = {f"{ALONE} {head}": alone(k) for k, head in enumerate(heads)}
    tuned_alone: list[np.ndarray] = []

    def rates_alone() -> np.ndarray:
        """The learning rate of each head alone, `[heads]`."""
        if not tuned_alone:
            tuned_alone.append(_best(name, optimizer, of_one, updates))
        return tuned_alone[0]

    variants = {}
    if ALONE not in known:
        found = _train(name, optimizer, seeds, of_one, rates_alone(), updates)
        variants[ALONE] = {head: found[f"{ALONE} {head}"][head] for head in heads}
    for title, budget in ((title, BUDGETS[title]) for title in BUDGETS if title in budgets):
        rules = {variant: norm_floor.VARIANTS[variant] for variant in VARIANTS if f"{variant}: {title}" not in known}
        if rules:
            number, batch = round(updates * len(heads) ** budget.updates), BATCH * len(heads) ** budget.batch
            own = rates_alone() if budget.own_rates else None
            rates = _best(name, optimizer, rules, number, budget.width, batch, own)
            found = _train(name, optimizer, seeds, rules, _with(rates, own), number, budget.width, batch)
            variants |= {f"{variant}: {title}": figures for variant, figures in found.items()}
    return variants


def _best(
    name: str,
    optimizer: str,
    rules: Mapping[str, Rule],
    updates: int,
    width: int = 1,
    batch: int = BATCH,
    own: np.ndarray | None = None,
) -> np.ndarray:
    """The best of some learning rates of each variant on other seeds: that of the best mean of its heads' figures."""
    factors = OPTIMIZERS[optimizer]
    tried = {f"{variant}/{factor}": rule for variant, rule in rules.items() for factor in factors}
    rate = PROBLEMS[name](TUNING_SEEDS[0]).rate
    rates = _with(rate * np.tile(factors, len(rules)), own)
    trials = _train(name, optimizer, TUNING_SEEDS, tried, rates, updates, width, batch)
    return rate * np.array(
        [
            max(factors, key=lambda factor, variant=variant: _score(variant, trials[f"{variant}/{factor}"]))
            for variant in rules
        ]
    )


def _with(rates: np.ndarray, own: np.ndarray | None) -> np.ndarray:
    """The learning rates of variants, and those of the heads' own variables if they differ: `[variants, 1 + heads]`."""
    return rates if own is None else np.column_stack([rates, np.tile(own, (len(rates), 1))])


def _train(
    name: str,
    optimizer: str,
    seeds: Sequence[int],
    rules: Mapping[str, Rule],
    rates: np.ndarray,
    updates: int,
    width: int = 1,
    batch: int = BATCH,
) -> dict[str, dict[str, np.ndarray]]:
    problems = [PROBLEMS[name](seed) for seed in seeds]
    *hidden, last = problems[0].encoder
    problems = [problem._replace(encoder=(*hidden, width * last)) for problem in problems]
    networks = Networks(problems, seeds, rules)
    networks.train(orders_of(problems[0], seeds, updates, batch), optimizer, rates)
    figures = networks.figures()
    return {variant: {head: values[i] for head, values in figures.items()} for i, variant in enumerate(rules)}


def _score(variant: str, figures: Mapping[str, np.ndarray]) -> float:
    """The mean over heads and seeds of what a variant trains; an R2 below -1 counts as -1, as what is not finite does."""
    heads = [variant.removeprefix(f"{ALONE} ")] if variant.startswith(ALONE) else list(figures)
    return float(np.mean([np.maximum(np.nan_to_num(figures[head], nan=-1.0), -1.0) for head in heads]))


def read(path: Path) -> list[Line]:
    """A line for each problem, optimizer and variant, from a file that has one for each problem and optimizer."""
    return [
        {
            "problem": line["problem"],
            "optimizer": line["optimizer"],
            "variant": variant,
            "heads": dict(zip(line["heads"], values)),
        }
        for line in read_lines(path)
        for variant, values in line["variants"].items()
    ]


def verdicts(lines: Sequence[Line], problem: str, variant: str) -> tuple[int, int, int, float]:
    """How many heads there are, how many are better and worse than alone by the 95 % interval, and the largest loss.

    A head without a figure for alone, since a rare label does not occur or training did not stay finite, does not count; one
    that is not finite in the variant only is worse.

    Args:
        lines: Lines of one optimizer.
        problem: The name of a problem.
        variant: The name of a variant.
    """
    by_variant = {line["variant"]: line["heads"] for line in lines if line["problem"] == problem}
    found = []
    for head, values in by_variant[variant].items():
        alone = np.array(by_variant[ALONE][head], float)
        change = np.array(values, float) - alone
        if np.isfinite(alone).all():
            is_finite = np.isfinite(change).all()
            found.append(difference_of(change, 0.95) if is_finite else Difference(-np.inf, -np.inf, -np.inf, len(change)))
    worse = [each.mean for each in found if each.verdict == "worse"]
    return len(found), sum(each.verdict == "better" for each in found), len(worse), min(worse, default=0.0)


def summary(lines: Sequence[Line]) -> str:
    """Heads better and worse than alone by optimizer, budget and variant, in Markdown, without incomplete budgets."""
    rows = []
    for optimizer in dict.fromkeys(line["optimizer"] for line in lines):
        of_optimizer = [line for line in lines if line["optimizer"] == optimizer]
        known = dict.fromkeys(line["problem"] for line in of_optimizer)
        measured = {(line["problem"], line["variant"]) for line in of_optimizer}
        for budget in BUDGETS:
            if any((name, f"{variant}: {budget}") not in measured for name in known for variant in VARIANTS):
                continue
            cells = []
            for variant in VARIANTS:
                found = [verdicts(of_optimizer, name, f"{variant}: {budget}") for name in known]
                found = [each for each in found if each[0]]
                total, better, worse = (sum(each[i] for each in found) for i in range(3))
                cells += [f"{better} of {total}", str(worse), f"{sum(each[2] == 0 for each in found)} of {len(found)}"]
            rows.append([f"{optimizer}, {budget}", *cells])
    titles = [title for variant in VARIANTS for title in (f"{variant}: better", "worse", "none worse")]
    return markdown(["optimizer, updates", *titles], rows)


def by_problem(lines: Sequence[Line]) -> str:
    """For each problem and optimizer the heads better and worse than alone by `floor 1` and `sqrt(n)` times the updates."""
    optimizers = list(dict.fromkeys(line["optimizer"] for line in lines))
    rows = []
    for name in dict.fromkeys(line["problem"] for line in lines):
        cells = []
        for optimizer in optimizers:
            of_optimizer = [line for line in lines if line["optimizer"] == optimizer and line["problem"] == name]
            if not of_optimizer:
                cells.append("")
                continue
            total, better, worse, worst = verdicts(of_optimizer, name, "floor 1: sqrt(n)")
            cells.append(f"{better}, {worse} of {total}" + (f" ({worst:+.3f})" if worse else ""))
        rows.append([f"`{name}`", *cells])
    return markdown(["better, worse (worst)", *optimizers], rows)


def _short(values: np.ndarray) -> list[float | None]:
    """Figures as they are kept; None for what is not finite."""
    return [round(float(each), 4) if np.isfinite(each) else None for each in values]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--optimizers", nargs="+", choices=list(OPTIMIZERS), default=list(OPTIMIZERS))
    parser.add_argument("--budgets", nargs="+", choices=list(BUDGETS), default=list(BUDGETS))
    parser.add_argument("--seeds", type=int, default=10, choices=SEEDS, help="number of seeds")
    parser.add_argument("--quick", action="store_true", help="a few updates each, to see that it runs")
    parser.add_argument("--show", action="store_true", help="print the tables of the file, without training")
    parser.add_argument("--output", type=Path, default=LINES, help="file with a line for each problem and optimizer")
    options = parser.parse_args(arguments)
    if options.quick and options.output == LINES:
        options.output = Path("runs", "quick", LINES.name)
    lines = {(line["problem"], line["optimizer"]): line for line in read_lines(options.output)}
    wanted = [(problem, optimizer) for optimizer in options.optimizers for problem in options.problems]
    for problem, optimizer in () if options.show else wanted:
        before = lines.get((problem, optimizer), {"problem": problem, "optimizer": optimizer, "heads": [], "variants": {}})
        seeds = {len(values) for variant in before["variants"].values() for values in variant}
        if seeds - {options.seeds}:
            parser.error(f"`--seeds` must be as in `--output`. Received: {options.seeds}, and {max(seeds)} of {problem}.")
        try:
            most = 4 if options.quick else sys.maxsize
            found = measure(problem, optimizer, range(options.seeds), most, before["variants"], options.budgets)
        except InputError as error:
            parser.error(str(error))
        if not found:
            continue
        variants = {variant: [_short(values) for values in of_heads.values()] for variant, of_heads in found.items()}
        heads = before["heads"] or list(found[ALONE])
        lines[problem, optimizer] = {**before, "heads": heads, "variants": {**before["variants"], **variants}}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        replace_text(options.output, "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines.values()))
        print(f"{problem}, {optimizer}: done", flush=True)
    shown = read(options.output)
    print(summary(shown), by_problem(shown), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
