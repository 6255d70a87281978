"""What the values of a comparison say: intervals over seeds, the favoured variant, tables, and sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from multihead._display.drawing import plain
from multihead._ground.types import Comparison
from multihead._ground.validation import check_between, quoted
from multihead.comparison._data import TEST
from multihead.comparison._jobs import lines_by_name
from multihead.comparison._study import ALONE, AT_EQUAL_COST
from multihead.diagnosis._statistics import interval, student_quantile

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
    ratios = costs.get(variant.removesuffix(AT_EQUAL_COST))
    return None if ratios is None else ratios["update"] * updates[variant] / updates[ALONE]


def favoured(
    values: Mapping[str, np.ndarray], alone: np.ndarray, signs: np.ndarray, costs: Mapping[str, float]
) -> tuple[str, bool] | None:
    """The cheapest variant that validation data cannot tell from the best one, and whether it is not worse than alone.

    The rule is that of `Comparison.choose`. The noise of a variant that fails at some seeds hides that its heads are worse;
    so its mean must also not be far below 0. `values`, `alone` and `signs` are as in `relative_changes`; a variant that
    lacks a value is not chosen. `costs` are compared after rounding to hundredths.
    """
    changes = {name: relative_changes(metrics, alone, signs) for name, metrics in values.items()}
    changes = {name: change for name, change in changes.items() if np.isfinite(change).all()}
    if not changes:
        return None
    number = alone.shape[1]
    means = {name: float(change.mean()) for name, change in changes.items()}
    errors = {name: change.std(ddof=1) / math.sqrt(number) if number > 1 else 0 for name, change in changes.items()}
    least = -2 * statistics.median_low(errors.values())
    worse = {
        name: any(difference_of(difference).verdict == "worse" for difference in signs[:, None] * (values[name] - alone))
        for name in changes
    }
    harmless = [name for name in changes if means[name] >= least and not worse[name]]
    known = harmless or list(changes)
    best = max(known, key=lambda name: means[name])
    close = [name for name in known if means[name] >= means[best] - errors[best]]
    equal = [name for name in close if difference_of(changes[name] - changes[best]).verdict == "within noise"] or [best]
    return min(equal, key=lambda name: (round(costs[name], 2), -means[name])), bool(harmless)


def joint_of(comparison: Comparison) -> list[str]:
    return [variant for variant in comparison.variants if variant != ALONE]


def tables_of(comparison: Comparison) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, columns and rows: the metrics of all variants, and the differences from the single-task models."""
    count = "1 seed" if len(comparison.seeds) == 1 else f"{len(comparison.seeds)} seeds"
    arrows = {"max": "↑", "min": "↓"}
    columns = [f"{comparison.metrics[head]} {arrows[comparison.directions[head]]}" for head in comparison.heads]
    values, differences = [], []
    for name in comparison.variants:
        labels = [f"{head} {ALONE}" for head in comparison.heads] if name == ALONE else [name]
        rates = ", ".join(f"{rate:g}" for rate in dict.fromkeys(comparison.rates[label] for label in labels))
        rates = f"{rates}; heads as alone" if name in comparison.head_rates else rates
        cost = cost_of(name, comparison.updates, comparison.costs)
        training = [name, f"{comparison.updates[name]:,}", "" if cost is None else f"{cost:.2f}", rates]
        values.append([*training, *(_mean_as_text(comparison.values(name, head)) for head in comparison.heads)])
        if name != ALONE:
            against = [interval(comparison.difference(name, head)[:3], "+.3g") for head in comparison.heads]
            differences.append([name, *against, interval(comparison.delta_m(name)[:3], "+.1%")])
    return [
        (
            f"On the {comparison.split} data: mean ± standard deviation over {count}",
            ["variant", "updates", "cost", "rate", *columns],
            values,
        ),
        (
            f"Against each head alone, 95 % interval over {count}: above 0 is better",
            ["variant", *comparison.metrics.values(), "delta-m"],
            differences,
        ),
    ]


def _mean_as_text(values: np.ndarray) -> str:
    mean, deviation = mean_and_deviation(values)
    failed = int((~np.isfinite(values)).sum())
    if failed == len(values):
        return "failed"
    text = f"{mean:.4g}" + (f" ± {deviation:.2g}" if math.isfinite(deviation) else "")
    return f"{text} ({failed} failed)" if failed else text


def findings_of(comparison: Comparison) -> list[str]:
    """Sentences: the variants against the single-task models, costs, and what to be careful about."""
    words, same = [], {"within noise": "within the noise of seeds", "unknown": "not comparable"}
    for variant in joint_of(comparison):
        differences = [(head, comparison.difference(variant, head)) for head in comparison.heads]
        texts = [
            f"{same.get(one.verdict, one.verdict)} on {head!r}, {interval(one[:3], '+.3g')}" for head, one in differences
        ]
        delta_m = interval(comparison.delta_m(variant)[:3], "+.1%")
        words.append(f"{variant!r} against each head alone: {'; '.join(texts)}; delta-m {delta_m}.")
    for variant, costs in comparison.costs.items():
        update, serve = costs["update"], costs["serve"]
        size = f" It has {plain(costs['size'])} times their parameters." if "size" in costs else ""
        runs_once = ", because the encoder runs once" if serve < 1 else ""
        words.append(
            f"An update of {variant!r} takes {plain(update)} of the time in which each of the {len(comparison.heads)} "
            f"single-task models makes one, so in the same time it makes {plain(1 / update)} times as many. A prediction "
            f"for all heads takes {plain(serve)} of the time of theirs{runs_once}.{size}"
        )
    return [*words, *_cautions(comparison)]


def answers_of(comparison: Comparison, favourite: tuple[str, bool] | None) -> list[str]:
    """Whether a variant is as good as the single-task models on all heads, and the result of `favoured`, if there is one."""
    joint = joint_of(comparison)
    at_equal_cost = [variant for variant in joint if variant.endswith(AT_EQUAL_COST)]
    at = "at equal cost" if at_equal_cost else "in as many updates"
    verdicts = {variant: [comparison.difference(variant, head).verdict for head in comparison.heads] for variant in joint}
    shown = {variant: set(verdicts[variant]) for variant in at_equal_cost or joint}
    scaled = [variant for variant in shown if variant.removesuffix(AT_EQUAL_COST) in comparison.scaled]
    shown = {variant: kinds for variant, kinds in shown.items() if variant not in scaled}
    ahead = [variant for variant, kinds in shown.items() if "worse" not in kinds and "better" in kinds]
    even = [variant for variant, kinds in shown.items() if kinds == {"within noise"}]
    if not shown:
        answer = f"Whether one encoder for all heads is better {at} is not compared."
    elif any("unknown" in kinds for kinds in shown.values()):
        answer = f"Whether one encoder for all heads is better {at} cannot be said without intervals on all heads."
    elif ahead:
        answer = f"Sharing the encoder is worth it {at}: no head worse than alone, one at least better with {quoted(ahead)}."
    elif not even:
        answer = f"Sharing the encoder costs a head something {at}: with every variant, a head at least is worse than alone."
    else:
        serve = max(comparison.costs.get(variant.removesuffix(AT_EQUAL_COST), {}).get("serve", 0.0) for variant in even)
        answer = (
            f"Sharing the encoder costs nothing that {len(comparison.seeds)} seeds can show {at}: all heads are within the "
            f"noise of seeds of models of their own with {quoted(even)}."
            f"{' One encoder is cheaper to serve.' if serve < 1 else ''}"
        )
    if scaled:
        answer += (
            f" That leaves out {quoted(scaled)}: they scale targets that the single-task models do not, so what they "
            "gain need not come from sharing. To include them, scale the targets in `build`."
        )
    if favourite is None:
        return [answer]
    name, is_harmless = favourite
    there = "" if is_harmless else ", though a head or their mean is worse than alone there, as with all others"
    return [
        answer,
        f"The validation data favour {name!r}{there}. On the test data, which had no part in that choice, "
        f"{verdicts[name].count('better')} of {len(comparison.heads)} heads are better and {verdicts[name].count('worse')} "
        f"worse than alone, delta-m {interval(comparison.delta_m(name)[:3], '+.1%')}.",
    ]


def _cautions(comparison: Comparison) -> list[str]:
    words, count = [], len(comparison.seeds)
    if count < 3:
        wide = "no difference can be told from noise" if count < 2 else "intervals are very wide"
        words.append(f"With {count} seed{'s' * (count != 1)}, {wide}: pass three seeds at least, better five or more.")
    number = len(joint_of(comparison)) * len(comparison.heads)
    if number >= 20 and count > 1:
        words.append(
            f"Of {number} intervals, about {plain(0.05 * number)} exclude 0 by chance: repeat surprises with other seeds."
        )
    grids = {
        name: line["rates"] for name, line in lines_by_name(comparison.lines, "chosen").items() if name in comparison.rates
    }
    at_edge = [name for name, grid in grids.items() if len(grid) > 1 and comparison.rates[name] in (grid[0], grid[-1])]
    if at_edge:
        rates = ", ".join(f"{name!r} ({comparison.rates[name]:g})" for name in at_edge)
        words.append(
            f"The best learning rate is at the edge of the grid for {rates}: extend `rates`, or these variants may be "
            "compared below their best."
        )
    if comparison.split != TEST:
        words.append(
            "Variants are compared on the validation data, on which the learning rates were chosen on another seed."
        )
    return words
