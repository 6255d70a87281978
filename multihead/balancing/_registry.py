"""Balancers by name."""

from __future__ import annotations

from multihead._ground.method import find
from multihead._ground.names import names_arguments
from multihead.balancing._base import Balancer


@names_arguments
def get(identifier: Balancer | str | None) -> Balancer | None:
    """Returns a balancer.

    Args:
        identifier: A balancer, which is returned unchanged; the name of a balancer (such as `"UPGrad"`, ignoring case and
            underscores), which is created with its defaults; or None, which stays None.

    Raises:
        ValueError: There is no balancer with this name.
        TypeError: `identifier` is none of these.
    """
    return find("balancer", identifier, Balancer)
