"""What a misspelt name was meant to be, and errors about keyword arguments that do not exist; the names that Keras knows."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

import tensorflow as tf

P = ParamSpec("P")
R = TypeVar("R")

_ALMOST_EQUAL, _SIMILAR = 0.9, 0.6
"""Ratios of `difflib`: of a name with one wrong letter, and the smallest that counts."""


@tf.autograph.experimental.do_not_convert  # AutoGraph cannot read difflib
def nearest(given: Any, known: Iterable[Any]) -> Any:
    """The known name that a misspelt one was probably meant to be; None if none is similar.

    Capitals and underscores do not count. Of names that are not almost equal, one comes first with which the given name
    ends (`weight` for `loss_weight`), or that it abbreviates (`learning_rate` for `lr`).
    """
    by_text: dict[str, Any] = {}
    for name in known:
        by_text.setdefault(_plain(name), name)
    text = _plain(given)
    close = difflib.get_close_matches(text, by_text, n=1, cutoff=_ALMOST_EQUAL)
    close = close or sorted((_plain(name) for name in by_text.values() if _says(str(given), str(name))), key=len)[-1:]
    close = close or difflib.get_close_matches(text, by_text, n=1, cutoff=_SIMILAR)
    return by_text[close[0]] if close else None


def _plain(name: Any) -> str:
    return str(name).replace("_", "").replace("-", "").lower()


def _says(given: str, name: str) -> bool:
    """Whether a name is the last words of the given one, or words with the initials that were given."""
    wanted, words = ([word.removesuffix("s") for word in each.lower().strip("_").split("_")] for each in (given, name))
    is_end = len(words) < len(wanted) and words == wanted[-len(words) :]
    return is_end or (len(words) > 1 and given.lower() == "".join(word[:1] for word in words))


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


def check_keywords(name: str, known: Iterable[str], given: Mapping[str, Any]) -> None:
    """Checks that keyword arguments exist.

    Args:
        name: What is called.
        known: Its arguments.
        given: The keyword arguments.

    Raises:
        TypeError: One does not exist.
    """
    known = list(known)
    for keyword, value in given.items():
        if keyword not in known:
            there_are = f"its arguments are {', '.join(f'`{each}`' for each in known)}" if known else "it has none"
            near = nearest(keyword, known)
            remedy = "Correct its name, or omit it." if near is None else f"Did you mean `{near}`?"
            raise TypeError(f"`{name}` has no argument `{keyword}`; {there_are}. Received: {keyword}={value!r}. {remedy}")


def names_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function or method: an unknown keyword argument is an error that names the nearest one."""
    known = _keywords(inspect.signature(function))

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs and known is not None:
            check_keywords(function.__name__, known, kwargs)
        return function(*args, **kwargs)

    return called


class NamesArguments:
    """Base of classes whose constructor's unknown keyword arguments are errors that name the nearest one.

    It is the same for subclasses, unless their constructor takes any keyword.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Checks the keyword arguments."""
        known = _keywords(inspect.signature(cls.__init__)) if kwargs else None
        if known is not None:
            check_keywords(cls.__name__, known, kwargs)
        make: Any = super().__new__
        return make(cls) if make is object.__new__ else make(cls, *args, **kwargs)


def _keywords(signature: inspect.Signature) -> list[str] | None:
    """The arguments that can be passed by name; None if any can."""
    parameters = signature.parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters if each.kind in by_name and each.name != "self"]


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
