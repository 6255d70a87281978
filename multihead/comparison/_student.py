"""Confidence intervals of means by Student's distribution, and mean relative changes."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from multihead._ground.validation import check_between


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


def difference_of(values: np.ndarray, confidence: float) -> Difference:
    """The mean of `[seeds]` differences, with its interval; seeds without a finite difference do not count.

    Args:
        values: The differences.
        confidence: Between 0 and 1.

    Raises:
        ValueError: `confidence` is out of range.
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


def student_probability(angle: float, degrees: int) -> float:
    """The probability that Student's variable lies between `-t` and `t`, for `t = sqrt(degrees) tan(angle)`.

    The finite sums for a whole number of degrees of freedom: Abramowitz and Stegun, Handbook of Mathematical Functions,
    1964, 26.7.3 and 26.7.4.

    Args:
        angle: Between 0 and pi / 2.
        degrees: The degrees of freedom, at least 1.
    """
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = degrees % 2 == 1
    term = cosine if is_odd else 1.0
    total = term if degrees > 1 else 0.0
    for i in range(3 if is_odd else 2, degrees - 1, 2):
        term *= cosine**2 * (i - 1) / i
        total += term
    return (angle + sine * total) * 2 / math.pi if is_odd else sine * total


def student_quantile(probability: float, degrees: int) -> float:
    """The value below which Student's variable lies with a probability, by bisection of the angle `atan(t / sqrt(degrees))`.

    Args:
        probability: From 0.5 to below 1.
        degrees: The degrees of freedom, a whole number of at least 1.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(80):  # far beyond the 53 bits of a double
        middle = (low + high) / 2
        if student_probability(middle, degrees) < 2 * probability - 1:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan((low + high) / 2)


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
