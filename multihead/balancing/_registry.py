"""Balancers by name."""

from __future__ import annotations

import difflib
from typing import Any

from multihead._validation import quoted
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
    from multihead import balancing  # the names are those that the package offers

    if identifier is None or isinstance(identifier, Balancer):
        return identifier
    offered = {name: getattr(balancing, name) for name in balancing.__all__}
    classes = {
        name: value
        for name, value in offered.items()
        if isinstance(value, type) and issubclass(value, Balancer) and value is not Balancer
    }
    if isinstance(identifier, str):
        by_plain_name = {_plain(name): value for name, value in classes.items()}
        if _plain(identifier) in by_plain_name:
            built: Any = by_plain_name[_plain(identifier)]
            return built()
        near = difflib.get_close_matches(_plain(identifier), list(by_plain_name), n=1)
        hint = f"Did you mean {by_plain_name[near[0]].__name__!r}?" if near else "Pass one of these, or an instance."
        raise ValueError(f"`balancer` must be one of {quoted(sorted(classes))}. Received: {identifier!r}. {hint}")
    raise TypeError(
        f"`balancer` must be a balancer, its name, or None. Received: {identifier!r} of type "
        f"{type(identifier).__name__}. Pass, say, balancing.UPGrad()."
    )


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
