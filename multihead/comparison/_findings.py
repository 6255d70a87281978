"""What the values of a comparison say: intervals over seeds, the favoured variant, tables, and sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from multihead._display.drawing import plain
from multihead._ground.types import Given
from multihead._ground.validation import check_between, quoted
from multihead.comparison._data import TEST
from multihead.comparison._jobs import chosen_rates
from multihead.comparison._study import ALONE, AT_EQUAL_COST
from multihead.diagnosis._statistics import student_quantile

CONFIDENCE = 0.95


class Difference(NamedTuple):
    """A mean of differences over seeds, with a confidence interval by Student's distribution.

    With differences `d_1 ... d_n`, their mean `m` and their standard deviation `s` with divisor `n - 1`, the interval is
    `m ± t s / sqrt(n)`, where `t` is the `(1 + confidence) / 2` quantile of Student's distribution with `n - 1` degrees of
    freedom.

    Attributes:
        mean: The mean difference, in the unit of the metric; above 0 is better, whether or not the metric itself is better
            when higher. NaN if no seed has it.
        low: The lower end of the interval; NaN with fewer than two seeds.
        high: The upper end.
        seeds: The number of seeds `n`.
    """

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def verdict(self) -> str:
        """`"better"` or `"worse"` if the interval excludes 0, `"within noise"` if not, `"unknown"` without an interval."""
        if not self.low <= self.high:
            return "unknown"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "within noise"


def difference_of(values: np.ndarray, confidence: float = CONFIDENCE) -> Difference:
    """The mean of `[seeds]` differences, with its interval; seeds without a finite difference do not count."""
    confidence = check_between("confidence", confidence, 0, 1, with_low=False, with_high=False)
    known = np.asarray(values, np.float64)
    known = known[np.isfinite(known)]
    count = len(known)
    mean = float(known.mean()) if count else math.nan
    if count < 2:
        return Difference(mean, math.nan, math.nan, count)
    margin = student_quantile((1 + confidence) / 2, count - 1) * float(known.std(ddof=1)) / math.sqrt(count)
    return Difference(mean, mean - margin, mean + margin, count)


def mean_and_deviation(values: np.ndarray) -> tuple[float, float]:
    """The mean and the standard deviation over the seeds that stayed finite; NaN without enough of them."""
    known = values[np.isfinite(values)]
    return (float(known.mean()) if len(known) else math.nan, float(known.std(ddof=1)) if len(known) > 1 else math.nan)


def relative_changes(values: np.ndarray, baselines: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """The delta-m of `Comparison.delta_m`, `[seeds]`; NaN where a head has no value, or its baseline is 0.

    `values` and `baselines` are `[heads, seeds]`, `signs` `[heads]`. The source has `B_k` for `|B_k|`, with which metrics
    below 0 would lose their direction.
    """
    scale = np.where(baselines == 0, np.nan, np.abs(baselines))
    changes: np.ndarray = (signs[:, None] * (values - baselines) / scale).mean(axis=0)
    return changes


def cost_of(variant: str, updates: Mapping[str, int], costs: Mapping[str, Mapping[str, float]]) -> float | None:
    """The time of all updates of a variant, over that of the single-task models together; None if it was not measured."""
    if variant == ALONE:
        return 1.0
    found = costs.get(variant.removesuffix(AT_EQUAL_COST))
    return None if found is None else found["update"] * updates[variant] / updates[ALONE]


def harms(values: np.ndarray, alone: np.ndarray, signs: np.ndarray) -> bool:
    """Whether a head of a variant is worse than alone beyond its interval; the arguments are as in `relative_changes`."""
    return any(difference_of(each).verdict == "worse" for each in signs[:, None] * (values - alone))


def favoured(
    values: Mapping[str, np.ndarray],
    alone: np.ndarray,
    signs: np.ndarray,
    costs: Mapping[str, float],
    counts: Sequence[bool],
) -> str | None:
    """The cheapest variant that validation data cannot tell from the best one, by the rule of `Comparison.choose`.

    The noise of a variant that fails at some seeds hides that its heads are worse; so its mean must also not be far below 0.
    `values`, `alone` and `signs` are as in `relative_changes`; a variant that lacks a value is not chosen. `costs` are
    compared after rounding to hundredths. `counts`, `[heads]`, says which heads have enough labels.
    """
    finite = [name for name, each in values.items() if np.isfinite(relative_changes(each, alone, signs)).all()]
    kept = np.flatnonzero(counts) if any(counts) else np.arange(len(signs))
    values, alone, signs = {name: values[name][kept] for name in finite}, alone[kept], signs[kept]
    changes = {name: relative_changes(each, alone, signs) for name, each in values.items()}
    means = {name: float(of_seeds.mean()) for name, of_seeds in changes.items()}
    equal = finite
    if any(counts) and finite:
        number = alone.shape[1]
        errors = {name: each.std(ddof=1) / math.sqrt(number) if number > 1 else 0 for name, each in changes.items()}
        least = -2 * statistics.median_low(errors.values())
        harmless = [name for name in finite if means[name] >= least and not harms(values[name], alone, signs)]
        known = harmless or finite
        best = max(known, key=lambda name: means[name])
        close = [name for name in known if means[name] >= means[best] - errors[best]]
        equal = [name for name in close if difference_of(changes[name] - changes[best]).verdict == "within noise"] or [best]
    return min(equal, key=lambda name: (round(costs[name], 2), -means[name]), default=None)


# In words; `found` is the `Comparison`


def joint_of(found: Given) -> list[str]:
    """The variants that share an encoder."""
    return [variant for variant in found.variants if variant != ALONE]


def tables_of(found: Given) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, columns and rows: the metrics of all variants, and the differences from the single-task models."""
    count = "1 seed" if len(found.seeds) == 1 else f"{len(found.seeds)} seeds"
    arrows = {"max": "↑", "min": "↓"}
    columns = [f"{found.metrics[head]} {arrows[found.directions[head]]}" for head in found.heads]
    values, differences = [], []
    for name in found.variants:
        labels = [f"{head} {ALONE}" for head in found.heads] if name == ALONE else [name]
        rates = ", ".join(f"{rate:g}" for rate in dict.fromkeys(found.rates[label] for label in labels))
        rates = f"{rates}; heads as alone" if name in found.head_rates else rates
        cost = cost_of(name, found.updates, found.costs)
        of_training = [name, f"{found.updates[name]:,}", "" if cost is None else f"{cost:.2f}", rates]
        values.append([*of_training, *(_spread(found.values(name, head)) for head in found.heads)])
        if name != ALONE:
            against = [_interval(found.difference(name, head)) for head in found.heads]
            differences.append([name, *against, _interval(found.delta_m(name), percent=True)])
    return [
        (
            f"On the {found.split} data: mean ± standard deviation over {count}",
            ["variant", "updates", "cost", "rate", *columns],
            values,
        ),
        (
            f"Against each head alone, 95 % interval over {count}: above 0 is better",
            ["variant", *found.metrics.values(), "delta-m"],
            differences,
        ),
    ]


def _spread(values: np.ndarray) -> str:
    mean, deviation = mean_and_deviation(values)
    failed = int((~np.isfinite(values)).sum())
    if failed == len(values):
        return "failed"
    text = f"{mean:.4g}" + (f" ± {deviation:.2g}" if math.isfinite(deviation) else "")
    return f"{text} ({failed} failed)" if failed else text


def _interval(difference: Difference, *, percent: bool = False) -> str:
    if not np.isfinite(difference.mean):
        return "unknown"
    mean, low, high = (f"{each:+.1%}" if percent else f"{each:+.3g}" for each in difference[:3])
    return f"{mean} ({low} to {high})" if np.isfinite(difference.low) else mean


def findings_of(found: Given) -> list[str]:
    """Sentences: each variant against the single-task models, costs, and what to be careful about."""
    words, same = [], {"within noise": "within the noise of seeds", "unknown": "not comparable"}
    for variant in joint_of(found):
        each = [(head, found.difference(variant, head)) for head in found.heads]
        texts = [f"{same.get(one.verdict, one.verdict)} on {head!r}, {_interval(one)}" for head, one in each]
        delta_m = _interval(found.delta_m(variant), percent=True)
        words.append(f"{variant!r} against each head alone: {'; '.join(texts)}; delta-m {delta_m}.")
    for variant, costs in found.costs.items():
        update, serve = costs["update"], costs["serve"]
        size = f" It has {plain(costs['size'])} times their parameters." if "size" in costs else ""
        runs_once = ", because the encoder runs once" if serve < 1 else ""
        words.append(
            f"An update of {variant!r} takes {plain(update)} of the time in which each of the {len(found.heads)} "
            f"single-task models makes one, so in the same time it makes {plain(1 / update)} times as many. A prediction "
            f"for all heads takes {plain(serve)} of the time of theirs{runs_once}.{size}"
        )
    return [*words, *_cautions(found)]


def answer_of(found: Given) -> str:
    """Whether a variant is as good as the single-task models on all heads."""
    at_equal_cost = [variant for variant in joint_of(found) if variant.endswith(AT_EQUAL_COST)]
    at, shown = ("at equal cost", at_equal_cost) if at_equal_cost else ("in as many updates", joint_of(found))
    verdicts = {variant: {found.difference(variant, head).verdict for head in found.heads} for variant in shown}
    if any("unknown" in each for each in verdicts.values()):
        return f"Whether one encoder for all heads is better {at} cannot be said without intervals on all heads."
    ahead = [variant for variant, each in verdicts.items() if "worse" not in each and "better" in each]
    even = [variant for variant, each in verdicts.items() if each == {"within noise"}]
    if ahead:
        return f"Sharing the encoder is worth it {at}: no head worse than alone, one at least better with {quoted(ahead)}."
    if not even:
        return f"Sharing the encoder costs a head something {at}: with every variant, one head at least is worse than alone."
    serve = max(found.costs.get(variant.removesuffix(AT_EQUAL_COST), {}).get("serve", 0.0) for variant in even)
    return (
        f"Sharing the encoder costs nothing that {len(found.seeds)} seeds can show {at}: all heads are within the noise "
        f"of seeds of models of their own with {quoted(even)}.{' One encoder is cheaper to serve.' if serve < 1 else ''}"
    )


def favoured_of(found: Given, variant: str, *, is_harmful: bool) -> str:
    """The variant that the validation data favour, and what it is on the test data."""
    verdicts = [found.difference(variant, head).verdict for head in found.heads]
    there = ", though with it one head at least is worse than alone there" if is_harmful else ""
    choice = f"The validation data favour {variant!r}{there}"
    if all(head in found.few_labels for head in found.heads):
        choice = f"The validation data have too few labels to favour a variant; none is cheaper than {variant!r}"
    return (
        f"{choice}. On the test data, which had no part in that choice, "
        f"{verdicts.count('better')} of {len(found.heads)} heads are better and {verdicts.count('worse')} worse than alone, "
        f"delta-m {_interval(found.delta_m(variant), percent=True)}."
    )


def _cautions(found: Given) -> list[str]:
    words = []
    if len(found.seeds) < 2:
        words.append("With one seed, no difference can be told from noise: pass three seeds at least.")
    elif len(found.seeds) < 3:
        words.append("With two seeds, intervals are very wide: pass three at least, better five or more.")
    number = len(joint_of(found)) * len(found.heads)
    if number >= 20 and len(found.seeds) > 1:
        words.append(
            f"Of {number} intervals, about {plain(0.05 * number)} exclude 0 by chance: repeat surprises with other seeds."
        )
    if found.few_labels:
        numbers = ", ".join(f"{head!r} ({number})" for head, number in found.few_labels.items())
        words.append(
            f"The validation data have too few labels of the rarer class for {numbers} to choose rates or variants by. "
            "These heads are ignored where others are left. Add such labels; with a single rate, none has to be chosen."
        )
    chosen, grid = chosen_rates(found.lines), found.lines[0]["settings"]
    grids = {name: chosen.get(name, grid)["rates"] for name in found.rates}
    at_edge = [name for name, each in grids.items() if len(each) > 1 and found.rates[name] in (each[0], each[-1])]
    if at_edge:
        ends = [each for name in at_edge for each in (grids[name][0], grids[name][-1])]
        words.append(
            f"The best learning rate is at the edge of the grid for {quoted(at_edge)}: extend `rates` beyond "
            f"{min(ends):g} and {max(ends):g}, or these variants may be compared below their best."
        )
    if found.split != TEST:
        words.append(
            "Variants are compared on the validation data, on which the learning rates were chosen on another seed."
        )
    return words
