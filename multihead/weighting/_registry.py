"""Weightings by name."""

from __future__ import annotations

from multihead._method import find
from multihead.weighting._base import Weighting


def get(identifier: Weighting | str | None) -> Weighting | None:
    """Returns a weighting.

    Args:
        identifier: A weighting, which is returned as it is; the name of one (`"Uncertainty"`; case and underscores do not
            matter), which is built with its defaults; or None, which stays None.

    Raises:
        ValueError: There is no weighting of that name.
        TypeError: `identifier` is neither.
    """
    return find("weighting", identifier, Weighting)
