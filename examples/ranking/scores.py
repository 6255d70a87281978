"""How good a ranking is: AUC, AUC within a request, and calibration, in NumPy."""

from __future__ import annotations

import numpy as np


def placements(labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """For each positive example, the fraction of negative ones with a lower score; equal scores count half.

    Their mean is the AUC, and the deviation of their differences shows the noise of a difference of two AUCs (DeLong et al.,
    "Comparing the areas under two or more correlated receiver operating characteristic curves", 1988).

    Args:
        labels: 0 or 1, `[n]`.
        scores: Numbers, `[n]`.

    Returns:
        Fractions, float64 `[number of positive examples]`; empty without negative ones.
    """
    negative = np.sort(scores[labels == 0])
    positive = scores[labels == 1]
    if not len(negative):
        return np.zeros(0)
    below, not_above = (np.searchsorted(negative, positive, side) for side in ("left", "right"))
    return (below + not_above) / (2.0 * len(negative))


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """The probability that a positive example has a higher score than a negative one; NaN without one of both."""
    places = placements(labels, scores)
    return float(places.mean()) if len(places) else float("nan")


def auc_within(labels: np.ndarray, scores: np.ndarray, requests: np.ndarray) -> float:
    """The mean AUC of the requests that have both labels; NaN without any.

    Args:
        labels: 0 or 1, `[n]`.
        scores: Numbers, `[n]`.
        requests: Which request an example belongs to, `[n]`.
    """
    order = np.argsort(requests, kind="stable")
    labels, scores = labels[order], scores[order]
    begins = np.flatnonzero(np.diff(requests[order], prepend=requests[order][:1] - 1 if len(order) else 0))
    parts = zip(np.split(labels, begins[1:]), np.split(scores, begins[1:]))
    found = [auc(*part) for part in parts if 0 < part[0].sum() < len(part[0])]
    return float(np.mean(found)) if found else float("nan")


def difference(labels: np.ndarray, scores: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """The AUC of some scores minus that of others on the same examples, and its standard error over positive examples.

    The error is NaN for a single one, which does not tell it.
    """
    apart = placements(labels, scores) - placements(labels, others)
    return float(apart.mean()), float(apart.std()) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")


def calibration(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """How many positive examples were predicted, divided by those observed; NaN without any."""
    observed = labels.sum()
    return float(probabilities.sum() / observed) if observed else float("nan")


def median_error(labels: np.ndarray, numbers: np.ndarray) -> float:
    """The median of the absolute errors; NaN without any."""
    return float(np.median(np.abs(numbers - labels))) if len(labels) else float("nan")
