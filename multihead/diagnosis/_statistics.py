"""Norms, cosines with their spread, and the ratio of signal to noise, from inner products of gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from multihead.scaling import Standardize


class Cosines(NamedTuple):
    """The cosines of two heads' gradients over batches: see `Diagnosis.spreads`."""

    mean: np.ndarray
    deviation: np.ndarray
    low: np.ndarray
    high: np.ndarray
    negative: np.ndarray


def root_mean_squares(gramians: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """`[heads]`: the root mean squares of the heads' norms over the batches that train the head; NaN if none does."""
    squares = np.where(trained, np.diagonal(gramians, axis1=1, axis2=2), 0.0)
    with np.errstate(all="ignore"):
        return np.sqrt(squares.sum(axis=0) / trained.sum(axis=0))


def cosine_statistics(gramians: np.ndarray) -> Cosines:
    """The cosines of `[batches, heads, heads]` inner products."""
    with np.errstate(all="ignore"):
        norms = np.sqrt(np.diagonal(gramians, axis1=1, axis2=2))
        cosines = gramians / (norms[:, :, None] * norms[:, None, :])
        present = np.isfinite(cosines)
        count = present.sum(axis=0)
        mean = np.where(present, cosines, 0).sum(axis=0) / count
        squares = np.where(present, (cosines - mean) ** 2, 0).sum(axis=0)
        deviation = np.sqrt(squares / np.where(count > 1, count - 1, np.nan))
        quantiles = {number: student_quantile(0.975, max(number - 1, 1)) for number in set(count.ravel().tolist())}
        margin = np.vectorize(quantiles.get, otypes=[float])(count) * deviation / np.sqrt(count)
        negative = (present & (cosines < 0)).sum(axis=0) / count
        return Cosines(mean, deviation, np.maximum(mean - margin, -1), np.minimum(mean + margin, 1), negative)


@functools.cache
def student_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t distribution, for a `probability` of at least 0.5, by bisection.

    For `t = sqrt(degrees) tan(angle)`, the distribution has the probability `I(sin(angle)^2; 1/2, degrees/2)` between `-t`
    and `t`, with the regularized incomplete beta function `I`: Abramowitz and Stegun, Handbook of Mathematical Functions,
    1964, 26.7.1.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(80):  # far beyond the 53 bits of a double
        angle = (low + high) / 2
        within = tf.math.betainc(*np.float64([0.5, degrees / 2, math.sin(angle) ** 2]))
        low, high = (angle, high) if within < 2 * probability - 1 else (low, angle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def signal_of(gramians: np.ndarray, gramian_of_sums: np.ndarray, trained: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Separates the mean gradient from the noise of batches, from inner products of gradients and of their sums.

    With `n` batches, `S` the mean of `|g|^2` and `M = |mean g|^2`, the variance of one batch's gradient is
    `V = n / (n - 1) (S - M)`, and the squared norm of the true mean gradient is `M - V / n`.

    Returns:
        Two arrays `[heads]`: the squared norm of the true mean gradient over `V`, NaN for fewer than two batches; and
        whether the mean gradient is larger than noise alone would make it.
    """
    with np.errstate(all="ignore"):
        n = trained.sum(axis=0).astype(float)
        mean_square = np.where(trained, np.diagonal(gramians, axis1=1, axis2=2), 0.0).sum(axis=0) / n
        square_of_mean = np.diagonal(gramian_of_sums) / n**2
        variance = np.where(n > 1, n / (n - 1) * np.maximum(mean_square - square_of_mean, 0), np.nan)
        signal = np.maximum(square_of_mean - variance / n, 0)
        return np.where(mean_square > 0, signal / variance, np.nan), signal > variance / n


def interval(estimate: Sequence[float], form: str) -> str:
    """A mean with the two ends of its interval, as text."""
    mean, low, high = estimate
    if not np.isfinite(mean):
        return "unknown"
    return f"{mean:{form}} ({low:{form}} to {high:{form}})" if np.isfinite(low) else f"{mean:{form}}"


def as_json(value: Any) -> Any:
    """A value as JSON takes it: lists, dicts, numbers and strings; non-finite numbers are None."""
    if isinstance(value, Standardize):
        return keras.saving.serialize_keras_object(value)
    if hasattr(value, "_asdict"):
        verdict = {"verdict": value.verdict} if hasattr(value, "verdict") else {}
        return {**as_json(value._asdict()), **verdict}
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
