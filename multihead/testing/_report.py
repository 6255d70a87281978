"""The result of a check, the rules that hold; and the checks that all kinds of methods share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from multihead._ground.calls import graph_function
from multihead._ground.types import Function, Given, Tensor
from multihead._method import Method, Observation


class Report:
    """The rules that a `check_*` function has checked. All of them hold: the first broken rule raises an error.

    Args:
        method: The checked method.
        inputs: A description of its inputs, for the error messages.

    Attributes:
        name: The method's class.
        num_heads: The numbers of heads that were tried.
    """

    def __init__(self, method: Method, inputs: str) -> None:
        self.name = type(method).__name__
        self.num_heads: list[int] = []
        self._inputs = inputs
        self._checks: dict[str, None] = {}

    @property
    def checks(self) -> list[str]:
        """The rules that were checked, each once; each completes the sentence "The method must ..."."""
        return list(self._checks)

    def require(self, holds: Given, rule: str, given: str, detail: str = "") -> None:
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


def traced(function: Function, *arguments: Tensor, xla: bool = False) -> Given:
    """A graph of a function for arguments like these; traced here, so that TensorFlow does not warn of many traces."""
    return graph_function(function, jit_compile=xla).get_concrete_function(*arguments)


class Case:
    """A method on one input, which a label describes, with the checks that all kinds of methods share.

    A balancer has gradients of some number of parameters.
    """

    def __init__(
        self, method: Method, report: Report, label: str, num_heads: int, num_parameters: int | None = None
    ) -> None:
        self._method, self._report, self._label = method, report, label
        self._num_heads, self._num_parameters = num_heads, num_parameters

    def built(self, further: int = 0) -> Given:
        """A copy that is bound to the heads' names and built, for some further heads if need be."""
        fresh, count = type(self._method).from_config(self._method.get_config()), self._num_heads + further
        named = list(self._method.head_names or ())
        fresh.bind((named + [f"head_{k}" for k in range(len(named), count)])[:count])
        fresh.build((count, self._num_parameters))
        return fresh

    def check_config(self, fresh: Method) -> None:
        """Checks that a copy has the configuration of the method, and that it is built once."""
        rule = "return all arguments of the constructor, and only these, from `get_config`"
        self.require(fresh.get_config() == self._method.get_config(), rule)
        before = len(fresh.variables)
        fresh.build((self._num_heads, self._num_parameters))
        detail = f", but has {len(fresh.variables)} variables after {before}. Create them in `create_state`"
        self.require(len(fresh.variables) == before, "do nothing in a second call of `build`", detail)

    def check_skipped(self, fresh: Method, shown: Observation, given: str = "") -> None:
        """Checks that an update which was not applied changes nothing."""
        before = state_of(fresh)
        fresh.observe(shown, tf.constant(False))
        self.require(_same(state_of(fresh), before), "not change its state if an update was not applied", given=given)

    def check_reset(self, fresh: Method, start: Sequence[np.ndarray]) -> None:
        """Checks that `reset` gives back the initial state."""
        fresh.reset()
        self.require(_same(state_of(fresh), start), "have its initial state after `reset()`")

    def require(self, holds: Given, rule: str, detail: str = "", given: str = "") -> None:
        """Notes that a rule was checked; see `Report.require`."""
        self._report.require(holds, rule, given or self._label, detail)


def state_of(method: Method) -> list[np.ndarray]:
    """The values of a method's variables."""
    return [np.array(tf.convert_to_tensor(variable)) for variable in method.variables]


def _same(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    return len(first) == len(second) and all(map(np.array_equal, first, second))
