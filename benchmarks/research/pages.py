"""Which tables and pictures stand on which page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.research import tables, weights
from benchmarks.research.problems import GROUPS
from benchmarks.research.record import ALONE, EQUAL_COST, LARGE, MORE, PLAIN, RATES, RESULTS, WIDE, Line, comparison, read
from benchmarks.speed._shared import filled

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "results"
PAGES = tuple(ROOT / "benchmarks" / "research" / name for name in ("README.md", "results.md", "pace.md"))
SHORT = ROOT / "docs" / "results.md"
REQUESTS = ROOT / "docs" / "tutorials" / "intents.md"
TEXTS = ROOT / "docs" / "howto" / "text.md"
RULE, EQUAL = "NormFloor", "NormFloor 1"
MAIN = (PLAIN, RULE, EQUAL, "EqualNorms, parameters", f"{RULE}{RATES}")
DRAWN = (
    PLAIN, "cl 0.3", "cl 0.1", "NormFloor", "EqualNorms", "NashMTL, parameters", "FAMO decayed", "Uncertainty",
    "RandomLossWeighting", "LogLoss",
)  # fmt: skip
"""The variants in the picture of MultiMNIST: others lie on top of these, or so far away that these would."""


def equal_cost(lines: Sequence[Line]) -> str:
    """What the validation data choose, all variants at equal cost and in as many updates, and two fronts."""
    large = [f"{rule}{LARGE}" for rule in (RULE, EQUAL, f"{RULE}{RATES}")]
    fronts = [line for line in lines if line["set"] in ("study", "multimnist_cl_rr") and line["optimizer"] == "Adam"]
    parts = [
        "`NormFloor` with its default, chosen on the validation data, on the test data:",
        tables.choices(lines, [RULE]),
        "`NormFloor` with its default or a floor of 1, chosen in the same way:",
        tables.choices(lines, [RULE, EQUAL]),
        "At equal cost: delta-m in percent; heads better, worse; updates against alone.",
        tables.by_set(lines, [f"{variant}{EQUAL_COST}" for variant in (*MAIN, *large)]),
        "As many updates as each single-task model: delta-m in percent; heads better, worse.",
        tables.by_set(lines, [*MAIN, *large]),
        *(tables.by_variant(line) for line in fronts),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def pace(lines: Sequence[Line]) -> str:
    """Heads better and worse than alone, by what a joint model has more than the single-task models."""
    joint = (PLAIN, RULE, EQUAL)
    endings = ("", MORE, f"{WIDE}{MORE}", f"{RATES}{MORE}", ", n updates", ", batch n times as large")
    return tables.counts(lines, [f"{variant}{ending}" for ending in endings for variant in joint])


def floor(lines: Sequence[Line]) -> str:
    """Heads better and worse than with the plain sum, by group of problems."""
    parts = []
    for name, group in GROUPS.items():
        names = [make.__name__ for make in group]
        of_group = [line for line in lines if line["set"] in names]
        if of_group:
            variants = ["EqualNorms", EQUAL, "NormFloor 0.5", RULE]
            parts.append(f"The {name} problems:\n\n{tables.counts(of_group, variants, PLAIN)}")
    return "\n".join(parts)


def details(lines: Sequence[Line], beside: Callable[[str, str], str] | None = None) -> str:
    """A table of variants for each line."""
    return "\n".join(tables.by_variant(line, beside) for line in lines)


def files(lines: Sequence[Line]) -> str:
    """A row for each variant and Keras: its metrics over the seeds, and the seconds of training where a core was idle."""
    titles = ["trained", "Keras", "exact replies", "slot F1", "price accuracy", "seeds", "updates", "seconds"]
    rows = [
        [
            "each head alone" if variant == ALONE else variant,
            line["keras"].rpartition(" ")[2],
            *(tables.spread(np.asarray(values), 4) for values in by_head.values()),
            str(min(map(len, by_head.values()))),
            str(line["updates"][variant]),
            f"{line['costs'][variant]['seconds']:.0f}" if variant in line["costs"] else "",
        ]
        for line in lines
        for variant, by_head in line["values"].items()
    ]
    return tables.markdown(titles, rows)


def requests(lines: Sequence[Line]) -> str:
    """A row for each data set and head, at equal cost: alone, and how joint models differ from it, in percent."""
    rows = []
    for line in lines:
        found, variants = of_requests(line)
        for head in found.heads:
            cells = [tables.interval(found.difference(variant, head), scale=100) for variant in variants.values()]
            cells[-1] = f"{weight_of(variants[OTHER])}: {cells[-1]}"
            rows.append([line["set"], head, tables.spread(100 * found.values("alone", head), 1), *cells])
    return tables.markdown(["trained on", "head", "alone, percent", PLAIN, RULE, OTHER], rows)


def census(lines: Sequence[Line]) -> str:
    """A row for each pair and head: the AUC alone, and how joint models at equal cost differ from it, times 100."""
    rows = []
    for line in lines:
        names = [name for name in line["values"] if name.endswith(EQUAL_COST)]
        found: Any = comparison(line, names)
        for head in found.heads:
            cells = [tables.interval(found.difference(name, head), digits=2, scale=100) for name in names]
            rows.append([line["set"], head, tables.spread(100 * found.values("alone", head), 2), *cells])
    titles = ["shared" if name.startswith(PLAIN) else name.removesuffix(EQUAL_COST) for name in names] if lines else []
    return tables.markdown(["pair", "head", "alone, AUC times 100", *titles], rows)


OTHER = "best other weight of the slots"


def of_requests(line: Line) -> tuple[Any, dict[str, str]]:
    """The comparison at equal cost, and its variants by their names in the table and the picture.

    Of the weights other than 1, it is the one that the validation data favour.
    """
    fixed = [name for name in line["values"] if name.startswith("slots ") and name.endswith(EQUAL_COST)]
    both = [f"{PLAIN}{EQUAL_COST}", f"{RULE}{EQUAL_COST}"]
    # The rule of choice compares a weight with the other weights alone.
    chosen: Any = comparison(line, fixed)
    variants = dict(zip((PLAIN, RULE, OTHER), (*both, chosen.choose(fixed))))
    return comparison(line, [*variants.values()]), variants


def weight_of(variant: str) -> str:
    """The weight in the name of a variant."""
    return variant.removesuffix(EQUAL_COST).rpartition(" ")[2]


def short(name: str) -> str:
    """The small table of an experiment on `docs/results.md`."""
    lines = read(RESULTS / f"{name}.jsonl")
    if name == "equal_cost":
        return tables.choices([line for line in lines if line["optimizer"] == "Adam"], [RULE, EQUAL])
    if name == "molecules":
        return tables.by_set(lines, [PLAIN, "NormFloor", "EqualNorms"])
    variants = [PLAIN, RULE, "EqualNorms", f"AlignedMTL{EQUAL_COST}", f"AlignedMTL{LARGE}{EQUAL_COST}"]
    return tables.by_set([line for line in lines if line["set"].startswith("cl_rr")], variants)


def with_tables(made: Mapping[str, str]) -> dict[Path, str]:
    """The pages with the tables of the recorded lines."""
    found = {}
    for path in (*PAGES, SHORT, REQUESTS, TEXTS):
        page = path.read_text(encoding="utf-8")
        for name, table in made.items():
            page = filled(page, f"python -m benchmarks.research {name} --table", table)
        for name in ("equal_cost", "molecules", "multimnist"):
            page = filled(page, f"short: {name}", short(name))
        found[path] = page
    return found


def pictures() -> dict[str, Any]:
    """The pictures of the recorded lines."""
    sets = "equal_cost", "molecules", "multimnist"
    of_cost, of_molecules, of_digits = (read(RESULTS / f"{name}.jsonl") for name in sets)
    panels: dict[str, Any] = {}
    for line in of_cost:
        shown = {
            **{name: f"{name}{EQUAL_COST}" for name in (PLAIN, RULE, EQUAL)},
            "chosen": tables.chosen(line, [RULE, EQUAL]),
        }
        both = {name: comparison(line, [variant]) for name, variant in shown.items() if variant}
        row = {name: found.delta_m(shown[name]) for name, found in both.items() if found}
        if row:
            panels.setdefault(line["optimizer"], {})[line["set"]] = {name: _percent(each) for name, each in row.items()}
    assays: dict[str, Any] = {}
    for line in of_molecules:
        known = [variant for variant in (PLAIN, "EqualNorms", RULE) if variant in line["values"]]
        found: Any = comparison(line, known)
        rows = {head: {variant: found.difference(variant, head) for variant in known} for head in found.heads}
        order = sorted(rows, key=lambda head: -rows[head][PLAIN].mean)
        assays[line["set"]] = {head: rows[head] for head in order}
    sharing: dict[str, Any] = {}
    for line in read(RESULTS / "requests.jsonl"):
        found, variants = of_requests(line)
        for head in found.heads:
            row = {name: _percent(found.difference(variant, head)) for name, variant in variants.items()}
            sharing.setdefault(head, {})[line["set"]] = row
    study, digit = (next(line for line in of_cost if line["set"] == name) for name in ("study", "multimnist_cl_rr"))

    def narrow(line: Line) -> list[str]:
        return [each for each in line["values"] if LARGE not in each and RATES not in each]

    (of_example,), of_weights = (read(RESULTS / f"{name}.jsonl") for name in ("replies", "weights"))
    bars = {ALONE: "each head alone"}
    names = {PLAIN: "plain sum", "price 0.3": "price weight 0.3, by hand", EQUAL: "balanced gradients"}
    bars |= {f"{variant}{EQUAL_COST}": name for variant, name in names.items()}
    return {
        "replies.png": tables.bars(of_example, bars, ("exact replies", "right price ranges")),
        "weights.png": weights.picture(of_weights),
        "one_run.png": weights.one_run(of_weights),
        "pace.png": tables.floors(read(RESULTS / "floor.jsonl"), ("digit_pictures", "two_labels")),
        "equal_cost.png": tables.draw(panels, "delta-m at equal cost, percent", logarithmic=True),
        "molecules.png": tables.draw(assays, "area under the ROC curve, against alone"),
        "requests.png": tables.draw(sharing, "at equal cost, against alone, percent"),
        "multimnist.png": tables.front(of_digits[0], DRAWN),
        "study_front.png": tables.front(study, narrow(study)),
        "digits_front.png": tables.front(digit, narrow(digit)),
    }


def _percent(found: Any) -> Any:
    return found._replace(mean=100 * found.mean, low=100 * found.low, high=100 * found.high)


def write(made: Mapping[str, str]) -> None:
    """Writes the tables into the pages, and draws the pictures."""
    for path, page in with_tables(made).items():
        path.write_text(page, encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        picture.savefig(PICTURES / name, dpi=110)
