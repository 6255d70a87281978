"""Is one encoder worth sharing at equal cost? Six data sets, up to three optimizers and ten seeds.

    python -m benchmarks.equal_cost [--sets study restaurants ...] [--optimizers Adam AdamW SGD] [--seeds 10]

Each head alone on an encoder of its own, and variants that share one: the plain sum, `NormFloor` with its defaults, and
`NormFloor 1`, which gives all heads equal running norms. Joint models train with as many updates as the single-task models,
and then for the time that the single-task models of all heads take together (`multihead.compare`, `equal_cost`). Learning
rates are chosen from a grid for each variant and each single-task model, and decay to zero; ClinTox, whose validation data
have six labels of the rarer class, and Tox21 have one rate. SGD has a momentum of 0.9, AdamW the weight decay of Keras.
`--variants` takes the name of a balancer or a weighting, of a balancer with `", parameters"`, and of a head with its weight:
`"price 0.3"`; with `", rates as alone"`, the heads' own variables have the learning rates that were chosen for the heads
alone; with `", as large"` at the end, the encoder is as wide as it can be while the joint model has no more parameters than
the single-task models together.

Data sets: `study`, the orders of the convergence study; `restaurants`, five slots of sentences; `multimnist_cl_rr` and
`multimnist_cl_cr`, 5,000 images with two digits; `clintox` and `tox21`, assays of molecules. `--data` is the folder with
all but the first.

Finished runs are lines in `--runs`, where the command continues; `--results` has one line for each data set and optimizer,
the figures on the validation and the test data by variant, head and seed; variants that it has already stay. Several
processes may share `--runs`, with `--results` of their own. `--table` prints the tables of `--results`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import multihead
from benchmarks import _published
from benchmarks._as_large import LARGE
from benchmarks._equal_cost_lines import ALONE, LINES, RATES
from benchmarks._equal_cost_sets import SETS, DataSet
from benchmarks._equal_cost_table import tables
from benchmarks._results import read_lines
from examples._command_line import InputError, Parser, whole
from multihead import balancing, clipping
from multihead._runs.files import replace_text
from multihead.comparison import Comparison

OPTIMIZERS: Mapping[str, Callable[..., Any]] = {
    "Adam": keras.optimizers.Adam,
    "AdamW": keras.optimizers.AdamW,
    "SGD": functools.partial(keras.optimizers.SGD, momentum=0.9),
}
VARIANTS = (_published.PLAIN, "NormFloor", "NormFloor 1", "EqualNorms", "EqualNorms, parameters")
"""The variants that are trained at equal cost, too."""
DEFAULT = (*VARIANTS[:3], f"NormFloor{LARGE}", f"NormFloor 1{LARGE}")
SPECIAL = {"NormFloor 1": {"balancer": balancing.NormFloor(1.0)}}


def run(name: str, optimizer: str, options: Namespace) -> Comparison:
    """Trains the variants of a data set with an optimizer."""
    found = SETS[name](options.data, every=10 if options.quick else 1)
    rates = found.rates[optimizer]
    options.runs.mkdir(parents=True, exist_ok=True)
    return multihead.compare(
        found.build,
        found.data,
        variants_of(found, options.variants),
        options.seeds,
        3 if options.quick else found.updates,
        metrics=found.metrics,
        optimizer=OPTIMIZERS[optimizer],
        rates=rates[:1] if options.quick else rates,
        tuning_seeds=[1000 + seed for seed in range(options.tuning_seeds)],
        batch_size=found.batch_size,
        options={} if found.clip is None else {"clip": clipping.ByGlobalNorm(found.clip)},
        equal_cost=[variant for variant in options.variants if rule_of(variant) in VARIANTS],
        measure=found.measure,
        file=options.runs / f"{name}_{optimizer}.jsonl",
    )


def variants_of(found: DataSet, names: Sequence[str]) -> dict[str, _published.Variant]:
    """The variants of a data set by their names, as large ones with a `build` of their own.

    Raises:
        InputError: There is no such variant.
    """
    of_names = _published.variants_of([rule_of(name) for name in names], list(found.metrics), SPECIAL)
    own: dict[str, dict[str, Any]] = {RATES: {"head_rates": ALONE}}
    if any(name.endswith(LARGE) for name in names):
        own[LARGE] = {"build": functools.partial(found.make, found.as_large())}
    variants = {}
    for name in names:
        variants[name] = dict(of_names[rule_of(name)])
        for ending, options in own.items():
            variants[name] |= options if ending in name else {}
    return variants


def rule_of(variant: str) -> str:
    """The name of a variant without what is said of its encoder and its learning rates."""
    return variant.removesuffix(LARGE).removesuffix(RATES)


def line_of(name: str, optimizer: str, found: Comparison) -> dict[str, Any]:
    """What `--results` keeps of a comparison."""
    figures, validation = (
        {
            variant: {head: np.round(found.values(variant, head, part), 5).tolist() for head in found.heads}
            for variant in found.variants
        }
        for part in (found.split, "validation")
    )
    costs = {
        variant: {key: round(value, 3) for key, value in of_variant.items()} for variant, of_variant in found.costs.items()
    }
    return {
        "set": name,
        "optimizer": optimizer,
        "seeds": list(found.seeds),
        "directions": found.directions,
        "metrics": found.metrics,
        "updates": found.updates,
        "rates": found.rates,
        "costs": costs,
        "few_labels": found.few_labels,
        "figures": figures,
        "validation": validation,
        "keras": found.lines[0]["settings"]["keras"],
    }


def keep(path: Path, line: Mapping[str, Any]) -> None:
    """Writes a line in place of that of the same data set and optimizer, whose variants it keeps, in the order of both.

    That holds if the seeds of one are the first of the other. Of a variant in both, the one with more seeds stays, the new
    one of equals.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    kept, merged = [], dict(line)
    for each in read_lines(path):
        if (each["set"], each["optimizer"]) != (line["set"], line["optimizer"]):
            kept.append(each)
        elif all(one == other for one, other in zip(each["seeds"], line["seeds"])):
            merged = _merged(each, line)
    places = {pair: place for place, pair in enumerate(itertools.product(SETS, OPTIMIZERS))}
    lines = sorted([*kept, merged], key=lambda each: places.get((each["set"], each["optimizer"]), len(places)))
    replace_text(path, "".join(json.dumps(each) + "\n" for each in lines))


def _merged(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    def number(line: Mapping[str, Any], variant: str) -> int:
        return max((len(each) for each in line["figures"].get(variant, {}).values()), default=0)

    stay = {variant for variant in before["figures"] if number(before, variant) > number(now, variant)}
    found = {**now, "seeds": max(now["seeds"], before["seeds"], key=len)}
    for key in ("updates", "rates", "costs", "figures", "validation"):
        known = before.get(key, {})  # earlier lines have no figures on the validation data
        variants = {name: ALONE if name.endswith(f" {ALONE}") else name for name in known}  # rates are those of each head
        found[key] = {
            **known,
            **now.get(key, {}),
            **{name: known[name] for name, variant in variants.items() if variant in stay},
        }
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser("benchmarks.equal_cost", description=__doc__, formatter_class=formatter)
    add = parser.add_argument
    add("--sets", nargs="+", choices=list(SETS), default=list(SETS), metavar="SET", help=f"among {', '.join(SETS)}")
    add(
        "--optimizers",
        nargs="+",
        choices=list(OPTIMIZERS),
        default=list(OPTIMIZERS),
        metavar="OPTIMIZER",
        help=f"among {', '.join(OPTIMIZERS)}",
    )
    add("--seeds", type=whole(1), default=10, metavar="N", help="number of seeds (default: 10)")
    add("--tuning-seeds", type=whole(1), default=1, metavar="N", help="number of seeds that choose rates (default: 1)")
    add(
        "--variants",
        nargs="+",
        default=list(DEFAULT),
        metavar="VARIANT",
        help="names of variants, as in `benchmarks.multimnist`",
    )
    add("--data", type=Path, default=_published.DATA, metavar="FOLDER", help="folder of the data")
    add("--runs", type=Path, default=Path("runs", "equal_cost"), metavar="FOLDER", help="folder of the finished runs")
    add("--results", type=Path, default=LINES, metavar="FILE", help="file of the results")
    add("--quick", action="store_true", help="the study with Adam and one seed, three updates, a tenth of the data")
    add("--table", action="store_true", help="only print the table of the results, in Markdown")
    options = parser.parse_args(arguments)
    if options.quick:
        options.sets, options.optimizers, options.seeds = options.sets[:1], options.optimizers[:1], 1
        options.runs = Path("runs", "quick") if options.runs == parser.get_default("runs") else options.runs
        options.results = options.runs / LINES.name if options.results == LINES else options.results
    try:
        for name in () if options.table else options.sets:
            for optimizer in options.optimizers:
                keep(options.results, line_of(name, optimizer, run(name, optimizer, options)))
    except (InputError, ImportError) as error:
        parser.error(str(error))
    print(tables(options.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
