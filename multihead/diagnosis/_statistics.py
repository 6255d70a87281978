"""From inner products of gradients to norms, cosines with their spread, and the ratio of signal to noise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Cosines(NamedTuple):
    """The cosines of two heads' gradients over batches, `[heads, heads]` each; NaN for heads without a common batch.

    Attributes:
        mean: Their mean.
        deviation: Their standard deviation; NaN for a single batch.
        low: The lower end of a 95 % confidence interval of the mean; NaN for a single batch.
        high: Its upper end.
        negative: The fraction of batches in which the cosine is negative.
    """

    mean: np.ndarray
    deviation: np.ndarray
    low: np.ndarray
    high: np.ndarray
    negative: np.ndarray


def root_mean_squares(gramians: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """`[heads]`: the root mean square of each head's norm over the batches that train it; NaN if none does."""
    squares = np.where(trained, np.diagonal(gramians, axis1=1, axis2=2), 0.0)
    with np.errstate(all="ignore"):
        return np.sqrt(squares.sum(axis=0) / trained.sum(axis=0))


def cosines_of(gramians: np.ndarray) -> Cosines:
    """The cosines of `[batches, heads, heads]` inner products."""
    with np.errstate(all="ignore"):
        norms = np.sqrt(np.diagonal(gramians, axis1=1, axis2=2))
        cosines = gramians / (norms[:, :, None] * norms[:, None, :])
        present = np.isfinite(cosines)
        count = present.sum(axis=0)
        mean = np.where(present, cosines, 0).sum(axis=0) / count
        squares = np.where(present, (cosines - mean) ** 2, 0).sum(axis=0)
        deviation = np.sqrt(squares / np.where(count > 1, count - 1, np.nan))
        margin = _student(count - 1) * deviation / np.sqrt(count)
        negative = (present & (cosines < 0)).sum(axis=0) / count
        return Cosines(mean, deviation, np.maximum(mean - margin, -1), np.minimum(mean + margin, 1), negative)


def _student(degrees: np.ndarray) -> np.ndarray:
    """The 97.5 % quantile of Student's distribution: exact for one and two degrees of freedom, else within 0.1 %.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    z, n = 1.959964, np.maximum(degrees, 1).astype(float)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    series = z + sum(term / n ** (i + 1) for i, term in enumerate(terms))
    return np.where(n == 1, 12.7062, np.where(n == 2, 4.30265, series))


def signal_of(gramians: np.ndarray, of_sums: np.ndarray, trained: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Separates the mean gradient from the noise of batches, from inner products of gradients and of their sums.

    With `n` batches, `S` the mean of `|g|^2` and `M = |mean g|^2`, the variance of one batch's gradient is
    `V = n / (n - 1) (S - M)`, and the squared norm of the true mean gradient is `M - V / n`.

    Returns:
        `[heads]` each: the squared norm of the true mean gradient over `V`, NaN for fewer than two batches; and whether the
        mean gradient is larger than what noise alone would leave of it.
    """
    with np.errstate(all="ignore"):
        n = trained.sum(axis=0).astype(float)
        mean_square = np.where(trained, np.diagonal(gramians, axis1=1, axis2=2), 0.0).sum(axis=0) / n
        square_of_mean = np.diagonal(of_sums) / n**2
        variance = np.where(n > 1, n / (n - 1) * np.maximum(mean_square - square_of_mean, 0), np.nan)
        signal = np.maximum(square_of_mean - variance / n, 0)
        return np.where(mean_square > 0, signal / variance, np.nan), signal > variance / n
