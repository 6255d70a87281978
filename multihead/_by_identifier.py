"""Methods by instance or name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from multihead._validation import quoted


def find(argument: str, identifier: Any, base: type, offered: Mapping[str, Any]) -> Any:
    """Returns a method.

    Args:
        argument: The argument that the user gave it by.
        identifier: An instance of `base`, its class's name in whatever case, or None.
        base: What methods are.
        offered: What the package offers, by name; what is no method is left out.

    Raises:
        ValueError: There is none of that name.
        TypeError: `identifier` is none of the three.
    """
    if identifier is None or isinstance(identifier, base):
        return identifier
    classes = {
        name: value
        for name, value in offered.items()
        if isinstance(value, type) and issubclass(value, base) and value is not base
    }
    if isinstance(identifier, str):
        by_plain_name = {_plain(name): name for name in classes}
        if _plain(identifier) in by_plain_name:
            return classes[by_plain_name[_plain(identifier)]]()
        near = difflib.get_close_matches(_plain(identifier), list(by_plain_name), n=1)
        hint = f"Did you mean {by_plain_name[near[0]]!r}?" if near else "Pass one of these, or an instance."
        raise ValueError(f"`{argument}` must be one of {quoted(sorted(classes))}. Received: {identifier!r}. {hint}")
    raise TypeError(
        f"`{argument}` must be a {argument}, its name, or None. Received: {identifier!r} of type "
        f"{type(identifier).__name__}. Pass, say, {sorted(classes)[-1]!r}."
    )


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
