"""The tables of a comparison, and what it says in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from multihead._display.tables import plain
from multihead._ground.validation import quoted
from multihead.comparison._choice import cost_of
from multihead.comparison._student import Difference
from multihead.comparison._variants import ALONE, AT_EQUAL_COST

FEW_SEEDS = 3


@dataclass(frozen=True)
class Facts:
    """What the words are about; the fields are those of `Comparison`."""

    heads: Sequence[str]
    metrics: Mapping[str, str]
    directions: Mapping[str, str]
    split: str
    variants: Sequence[str]
    seeds: Sequence[int]
    values: Mapping[str, Mapping[str, np.ndarray]]
    differences: Mapping[str, Mapping[str, Difference]]
    delta_m: Mapping[str, Difference]
    rates: Mapping[str, float]
    as_alone: Sequence[str]
    favoured: str | None
    favoured_harms: bool
    few_labels: Mapping[str, int]
    grids: Mapping[str, Sequence[float]]
    updates: Mapping[str, int]
    costs: Mapping[str, Mapping[str, float]]


def tables_of(facts: Facts) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, columns and rows: the metrics of all variants, and the differences from the single-task models."""
    count = "1 seed" if len(facts.seeds) == 1 else f"{len(facts.seeds)} seeds"
    arrows = {"max": "↑", "min": "↓"}
    columns = [f"{facts.metrics[head]} {arrows[facts.directions[head]]}" for head in facts.heads]
    rows = [[variant, *map(str, _of_training(facts, variant)), *_of_heads(facts, variant)] for variant in facts.variants]
    differences = [
        [
            variant,
            *(_interval(facts.differences[variant][head]) for head in facts.heads),
            _interval(facts.delta_m[variant], percent=True),
        ]
        for variant in facts.differences
    ]
    return [
        (
            f"On the {facts.split} data: mean ± standard deviation over {count}",
            ["variant", "updates", "cost", "rate", *columns],
            rows,
        ),
        (
            f"Against each head alone, 95 % interval over {count}: above 0 is better",
            ["variant", *(facts.metrics[head] for head in facts.heads), "delta-m"],
            differences,
        ),
    ]


def _of_training(facts: Facts, variant: str) -> list[str]:
    """The number of updates, the cost of training relative to the single-task models, and the learning rate."""
    rates = [facts.rates[f"{head} {ALONE}"] for head in facts.heads] if variant == ALONE else [facts.rates[variant]]
    cost = cost_of(variant, facts.updates, facts.costs)
    words = "" if cost is None else f"{cost:.2f}"
    shown = ", ".join(f"{rate:g}" for rate in dict.fromkeys(rates))
    return [f"{facts.updates[variant]:,}", words, f"{shown}; heads as alone" if variant in facts.as_alone else shown]


def _of_heads(facts: Facts, variant: str) -> list[str]:
    return [_spread(facts.values[variant][head]) for head in facts.heads]


def mean_and_deviation(values: np.ndarray) -> tuple[float, float]:
    """The mean and the standard deviation over the seeds that stayed finite; NaN without enough of them."""
    known = values[np.isfinite(values)]
    return (float(known.mean()) if len(known) else math.nan, float(known.std(ddof=1)) if len(known) > 1 else math.nan)


def _spread(values: np.ndarray) -> str:
    mean, deviation = mean_and_deviation(values)
    failed = int((~np.isfinite(values)).sum())
    if failed == len(values):
        return "failed"
    text = f"{mean:.4g}" + (f" ± {deviation:.2g}" if math.isfinite(deviation) else "")
    return f"{text} ({failed} failed)" if failed else text


def _interval(found: Difference, *, percent: bool = False) -> str:
    def text(value: float) -> str:
        return f"{value:+.1%}" if percent else f"{value:+.3g}"

    if not np.isfinite(found.mean):
        return "unknown"
    return text(found.mean) + (f" ({text(found.low)} to {text(found.high)})" if np.isfinite(found.low) else "")


def findings_of(facts: Facts) -> list[str]:
    """Sentences: each variant against the single-task models, costs, what is best, and what to be careful about."""
    found = [_against_alone(facts, variant) for variant in facts.differences]
    found += [_of_cost(variant, costs, len(facts.heads)) for variant, costs in facts.costs.items()]
    found.append(_answer(facts))
    if facts.favoured is not None and len(facts.differences) > 1 and len(facts.seeds) > 1:
        found.append(_of_favoured(facts, facts.favoured))
    return [*found, *_cautions(facts)]


def _against_alone(facts: Facts, variant: str) -> str:
    """A variant against each head alone, on each head and over all."""
    words = []
    for head in facts.heads:
        each = facts.differences[variant][head]
        verdict = {"within noise": "within the noise of seeds", "unknown": "not comparable"}.get(each.verdict, each.verdict)
        words.append(f"{verdict} on {head!r}, {_interval(each)}")
    delta_m = _interval(facts.delta_m[variant], percent=True)
    return f"{variant!r} against each head alone: {'; '.join(words)}; delta-m {delta_m}."


def _of_cost(variant: str, costs: Mapping[str, float], heads: int) -> str:
    update, serve = costs["update"], costs["serve"]
    return (
        f"An update of {variant!r} takes {plain(update)} of the time in which each of the {heads} single-task models makes "
        f"one, so in the same time it makes {plain(1 / update)} times as many. A prediction for all heads takes "
        f"{plain(serve)} of the time of theirs{', because the encoder runs once' if serve < 1 else ''}."
        + (f" It has {plain(costs['size'])} times their parameters." if "size" in costs else "")
    )


def _answer(facts: Facts) -> str:
    """Whether a variant is as good as the single-task models on all heads."""
    at_equal_cost = [variant for variant in facts.differences if variant.endswith(AT_EQUAL_COST)]
    at, shown = ("at equal cost", at_equal_cost) if at_equal_cost else ("in as many updates", list(facts.differences))
    verdicts = {variant: [facts.differences[variant][head].verdict for head in facts.heads] for variant in shown}
    if any("unknown" in each for each in verdicts.values()):
        return f"Whether one encoder for all heads is better {at} cannot be said without intervals on all heads."
    ahead = [variant for variant, each in verdicts.items() if "worse" not in each and "better" in each]
    even = [variant for variant, each in verdicts.items() if set(each) == {"within noise"}]
    if ahead:
        return f"Sharing the encoder is worth it {at}: no head worse than alone, one at least better with {quoted(ahead)}."
    if even:
        costs = [facts.costs.get(variant.removesuffix(AT_EQUAL_COST), {}).get("serve", 0.0) for variant in even]
        return (
            f"Sharing the encoder costs nothing that {len(facts.seeds)} seeds can show {at}: all heads are within the noise "
            f"of seeds of models of their own with {quoted(even)}."
        ) + (" One encoder is cheaper to serve." if max(costs) < 1 else "")
    return f"Sharing the encoder costs a head something {at}: with every variant, one head at least is worse than alone."


def _of_favoured(facts: Facts, variant: str) -> str:
    """The variant that the validation data favour, and what it is on the test data."""
    verdicts = [facts.differences[variant][head].verdict for head in facts.heads]
    there = ", though with it one head at least is worse than alone there" if facts.favoured_harms else ""
    choice = f"The validation data favour {variant!r}{there}"
    if all(head in facts.few_labels for head in facts.heads):
        choice = f"The validation data have too few labels to favour a variant; none is cheaper than {variant!r}"
    return (
        f"{choice}. On the test data, which had no part in that choice, "
        f"{verdicts.count('better')} of {len(facts.heads)} heads are better and {verdicts.count('worse')} worse than alone, "
        f"delta-m {_interval(facts.delta_m[variant], percent=True)}."
    )


def _cautions(facts: Facts) -> list[str]:
    found = []
    if len(facts.seeds) < 2:
        found.append("With one seed, no difference can be told from noise: pass three seeds at least.")
    elif len(facts.seeds) < FEW_SEEDS:
        found.append("With two seeds, intervals are very wide: pass three at least, better five or more.")
    number = len(facts.differences) * len(facts.heads)
    if number >= 20 and len(facts.seeds) > 1:
        found.append(
            f"Of {number} intervals, about {plain(0.05 * number)} exclude 0 by chance: repeat surprises with other seeds."
        )
    if facts.few_labels:
        numbers = ", ".join(f"{head!r} ({number})" for head, number in facts.few_labels.items())
        found.append(
            f"The validation data have too few labels of the rarer class for {numbers} to choose rates or variants by. "
            "These heads are ignored where others are left. Add such labels; with a single rate, none has to be chosen."
        )
    grids = {name: grid for name, grid in facts.grids.items() if len(grid) > 1}
    at_edge = [name for name, grid in grids.items() if facts.rates[name] in (grid[0], grid[-1])]
    if at_edge:
        ends = [each for name in at_edge for each in (grids[name][0], grids[name][-1])]
        found.append(
            f"The best learning rate is at the edge of the grid for {quoted(at_edge)}: extend `rates` beyond "
            f"{min(ends):g} and {max(ends):g}, or these variants may be compared below their best."
        )
    if facts.split == "validation":
        found.append(
            "Variants are compared on the validation data, on which the learning rates were chosen on another seed."
        )
    return found
