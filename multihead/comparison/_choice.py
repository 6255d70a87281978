"""Which arm the validation data favour."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from multihead.comparison._arms import ALONE, AT_EQUAL_COST
from multihead.comparison._student import difference_of, relative_changes

CONFIDENCE = 0.95


def cost_of(arm: str, updates: Mapping[str, int], costs: Mapping[str, Mapping[str, float]]) -> float | None:
    """The time of all updates of an arm, over that of the single-task models together; None if it was not measured.

    Args:
        arm: The name of the arm.
        updates: The numbers of updates by the names of arms.
        costs: The costs of an update by the names of arms without what is added at equal cost.
    """
    if arm == ALONE:
        return 1.0
    found = costs.get(arm.removesuffix(AT_EQUAL_COST))
    return None if found is None else found["update"] * updates[arm] / updates[ALONE]


def costs_of(arms: Iterable[str], updates: Mapping[str, int], costs: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """By arm, what it takes to train it: the measured time if it is known of all, otherwise the number of updates."""
    times = {arm: cost_of(arm, updates, costs) for arm in arms}
    return {arm: updates[arm] if None in times.values() else time for arm, time in times.items()}  # type: ignore[misc]


def favoured(
    values: Mapping[str, np.ndarray],
    alone: np.ndarray,
    signs: np.ndarray,
    costs: Mapping[str, float],
    counts: Sequence[bool],
) -> str | None:
    """The cheapest arm that validation data cannot tell from the best one.

    The best one has the largest delta-m among the harmless arms: those in which no head is worse than alone beyond its
    interval, and whose delta-m is not below 0 by more than twice the noise, the low median over arms of its standard
    error. (The noise of an arm that fails at some seeds hides that its heads are worse.) If no arm is harmless, it is the
    best of all. An arm of the same set counts as equal if its delta-m is at most one standard error of the best one's
    below that, and the two differ, seed by seed, by no more than the noise. Of the equal arms, the one with the lowest
    cost is chosen, and of equally cheap ones that with the larger delta-m. An arm that lacks a figure, because training
    did not stay finite, is not chosen.

    Args:
        values: By arm, the heads' figures, `[heads, seeds]`.
        alone: Those of each head alone, `[heads, seeds]`.
        signs: `[heads]`, 1 for a figure that is better when higher, otherwise -1.
        costs: By arm, what it takes to train it; compared after rounding to hundredths.
        counts: `[heads]`: which heads have enough labels; the others are ignored, and without any the cheapest arm is
            chosen.

    Returns:
        Its name; None if no arm has all figures.

    Source: the rule of one standard error of Breiman, Friedman, Olshen and Stone, Classification and Regression Trees, 1984.
    """
    changes = {arm: relative_changes(each, alone, signs) for arm, each in values.items()}
    changes = {arm: of_seeds for arm, of_seeds in changes.items() if np.isfinite(of_seeds).all()}
    if not changes:
        return None
    if not any(counts):
        return min(changes, key=lambda arm: (round(costs[arm], 2), -changes[arm].mean()))
    kept = np.flatnonzero(counts)
    values, alone, signs = {arm: values[arm][kept] for arm in changes}, alone[kept], signs[kept]
    changes = {arm: relative_changes(each, alone, signs) for arm, each in values.items()}
    means = {arm: of_seeds.mean() for arm, of_seeds in changes.items()}
    errors = {
        arm: of_seeds.std(ddof=1) / np.sqrt(of_seeds.size) if of_seeds.size > 1 else 0 for arm, of_seeds in changes.items()
    }
    least = -2 * statistics.median_low(errors.values())
    harmless = [arm for arm in changes if means[arm] >= least and not harms(values[arm], alone, signs)]
    known = harmless or [*changes]
    best = max(known, key=lambda arm: means[arm])
    least = means[best] - errors[best]

    def is_equal(arm: str) -> bool:
        return means[arm] >= least and difference_of(changes[arm] - changes[best], CONFIDENCE).verdict == "within noise"

    equal = [arm for arm in known if is_equal(arm)]
    return min(equal or [best], key=lambda arm: (round(costs[arm], 2), -means[arm]))


def harms(values: np.ndarray, alone: np.ndarray, signs: np.ndarray) -> bool:
    """Whether a head of an arm is worse than alone beyond its interval; the arguments are as in `favoured`."""
    return any(difference_of(each, CONFIDENCE).verdict == "worse" for each in signs[:, None] * (values - alone))
