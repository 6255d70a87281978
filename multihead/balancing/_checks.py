"""Checks of the methods' arguments."""

from __future__ import annotations

import numbers
from typing import Any


def check_seed(seed: Any) -> int:
    """Returns `seed` if it is a whole number, else raises `ValueError`."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise ValueError(f"`seed` must be a whole number. Received: seed={seed!r}. Pass, say, seed=0.")
    return int(seed)


def check_between(
    argument: str, value: Any, low: float, high: float, *, with_low: bool = True, with_high: bool = True
) -> float:
    """Returns `value` as a float if it is a number between two others, else raises `ValueError`."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    number = float(value) if is_number else float("nan")
    is_high_enough = number >= low if with_low else number > low
    is_low_enough = number <= high if with_high else number < high
    if not (is_high_enough and is_low_enough):
        above = f"at least {low:g}" if with_low else f"above {low:g}"
        below = f"at most {high:g}" if with_high else f"below {high:g}"
        rule = above if high == float("inf") else f"{above} and {below}"
        raise ValueError(
            f"`{argument}` must be a finite number {rule}. Received: {argument}={value!r}. Leave it out for the default."
        )
    return number
