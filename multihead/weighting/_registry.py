"""Weightings by name."""

from __future__ import annotations

from multihead._ground.method import find
from multihead._ground.names import names_arguments
from multihead.weighting._base import Weighting


@names_arguments
def get(identifier: Weighting | str | None) -> Weighting | None:
    """Returns a weighting.

    Args:
        identifier: A weighting, which is returned unchanged; the name of a weighting (such as `"Uncertainty"`, ignoring case
            and underscores), which is created with its defaults; or None, which stays None.

    Raises:
        ValueError: There is no weighting with this name.
        TypeError: `identifier` is none of these.
    """
    return find("weighting", identifier, Weighting)
