"""What a misspelt name was meant to be, among those that are known; the names that Keras knows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any


def nearest(given: Any, known: Iterable[Any]) -> Any:
    """The known name that a misspelt one was probably meant to be; None if none is similar.

    Capitals, hyphens and underscores do not count.
    """
    by_text = {_plain(name): name for name in known}
    close = difflib.get_close_matches(_plain(given), by_text, n=1)
    return by_text[close[0]] if close else None


def _plain(name: Any) -> str:
    return str(name).replace("_", "").replace("-", "").lower()


def did_you_mean(given: Iterable[Any], known: Iterable[Any], otherwise: str) -> str:
    """The last sentence of a message: the known name nearest to the first unknown one that has any, or what to do instead.

    Args:
        given: The unknown names.
        known: The known names.
        otherwise: The sentence for names that are like no known one.
    """
    known = list(known)
    found = [near for near in (nearest(name, known) for name in given) if near is not None]
    return f"Did you mean {found[0]!r}?" if found else otherwise


def names_known_to(get: Callable[[str], Any], module: Any) -> list[str]:
    """The names that `keras.losses.get` or `keras.metrics.get` knows, each function and class once.

    Args:
        get: One of these functions.
        module: Its module.
    """
    found: dict[str, None] = {}
    for name, each in vars(module).items():
        if callable(each) and not name.startswith("_") and name not in ("get", "serialize", "deserialize", "Loss", "Metric"):
            names = (snake_case(name), name.lower(), name)
            known = next((each for each in names if _is_known(get, each)), None)
            found.update({} if known is None else {known: None})
    abbreviations = [name for name in _ABBREVIATIONS if _is_known(get, name)]
    return [*sorted(found), *(name for name in abbreviations if name not in found)]


_ABBREVIATIONS = ("accuracy", "acc", "mae", "mape", "mse", "msle")


def _is_known(get: Callable[[str], Any], name: str) -> bool:
    try:
        return callable(get(name))
    except (ValueError, TypeError, KeyError):
        return False


def snake_case(name: str) -> str:
    """The name that Keras derives from the name of a class: `"auc"` from `"AUC"`."""
    apart = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", apart).lower()
