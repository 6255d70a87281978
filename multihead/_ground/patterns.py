"""Regular expressions that choose variables by their paths: those that choose nothing are errors."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from multihead._ground.names import did_you_mean
from multihead._ground.validation import quoted


def check_pattern(argument: str, pattern: Any) -> None:
    """Checks that a key of a dict is a regular expression.

    Raises:
        ValueError: It is not.
    """
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"`{argument}` must have regular expressions as keys. Received: {pattern!r}, {error}. Pass, for example, "
            "'embedding'."
        ) from error


def check_found(argument: str, values: Mapping[str, Any], paths: Sequence[str]) -> None:
    """Checks that each pattern is found in a path; warns of one that decides nothing, because others come before it.

    Args:
        argument: The name of the user's argument, for messages.
        values: The values by pattern, of which the first that is found in a path decides.
        paths: The paths, such as `encoder/dense/kernel`.

    Raises:
        ValueError: One is in no path.
    """
    found = {pattern: [path for path in paths if re.search(pattern, path)] for pattern in values}
    absent = [pattern for pattern in found if not found[pattern]]
    if absent:
        raise ValueError(
            f"`{argument}` must have regular expressions that are found in the path of a variable. Received: "
            f"{quoted(absent)}; the paths are {quoted(paths, most=20)}. "
            f"{did_you_mean(absent, dict.fromkeys(_parts(paths)), 'Correct it, or leave it out.')}"
        )
    for pattern in found:
        first = {next(each for each in found if path in found[each]) for path in found[pattern]}
        if pattern not in first and any(values[each] != values[pattern] for each in first):
            warnings.warn(
                f"`{argument}` has a key without effect: {pattern!r}. The first key that is found in a path decides, and "
                f"{quoted(sorted(first))} comes before it. Put {pattern!r} first, or leave it out.",
                UserWarning,
                stacklevel=2,
            )


def _parts(paths: Iterable[str]) -> Iterable[str]:
    """The names in paths, then all that lies between two slashes."""
    names = [path.split("/") for path in paths]
    for length in range(1, 1 + max(map(len, names), default=0)):
        for each in names:
            yield from ("/".join(each[start : start + length]) for start in range(len(each) - length + 1))
