"""Balancers by name."""

from __future__ import annotations

from multihead._method import find
from multihead.balancing._base import Balancer


def get(identifier: Balancer | str | None) -> Balancer | None:
    """Returns a balancer.

    Args:
        identifier: A balancer, which is returned as it is; the name of one (`"UPGrad"`; case and underscores do not
            matter), which is built with its defaults; or None, which stays None.

    Raises:
        ValueError: There is no balancer of that name.
        TypeError: `identifier` is neither.
    """
    return find("balancer", identifier, Balancer)
