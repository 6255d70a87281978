"""What a misspelt name was meant to be."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def did_you_mean(given: Any, known: Iterable[Any], otherwise: str, quote: str = "'") -> str:
    """The last sentence of a message: the known name nearest to an unknown one, or what to do if none is similar."""
    by_text = {str(name): name for name in known}
    close = difflib.get_close_matches(str(given).lower(), by_text, n=1)
    return f"Did you mean {quote}{by_text[close[0]]}{quote}?" if close else otherwise


class NamesArguments:
    """Base of layers whose constructor's unknown keyword arguments are errors that name the nearest one."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Checks the keyword arguments."""
        if kwargs:
            _check_keywords(cls.__name__, cls.__init__, kwargs)
        return super().__new__(cls, *args, **kwargs)


def names_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """The same for the keyword arguments of a function."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        _check_keywords(function.__name__, function, kwargs)
        return function(*args, **kwargs)

    return called


def _check_keywords(name: str, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    known = [argument for argument in inspect.signature(function).parameters if argument != "self"]
    for keyword, value in given.items():
        if keyword not in known:
            raise TypeError(
                f"`{name}` has no argument `{keyword}`; its arguments are {', '.join(f'`{each}`' for each in known)}. "
                f"Received: {keyword}={value!r}. {did_you_mean(keyword, known, 'Correct its name, or omit it.', '`')}"
            )
