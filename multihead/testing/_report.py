"""The result of a check, the rules that hold; and the checks that all kinds of methods share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from multihead._ground.calls import graph_function
from multihead._ground.types import Function, Tensor
from multihead._method import Method, Observation


class Report:
    """The rules that a `check_*` function has checked. All of them hold: the first broken rule raises an error.

    Attributes:
        name: The method's class.
        num_heads: The numbers of heads that were tried.
        checks: The distinct rules that were checked; a rule completes the sentence "The method must ...".
    """

    def __init__(self, name: str, num_heads: Sequence[int]) -> None:
        self.name, self.num_heads = name, list(num_heads)
        self.checks: list[str] = []

    def __repr__(self) -> str:
        low, high = min(self.num_heads), max(self.num_heads)
        heads = "1 head" if high == 1 else f"{high} heads" if low == high else f"{low} to {high} heads"
        return f"{self.name}: {len(self.checks)} checks, {heads}"


class Case:
    """A method on one input, which `description` tells; built for `shape`: `(num_heads,)` and, for balancers, parameters."""

    def __init__(self, method: Method, report: Report, description: str, shape: tuple[int, ...]) -> None:
        self.method, self.report, self.description, self.shape = method, report, description, shape

    def require(self, holds: bool | np.bool_, rule: str, detail: str = "") -> None:
        """Notes that a rule was checked; if it does not hold, raises an error with the rule, a detail and the input."""
        if rule not in self.report.checks:
            self.report.checks.append(rule)
        if not holds:
            raise AssertionError(
                f"`{self.report.name}` must {rule}{detail}. Received: {self.description}. See docs/extending.md."
            )

    def require_close(
        self, actual: np.ndarray, expected: np.ndarray, scale: np.ndarray | float, rule: str, tolerance: float
    ) -> None:
        """Checks that values differ by at most `tolerance` times their scale, or by `tolerance` where the scale is 0."""
        error = (np.abs(actual.astype(np.float64) - expected) / np.where(scale > 0, scale, 1.0)).max()
        self.require(error <= tolerance, rule, f" (relative difference {error:.1e})")

    def built(self, further: int = 0) -> Method:
        """A copy that is bound to the heads' names and built, for some further heads if need be."""
        fresh: Method = type(self.method).from_config(self.method.get_config())
        count = self.shape[0] + further
        named = list(self.method.head_names or ())
        fresh.bind((named + [f"head_{k}" for k in range(len(named), count)])[:count])
        fresh.build((count, *self.shape[1:]))
        return fresh

    def in_graphs(self, run: Function, *arguments: Tensor, xla: bool) -> Iterator[tuple[str, np.ndarray]]:
        """The result of a function of a fresh copy and arguments in each further mode, with the rule that it must follow."""
        for is_compiled in (False, True) if xla else (False,):
            fresh = self.built()
            graph = traced(lambda *values, fresh=fresh: run(fresh, *values), *arguments, xla=is_compiled)
            mode = "compiled by XLA" if is_compiled else "in a graph"
            yield f"be the same {mode} as in eager mode", graph(*arguments).numpy()

    def check_state(
        self, fresh: Method, observed: Iterable[tuple[str, Observation]], apply: Callable[[Observation], object]
    ) -> None:
        """Checks configuration, a second `build`, skipped updates and `reset` of a copy that is built.

        An observed update, with its description, is skipped first; then `apply` is called with it.
        """
        rule = "return all arguments of the constructor, and only these, from `get_config`"
        self.require(fresh.get_config() == self.method.get_config(), rule)
        number, start = len(fresh.variables), _state_of(fresh)
        fresh.build(self.shape)
        detail = f", but has {len(fresh.variables)} variables after {number}. Create them in `create_state`"
        self.require(len(fresh.variables) == number, "do nothing in a second call of `build`", detail)
        for self.description, shown in observed:
            before = _state_of(fresh)
            fresh.observe(shown, tf.constant(False))
            is_same = all(map(np.array_equal, _state_of(fresh), before))
            self.require(is_same, "not change its state if an update was not applied")
            apply(shown)
        fresh.reset()
        self.require(all(map(np.array_equal, _state_of(fresh), start)), "have its initial state after `reset()`")


def traced(function: Function, *arguments: Tensor, xla: bool = False) -> Function:
    """A graph of a function for arguments like these; traced here, so that TensorFlow does not warn of many traces."""
    graph: Function = graph_function(function, jit_compile=xla).get_concrete_function(*arguments)
    return graph


def _state_of(method: Method) -> list[np.ndarray]:
    return [np.array(tf.convert_to_tensor(variable)) for variable in method.variables]
