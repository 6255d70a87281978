"""Which arm the validation data favour."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from multihead.comparison._student import difference_of, relative_changes

CONFIDENCE = 0.95


def favoured(values: Mapping[str, np.ndarray], alone: np.ndarray, signs: np.ndarray) -> str | None:
    """The arm with the largest delta-m among those in which no head is worse than alone, or among all if there are none.

    An arm that lacks a figure, because training did not stay finite, is not chosen.

    Args:
        values: By arm, the heads' figures, `[heads, seeds]`.
        alone: Those of each head alone, `[heads, seeds]`.
        signs: `[heads]`, 1 for a figure that is better when higher, otherwise -1.

    Returns:
        Its name; None if no arm has all figures.
    """
    changes = {arm: float(relative_changes(each, alone, signs).mean()) for arm, each in values.items()}
    changes = {arm: change for arm, change in changes.items() if np.isfinite(change)}
    harmless = [arm for arm in changes if not _is_worse(signs[:, None] * (values[arm] - alone))]
    return max(harmless or changes, key=lambda arm: changes[arm], default=None)


def _is_worse(differences: np.ndarray) -> bool:
    """Whether one of `[heads, seeds]` differences is below 0 beyond its interval."""
    return any(difference_of(each, CONFIDENCE).verdict == "worse" for each in differences)
