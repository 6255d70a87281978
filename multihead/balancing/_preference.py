"""The preference: how much each head counts, for the methods that accept one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from multihead._ground.keras import Untracked
from multihead._ground.validation import check_head_names, is_number, quoted
from multihead.balancing._base import Balancer


class PreferenceBalancer(Balancer):
    """A balancer with a preference.

    Args:
        preference: One number of at least 0 per head, as a sequence in the order of the heads or as a dict by name.
            Heads missing from the dict have 1. Default: 1 for every head.
        name: Name of the layer.

    Raises:
        ValueError: A number is negative or not finite, or all are 0.
    """

    def __init__(self, preference: Sequence[float] | Mapping[str, float] | None = None, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self._preference = Untracked(_checked(preference))

    @property
    def preference(self) -> tuple[float, ...] | dict[str, float] | None:
        """The preference as passed to the constructor."""
        return self._preference.value

    def bind(self, head_names: Sequence[str]) -> None:
        super().bind(head_names)
        if isinstance(self.preference, dict):
            check_head_names("preference", self.preference, head_names)
        self._numbers(len(head_names))

    def _check_num_heads(self, num_heads: int) -> None:
        super()._check_num_heads(num_heads)
        self._numbers(num_heads)

    def _numbers(self, num_heads: int) -> list[float]:
        preference = self.preference
        if preference is None:
            return [1.0] * num_heads
        if isinstance(preference, dict):
            if self.head_names is None:
                raise ValueError(
                    "`preference` by name requires the heads' names. "
                    f"Received: preference={preference!r}, but `bind` was not called. "
                    "Call `bind(head_names)` first, or pass a sequence in the order of the rows."
                )
            values = [preference.get(name, 1.0) for name in self.head_names]
            if not any(values):
                raise _not_a_preference(preference)
        else:
            values = list(preference)
        if len(values) != num_heads:
            raise ValueError(
                f"`preference` must have one number per head. Received: {len(values)} numbers for {num_heads} heads"
                f"{'' if self.head_names is None else ' (' + quoted(self.head_names) + ')'}. "
                "Pass one number per head, or a dict by name."
            )
        return values

    def _preference_vector(self, num_heads: int) -> tf.Tensor:
        """`[num_heads]` float64."""
        return tf.constant(self._numbers(num_heads), tf.float64)


def _checked(preference: Any) -> tuple[float, ...] | dict[str, float] | None:
    if preference is None:
        return None
    by_name = isinstance(preference, Mapping)
    values = list(preference.values()) if by_name else list(preference)
    is_valid = all(is_number(value) and value >= 0 for value in values)
    if not is_valid or not (by_name or any(value > 0 for value in values)):  # heads missing from a dict have 1
        raise _not_a_preference(preference)
    if by_name:
        return {str(name): float(value) for name, value in preference.items()}
    return tuple(float(value) for value in values)


def _not_a_preference(preference: Any) -> ValueError:
    return ValueError(
        "`preference` must contain finite numbers of at least 0, and at least one above 0. "
        f"Received: preference={preference!r}. Omit it to treat all heads equally."
    )
