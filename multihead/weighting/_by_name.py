"""Options that hold one number per head name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from multihead._ground.validation import check_head_names, is_number


def check_numbers(argument: str, numbers: Mapping[str, float] | None) -> Mapping[str, float]:
    """Returns the numbers in a form that Keras does not track; raises `ValueError` if one is not finite."""
    given: dict[str, Any] = {} if numbers is None else dict(numbers)
    if not all(is_number(value) for value in given.values()):
        raise ValueError(
            f"`{argument}` must map head names to finite numbers. Received: {argument}={given!r}. Correct them."
        )
    return MappingProxyType({str(name): float(value) for name, value in given.items()})


def vector(argument: str, numbers: Mapping[str, float], head_names: Sequence[str] | None) -> tf.Tensor:
    """`[num_heads]` float32, 0 for heads that are not named.

    Raises:
        ValueError: A name is not that of a head.
    """
    names = tuple(head_names or ())
    check_head_names(argument, numbers, names)
    return tf.constant([numbers.get(name, 0.0) for name in names], tf.float32)
