"""The result of a check: the rules that hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from multihead._ground.calls import graph_function


class Report:
    """The rules that a `check_*` function has checked. All of them hold: the first broken rule raises an error.

    Args:
        method: The checked method.
        inputs: A description of its inputs, for the error messages.

    Attributes:
        name: The method's class.
        num_heads: The numbers of heads that were tried.
    """

    def __init__(self, method: Any, inputs: str) -> None:
        self.name = type(method).__name__
        self.num_heads: list[int] = []
        self._inputs = inputs
        self._checks: dict[str, None] = {}

    @property
    def checks(self) -> list[str]:
        """The rules that were checked, each once; each completes the sentence "The method must ..."."""
        return list(self._checks)

    def require(self, holds: Any, rule: str, given: str, detail: str = "") -> None:
        """Notes that a rule was checked.

        Args:
            holds: Whether it holds.
            rule: The rule; it completes the sentence "The method must ...".
            given: The input on which it was checked.
            detail: What to add to the rule if it does not hold.

        Raises:
            AssertionError: It does not hold.
        """
        self._checks[rule] = None
        if not holds:
            raise AssertionError(
                f"`{self.name}` must {rule}{detail}. Received: {self._inputs} {given}. See docs/extending.md."
            )

    def tried(self, num_heads: int) -> None:
        """Notes a number of heads."""
        if num_heads not in self.num_heads:
            self.num_heads.append(num_heads)

    def __repr__(self) -> str:
        low, high = min(self.num_heads), max(self.num_heads)
        heads = "1 head" if high == 1 else f"{high} heads" if low == high else f"{low} to {high} heads"
        return f"{self.name}: {len(self._checks)} checks, {heads}"


def traced(function: Callable[..., Any], *arguments: Any, xla: bool = False) -> Any:
    """A graph of a function for arguments like these; traced here, so that TensorFlow does not warn of many traces."""
    return graph_function(function, jit_compile=xla).get_concrete_function(*arguments)


def state_of(method: Any) -> list[np.ndarray]:
    """The values of a method's variables."""
    return [np.array(tf.convert_to_tensor(variable)) for variable in method.variables]


def same_state(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    """Whether two states are equal."""
    return len(first) == len(second) and all(map(np.array_equal, first, second))
