"""What sharing an encoder costs or gives: lists the experiments, or trains one and prints its tables.

    python -m benchmarks.research equal_cost --sets study --optimizers Adam --seeds 10
    python -m benchmarks.research write

Finished runs are lines in `--runs`, where the command continues; `--results` has one line for each data set and optimizer,
and variants that it has already stay if the seeds are the same. A variant is `"plain sum"`; a balancer or a weighting by the
name of its class; a balancer with `", parameters"`, which acts there; a head and its weight, `"price 0.3"` or, of the second
head, `"second 0.3"`; `"NormFloor 1"`, with equal running norms. With `", rates as alone"`, the heads' own variables have the
learning rates that were chosen for the heads alone; with `", as large"`, the encoder is as wide as it can be while the joint
model has no more parameters than the single-task models together; with `", twice as wide"`, twice as wide; with
`", sqrt(n) updates"`, `n` heads are trained with so many times the updates. `write` writes all tables and pictures into the
pages.

`advice` is another kind of experiment: what the suggestions of `diagnose` do to a population of models.

    python -m benchmarks.research advice --models 0-49
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.research import (
    advice,
    census,
    digits,
    lag,
    molecules,
    moments,
    pages,
    population,
    problems,
    published,
    requests,
    runner,
    text,
    tickets,
    weights,
)
from benchmarks.research.record import LARGE, MORE, PLAIN, RATES, RESULTS, WIDE, Line, keep, read
from examples._command_line import InputError, Parser, whole

RULES = ("NormFloor", "NormFloor 1")
CLOSE: Mapping[str, tuple[float, ...]] = {"Adam": (1e-3,), "AdamW": (1e-3,), "SGD": (0.03,)}
"""Few labels of a class: one rate."""
SIX: Mapping[str, Callable[..., runner.DataSet]] = {
    "study": text.study,
    "restaurants": text.restaurants,
    **digits.SMALL,
    "clintox": functools.partial(molecules.assays, "clintox", 10, CLOSE),
    "tox21": functools.partial(molecules.assays, "tox21", 5, CLOSE),
}
JOINT, THREE = (PLAIN, *RULES), ("Adam", "AdamW", "SGD")


@dataclass(frozen=True)
class Experiment:
    """An experiment.

    Attributes:
        text: What it asks.
        sets: The data sets by name.
        variants: The variants.
        tables: From the recorded lines to Markdown.
        seeds: The number of seeds.
        optimizers: The optimizers.
        equal_cost: The variants that are trained at equal cost, too.
        tuning_seeds: The number of seeds on which rates are chosen.
    """

    text: str
    sets: Mapping[str, Callable[..., runner.DataSet]]
    variants: Sequence[str]
    tables: Callable[[Sequence[Line]], str]
    seeds: int = 10
    optimizers: Sequence[str] = ("Adam",)
    equal_cost: Sequence[str] = ()
    tuning_seeds: int = 1


EXPERIMENTS = {
    "equal_cost": Experiment(
        "Six data sets, three optimizers: each head alone, and one encoder with as many updates and at equal cost.",
        SIX, (*JOINT, *(f"{rule}{LARGE}" for rule in RULES)), pages.equal_cost, optimizers=THREE,
        equal_cost=(*JOINT, *(f"{rule}{LARGE}" for rule in RULES), "NormFloor, rates as alone", f"NormFloor{RATES}{LARGE}"),
    ),
    "pace": Experiment(
        "36 small problems: do `sqrt(n)` times the updates buy back what `n` heads pay for one encoder?",
        problems.SETS, (*JOINT, *(f"{each}{MORE}" for each in JOINT), *(f"{each}{WIDE}{MORE}" for each in JOINT)),
        pages.pace, optimizers=THREE, tuning_seeds=3,
    ),
    "floor": Experiment(
        "The same problems against the plain sum: whom does a floor under the heads' norms help, and whom does it hurt?",
        problems.SETS, (PLAIN, "EqualNorms", "NormFloor 1", "NormFloor"), pages.floor,
    ),
    "multimnist": Experiment(
        "Two digits in one image: balancers and weightings beside the published tables.",
        digits.PUBLISHED, digits.METHODS, functools.partial(pages.details, beside=published.beside), seeds=3,
    ),
    "molecules": Experiment(
        "Tox21, SIDER and ClinTox: each assay alone, one encoder, linear models and forests, beside DeepChem's.",
        molecules.SETS, (PLAIN, "EqualNorms", "NormFloor"),
        functools.partial(pages.details, beside=published.beside), seeds=3,
    ),
    "tickets": Experiment(
        "A head that the plain sum starves although everything is standardized: the table of the README.",
        tickets.SETS, (PLAIN, "topics 10", "topics 100", "NormFloor", "NormFloor 1", "EqualNorms"), pages.details, seeds=5,
        optimizers=(runner.CONSTANT,),
    ),
    "replies": Experiment(
        "The first command of the example with three seeds: exact replies and price ranges, the picture of the README.",
        {"replies": text.replies}, (), pages.details, seeds=3,
    ),
    "files": Experiment(
        "Replies and prices of restaurants, from files: each head alone, plain sum and balanced, at equal cost.",
        {"restaurants": text.files}, (*text.FILES,), pages.files, seeds=3,
    ),
    "requests": Experiment(
        "Requests to an assistant: the intent and the slots, each alone and together, with all slots or half of them.",
        requests.SETS, (PLAIN, "NormFloor", *requests.WEIGHTS), pages.requests, seeds=3,
        equal_cost=(PLAIN, "NormFloor", *requests.WEIGHTS),
    ),
    "census": Experiment(
        "Income, college and never married, in two pairs: each head alone, a shared encoder, MMoE and CGC, at equal cost.",
        census.SETS, (PLAIN, "MMoE", "CGC"), pages.census, seeds=3, optimizers=("AdamW",), equal_cost=(PLAIN, "MMoE", "CGC"),
    ),
    "moments": Experiment(
        "Adam with moments of its own for each head (AdaTask): what it gains beside balancers, and what it costs.",
        {"study": SIX["study"], "restaurants": SIX["restaurants"]},
        (PLAIN, "NormFloor", "NormFloor 1", "EqualNorms, parameters", moments.ADATASK), pages.details, seeds=5,
    ),
    "lag": Experiment(
        "`NormFloor` knows its coefficients one update before: what that costs beside those of the update's own gradients.",
        {"study": SIX["study"], "restaurants": SIX["restaurants"], **population.in_like_units()},
        (PLAIN, *lag.FLOORS, *(f"{name}{lag.THIS}" for name in lag.FLOORS)),
        lambda lines: lag.table([*read(RESULTS / "replies.jsonl"), *lines]), seeds=5,
    ),
    "weights": Experiment(
        "Which weight would you have chosen? Seven weights of the second head beside `NormFloor`, with equal updates.",
        {"study": SIX["study"], "restaurants": SIX["restaurants"], "snips": requests.SETS["all sentences"], **census.SETS},
        (*weights.WEIGHTS.values(), *weights.BALANCERS, *weights.EXPONENTS), weights.table, seeds=3,
    ),
}  # fmt: skip


def train(name: str, options: argparse.Namespace) -> None:
    """Trains what is asked of an experiment, and keeps its lines."""
    experiment, every = EXPERIMENTS[name], 10 if options.quick else 1
    options.runs.mkdir(parents=True, exist_ok=True)
    for of_set in options.sets:
        if name in ("replies", "files"):
            keep(options.results, experiment.sets[of_set](of_set, options))
            continue
        found = experiment.sets[of_set](options.data, every=every)
        for optimizer in options.optimizers:
            line = runner.run(of_set, found, optimizer, options)
            if name == "molecules":
                line = molecules.with_baselines(line, options.data, every)
            keep(options.results, line)


def recorded_tables() -> dict[str, str]:
    """By experiment, the tables of the recorded lines."""
    made = {name: experiment.tables(read(RESULTS / f"{name}.jsonl")) for name, experiment in EXPERIMENTS.items()}
    return {**made, "advice": advice.tables(read(advice.FILE))}


def main(arguments: Sequence[str] | None = None) -> int:
    """Lists the experiments, or runs one, and returns the exit status."""
    parser = Parser("benchmarks.research", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("experiment", nargs="?", choices=[*EXPERIMENTS, "advice", "write"], help="the experiment, or `write`")
    for flag in ("sets", "optimizers", "variants"):
        add(f"--{flag}", nargs="+", metavar="NAME", help=f"{flag} (default: those of the experiment)")
    add("--seeds", type=whole(1), metavar="N", help="number of seeds")
    add("--data", type=Path, default=runner.DATA, metavar="FOLDER", help="folder of the data")
    add("--runs", type=Path, metavar="FOLDER", help="folder of the finished runs (default: runs/EXPERIMENT)")
    add("--results", type=Path, metavar="FILE", help="file of the results (default: that of the experiment)")
    add("--quick", action="store_true", help="one data set, two variants, one seed, three updates, a tenth of the data")
    add("--models", metavar="A-B", default="0-199", help="models of the population of `advice` (default: 0-199)")
    add("--table", action="store_true", help="only print the tables of the results, in Markdown")
    options = parser.parse_args(arguments)
    if options.experiment is None:
        print("\n".join(f"{name}\n    {each.text}" for name, each in EXPERIMENTS.items()))
        return 0
    if options.experiment == "advice":
        file = options.results or (Path("runs", "quick", "advice.jsonl") if options.quick else advice.FILE)
        if not options.table:
            size = {"seeds": 1, "updates": 24} if options.quick else {}
            advice.run(advice.numbers(options.models)[: 1 if options.quick else None], file, **size)
        print(advice.tables(read(file)), end="")
        return 0
    if options.experiment == "write":
        pages.write(recorded_tables())
        return 0
    experiment = EXPERIMENTS[options.experiment]
    folder = Path("runs", "quick" if options.quick else options.experiment)
    options.runs = options.runs or folder
    options.results = options.results or (folder if options.quick else RESULTS) / f"{options.experiment}.jsonl"
    options.sets = options.sets or [*experiment.sets][: 1 if options.quick else None]
    options.optimizers = options.optimizers or experiment.optimizers[: 1 if options.quick else None]
    options.variants = options.variants or experiment.variants[: 2 if options.quick else None]
    options.seeds = 1 if options.quick else options.seeds or experiment.seeds
    options.equal_cost, options.tuning_seeds = experiment.equal_cost, experiment.tuning_seeds
    for flag, known in (("sets", experiment.sets), ("optimizers", runner.OPTIMIZERS)):
        unknown = [name for name in getattr(options, flag) if name not in known]
        if unknown:
            parser.error(f"`--{flag}` must be among {', '.join(map(repr, known))}. Received: {unknown[0]!r}.")
    try:
        if not options.table:
            train(options.experiment, options)
    except (InputError, ImportError) as error:
        parser.error(str(error))
    print(experiment.tables(read(options.results)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
