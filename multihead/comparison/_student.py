"""Differences over seeds: confidence intervals by Student's distribution, relative changes, and the favoured variant."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from multihead._ground.validation import check_between
from multihead.comparison._study import ALONE, AT_EQUAL_COST

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
    """The mean of `[seeds]` differences, with its interval; seeds without a finite difference do not count.

    Raises:
        ValueError: `confidence` is not between 0 and 1.
    """
    confidence = check_between("confidence", confidence, 0, 1, with_low=False, with_high=False)
    known = np.asarray(values, np.float64)
    known = known[np.isfinite(known)]
    count = len(known)
    mean = float(known.mean()) if count else math.nan
    if count < 2:
        return Difference(mean, math.nan, math.nan, count)
    margin = student_quantile((1 + confidence) / 2, count - 1) * float(known.std(ddof=1)) / math.sqrt(count)
    return Difference(mean, mean - margin, mean + margin, count)


def student_quantile(probability: float, degrees: int) -> float:
    """The value below which Student's variable lies with a probability of at least 0.5, by bisection."""
    low, high = 0.0, math.pi / 2
    for _ in range(80):  # far beyond the 53 bits of a double
        middle = (low + high) / 2
        if _student_probability(middle, degrees) < 2 * probability - 1:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _student_probability(angle: float, degrees: int) -> float:
    """The probability that Student's variable lies between `-t` and `t`, for `t = sqrt(degrees) tan(angle)`.

    The finite sums for a whole number of degrees of freedom: Abramowitz and Stegun, Handbook of Mathematical Functions,
    1964, 26.7.3 and 26.7.4.
    """
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = degrees % 2 == 1
    term = cosine if is_odd else 1.0
    total = term if degrees > 1 else 0.0
    for i in range(3 if is_odd else 2, degrees - 1, 2):
        term *= cosine**2 * (i - 1) / i
        total += term
    return (angle + sine * total) * 2 / math.pi if is_odd else sine * total


def mean_and_deviation(values: np.ndarray) -> tuple[float, float]:
    """The mean and the standard deviation over the seeds that stayed finite; NaN without enough of them."""
    known = values[np.isfinite(values)]
    return (float(known.mean()) if len(known) else math.nan, float(known.std(ddof=1)) if len(known) > 1 else math.nan)


def relative_changes(values: np.ndarray, baselines: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Delta-m, `[seeds]`: the mean over heads of the signed relative change against single-task models.

    `delta_m = 1 / K sum_k s_k (M_k - B_k) / |B_k|`, for `K` heads; 0.05 is 5 % better. NaN where a head has no value, or
    its baseline is 0.

    Args:
        values: `M`, `[heads, seeds]`, the metrics of a variant.
        baselines: `B`, `[heads, seeds]`, those of each head alone.
        signs: `s`, `[heads]`: 1 for a metric that is better when higher, -1 for one that is better when lower.

    Source: Maninis, Radosavovic and Kokkinos, "Attentive Single-Tasking of Multiple Tasks", CVPR 2019, equation 1; with
    `|B_k|` for `B_k`, so that metrics below 0 keep their direction.
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


def costs_of(
    variants: Iterable[str], updates: Mapping[str, int], costs: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """By variant, what it takes to train it: the measured time if it is known of all, otherwise the number of updates."""
    times = {variant: cost_of(variant, updates, costs) for variant in variants}
    return {name: updates[name] if time is None or None in times.values() else time for name, time in times.items()}


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

    Args:
        values: By variant, the heads' metrics, `[heads, seeds]`; a variant that lacks one is not chosen.
        alone: Those of each head alone, `[heads, seeds]`.
        signs: `[heads]`, 1 for a metric that is better when higher, otherwise -1.
        costs: By variant, what it takes to train it; compared after rounding to hundredths.
        counts: `[heads]`: which heads have enough labels; the others are ignored, and without any the cheapest variant is
            chosen.

    Returns:
        Its name; None if no variant has all metrics.
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
