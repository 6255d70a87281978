"""The recorded results: a line of JSON for each data set and optimizer, and the `Comparison` that it stands for.

A line has `values` and `validation`, the metrics on the test and the validation data by variant, head and seed; None where
training did not stay finite. A variant may have only the first of the line's seeds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multihead.comparison import Comparison

RESULTS = Path(__file__).resolve().parent / "results"
ALONE, PLAIN, EQUAL_COST = "alone", "plain sum", ", equal cost"
RATES, LARGE, WIDE, MORE = ", rates as alone", ", as large", ", twice as wide", ", sqrt(n) updates"
"""What follows the name of a variant: the heads' own learning rates, a larger encoder, more updates."""

Line = dict[str, Any]


def read(path: Path) -> list[Line]:
    """The lines of a file; none if there is no such file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def line_of(name: str, optimizer: str, found: Comparison) -> Line:
    """The line of a comparison."""
    values, validation = (
        {each: {head: _rounded(found.values(each, head, part)) for head in found.heads} for each in found.variants}
        for part in (found.split, "validation")
    )
    costs = {variant: {key: round(value, 3) for key, value in each.items()} for variant, each in found.costs.items()}
    return {
        "set": name,
        "optimizer": optimizer,
        "seeds": list(found.seeds),
        "directions": found.directions,
        "metrics": found.metrics,
        "updates": found.updates,
        "rates": found.rates,
        "costs": costs,
        "values": values,
        "validation": validation,
        "keras": found.lines[0]["settings"]["keras"],
    }


def _rounded(values: np.ndarray) -> list[float | None]:
    return [round(float(each), 5) if np.isfinite(each) else None for each in values]


def keep(path: Path, line: Line) -> None:
    """Writes a line in place of that of the same data set and optimizer; its other variants stay if the seeds are the same.

    Args:
        path: The file.
        line: The line.
    """
    lines = {(each["set"], each["optimizer"]): each for each in read(path)}
    key = line["set"], line["optimizer"]
    before = lines.get(key)
    if before is not None and before["seeds"] == line["seeds"]:
        parts = ("updates", "rates", "costs", "values", "validation")
        line = {**line, **{part: {**before[part], **line[part]} for part in parts}}
    lines[key] = line
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in lines.values()), encoding="utf-8")


def comparison(line: Line, variants: Sequence[str], baseline: str = ALONE) -> Comparison | None:
    """The comparison of some variants of a line with a baseline, at the seeds that all have; None if the line lacks one.

    Args:
        line: The line.
        variants: The names of the variants.
        baseline: `"alone"`, or the variant with which the others are compared.
    """
    if not {baseline, *variants} <= line["values"].keys():
        return None
    metrics = {head: [metric, line["directions"][head]] for head, metric in line["metrics"].items()}
    settings = {"heads": list(metrics), "metrics": metrics, "split": "test", "rates": [0.0], "keras": line.get("keras")}
    lines: list[Line] = [{"settings": settings}]
    for name in dict.fromkeys((baseline, *variants)):
        base = name.removesuffix(EQUAL_COST)
        if name != ALONE:
            lines.append({"variant": base, "is_fixed": is_fixed(line, base), "how": {}})
        if base in line.get("costs", {}):
            lines.append({"cost": base, **{f"{key}_ratio": value for key, value in line["costs"][base].items()}})
        heads = [[head] for head in metrics] if name == ALONE else [list(metrics)]
        number = min(len(each) for each in line["values"][name].values())
        lines += [_run(line, name, base, seed, of_run) for of_run in heads for seed in range(number)]
    return Comparison(lines)


def _run(line: Line, name: str, base: str, seed: int, heads: Sequence[str]) -> Line:
    """The line of a run in the file of a comparison."""

    def metrics(part: str) -> dict[str, Any]:
        found: Mapping[str, Any] = line.get(part, {}).get(name, {})
        return {line["metrics"][head]: found[head][seed] for head in heads if head in found and seed < len(found[head])}

    return {
        "run": "final",
        "variant": base,
        "head": heads[0] if base == ALONE else "",
        "seed": seed,
        "rate": line.get("rates", {}).get(f"{heads[0]} {ALONE}" if base == ALONE else name, 0.0),
        "updates": line.get("updates", {}).get(name, 1),
        "at_equal_cost": name != base,
        "metrics": {"test": metrics("values"), "validation": metrics("validation")},
    }


def is_fixed(line: Line, variant: str) -> bool:
    """Whether a variant is a sum with fixed weights."""
    return variant == PLAIN or variant.rpartition(" ")[0] in line["directions"]


def first_weight(line: Line, variant: str) -> float:
    """The weight of the first head over that of the others in a sum with fixed weights, from its name."""
    head, _, weight = variant.rpartition(" ")
    if head not in line["directions"]:
        return 1.0
    return float(weight) if head == next(iter(line["directions"])) else 1 / float(weight)
