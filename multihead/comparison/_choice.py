"""Which variant the validation data favour."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from multihead.comparison._student import difference_of, relative_changes
from multihead.comparison._variants import ALONE, AT_EQUAL_COST

CONFIDENCE = 0.95


def cost_of(variant: str, updates: Mapping[str, int], costs: Mapping[str, Mapping[str, float]]) -> float | None:
    """The time of all updates of a variant, over that of the single-task models together; None if it was not measured.

    Args:
        variant: The name of the variant.
        updates: The numbers of updates by the names of variants.
        costs: The costs of an update by the names of variants without what is added at equal cost.
    """
    if variant == ALONE:
        return 1.0
    found = costs.get(variant.removesuffix(AT_EQUAL_COST))
    return None if found is None else found["update"] * updates[variant] / updates[ALONE]


def costs_of(
    variants: Iterable[str], updates: Mapping[str, int], costs: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """By variant, what it takes to train it: the measured time if it is known of all, otherwise the number of updates."""
    times = {variant: cost_of(variant, updates, costs) for variant in variants}
    return {variant: updates[variant] if None in times.values() else time for variant, time in times.items()}  # type: ignore[misc]


def favoured(
    values: Mapping[str, np.ndarray],
    alone: np.ndarray,
    signs: np.ndarray,
    costs: Mapping[str, float],
    counts: Sequence[bool],
) -> str | None:
    """The cheapest variant that validation data cannot tell from the best one.

    The best one has the largest delta-m among the harmless variants: those in which no head is worse than alone beyond its
    interval, and whose delta-m is not below 0 by more than twice the noise, the low median over variants of its standard
    error. (The noise of a variant that fails at some seeds hides that its heads are worse.) If no variant is harmless, it is
    the best of all. A variant of the same set counts as equal if its delta-m is at most one standard error of the best one's
    below that, and the two differ, seed by seed, by no more than the noise. Of the equal variants, the one with the lowest
    cost is chosen, and of equally cheap ones that with the larger delta-m. A variant that lacks a metric, because training
    did not stay finite, is not chosen.

    Args:
        values: By variant, the heads' metrics, `[heads, seeds]`.
        alone: Those of each head alone, `[heads, seeds]`.
        signs: `[heads]`, 1 for a metric that is better when higher, otherwise -1.
        costs: By variant, what it takes to train it; compared after rounding to hundredths.
        counts: `[heads]`: which heads have enough labels; the others are ignored, and without any the cheapest variant is
            chosen.

    Returns:
        Its name; None if no variant has all metrics.

    Source: the rule of one standard error of Breiman, Friedman, Olshen and Stone, Classification and Regression Trees, 1984.
    """
    changes = {variant: relative_changes(each, alone, signs) for variant, each in values.items()}
    changes = {variant: of_seeds for variant, of_seeds in changes.items() if np.isfinite(of_seeds).all()}
    if not changes:
        return None
    if not any(counts):
        return min(changes, key=lambda variant: (round(costs[variant], 2), -changes[variant].mean()))
    kept = np.flatnonzero(counts)
    values, alone, signs = {variant: values[variant][kept] for variant in changes}, alone[kept], signs[kept]
    changes = {variant: relative_changes(each, alone, signs) for variant, each in values.items()}
    means = {variant: of_seeds.mean() for variant, of_seeds in changes.items()}
    errors = {
        variant: of_seeds.std(ddof=1) / np.sqrt(of_seeds.size) if of_seeds.size > 1 else 0
        for variant, of_seeds in changes.items()
    }
    least = -2 * statistics.median_low(errors.values())
    harmless = [variant for variant in changes if means[variant] >= least and not harms(values[variant], alone, signs)]
    known = harmless or [*changes]
    best = max(known, key=lambda variant: means[variant])
    least = means[best] - errors[best]

    def is_equal(variant: str) -> bool:
        return (
            means[variant] >= least and difference_of(changes[variant] - changes[best], CONFIDENCE).verdict == "within noise"
        )

    equal = [variant for variant in known if is_equal(variant)]
    return min(equal or [best], key=lambda variant: (round(costs[variant], 2), -means[variant]))


def harms(values: np.ndarray, alone: np.ndarray, signs: np.ndarray) -> bool:
    """Whether a head of a variant is worse than alone beyond its interval; the arguments are as in `favoured`."""
    return any(difference_of(each, CONFIDENCE).verdict == "worse" for each in signs[:, None] * (values - alone))
