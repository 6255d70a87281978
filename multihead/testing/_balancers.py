"""The contract of balancers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from multihead._method import Observation
from multihead.balancing import Balancer
from multihead.testing._report import Report, same_state, state_of, traced

_SIZE = 12


def check_balancer(
    balancer: Balancer,
    *,
    num_heads: Sequence[int] = (1, 2, 3, 5),
    order_matters: bool = False,
    xla: bool = True,
) -> Report:
    """Checks a balancer against the contract of `multihead.balancing.Balancer`.

    For easy and hard gradients (conflicting, equal, opposed, linearly dependent, zero; norms from 1e-6 to 1e6 within one
    update, and from 1e-15 to 1e15 overall), it checks that the update

    - is finite, and has the right shape and the gradients' dtype;
    - does not change for the others when a head without a gradient is added;
    - does not depend on the order of the heads;
    - is the same in float32 and float64, in eager mode, in a graph and compiled by XLA;
    - is the same from inner products as from gradients, for a balancer that needs only inner products;
    - is the same for a copy created from `get_config`, and after a second call of `build`;

    and that an update that was not applied does not change the state, and `reset` resets it.

    The balancer itself is not called: the checks run on copies created from its configuration.

    Args:
        balancer: The balancer, with options that are valid for all of `num_heads`.
        num_heads: The numbers of heads to check.
        order_matters: Pass True for a method that depends on the positions of the heads, and document this.
        xla: Pass False to skip compilation, which takes most of the time.

    Returns:
        A report of the checks.

    Raises:
        AssertionError: A check failed; the message names the check and the gradients.

    Example:
        >>> from multihead import balancing
        >>> check_balancer(balancing.EqualNorms(), num_heads=(1, 2))
        EqualNorms: 17 checks, 1 to 2 heads
    """
    report = Report(balancer, "gradients of the kind:")
    for count in num_heads:
        report.tried(count)
        for label, rows in _zoo(count).items():
            _Case(balancer, report, f"{label}, {count} heads", rows).check(order_matters)
        _Case(balancer, report, f"random, {count} heads", _zoo(count)["random"]).check_modes(xla)
    count = max(num_heads)
    _Case(balancer, report, f"random, {count} heads", _zoo(count)["random"]).check_copies()
    return report


class _Case:
    """One balancer on one matrix of gradients."""

    def __init__(self, balancer: Balancer, report: Report, label: str, rows: np.ndarray) -> None:
        self._balancer = balancer
        self._report = report
        self._label = label
        self._rows = rows

    def check(self, order_matters: bool) -> None:
        update = self._update(self._rows)
        narrow = self._update(self._rows.astype(np.float32))
        self._require(update.shape == (_SIZE,), "have the shape [num_parameters]", f", not {update.shape}")
        self._require(narrow.dtype == np.float32 and update.dtype == np.float64, "have the gradients' dtype")
        self._require(np.isfinite(update).all() and np.isfinite(narrow).all(), "be finite")
        if self._rows.any():
            idle = np.concatenate([self._rows, np.zeros([1, _SIZE])])
            if self._takes(len(idle)):
                with_idle = self._update(idle)
                self._require(np.isfinite(with_idle).all(), "be finite if a head has no gradient")
                self._same(with_idle, update, "give the same update when a head without a gradient is added")
            if not order_matters:
                self._same(self._update(self._rows[::-1]), update, "not depend on the order of the heads")

    def check_modes(self, xla: bool) -> None:
        update = self._update(self._rows)
        self._same(self._update(self._rows.astype(np.float32)), update, "be the same in float32 and float64", 1e-3)
        for is_compiled in (False, True) if xla else (False,):
            fresh = self._built()
            rows = tf.constant(self._rows)
            run = traced(lambda rows, balancer=fresh: balancer.combine([rows])[0], rows, xla=is_compiled)
            mode = "compiled by XLA" if is_compiled else "in a graph"
            self._same(run(rows).numpy(), update, f"be the same {mode} as in eager mode", 1e-5)
        if "gradients" not in self._balancer.uses:
            coefficients = self._built().coefficients(tf.constant(self._rows @ self._rows.T))
            self._require(coefficients.shape == (len(self._rows),), "return one coefficient per head")
            self._same(coefficients.numpy() @ self._rows, update, "be the same from inner products as from gradients")

    def check_copies(self) -> None:
        one, other = self._balancer.copy(), self._built()
        config = "return all arguments of the constructor, and only these, from `get_config`"
        self._require(one.get_config() == self._balancer.get_config(), config)
        before = len(other.variables)
        other.build((len(self._rows), _SIZE))
        self._require(
            len(other.variables) == before,
            "do nothing in a second call of `build`",
            f", but has {len(other.variables)} variables after {before}. Create them in `create_state`",
        )
        trainable = any(variable.trainable for variable in other.variables)
        self._require(not trainable, "have no trainable variables", ". Create them with `add_state`")
        start = state_of(other)
        first = other(self._rows).numpy()
        self._require(np.array_equal(one(self._rows).numpy(), first), "give the same update from equal configurations")
        after_one = state_of(other)
        shown = Observation(tf.constant(0, tf.int64), tf.ones([len(self._rows)], tf.bool))
        other.observe(shown, tf.constant(False))
        self._require(same_state(state_of(other), after_one), "not change its state if an update was not applied")
        other.reset()
        self._require(same_state(state_of(other), start), "have its initial state after `reset()`")

    def _takes(self, num_heads: int) -> bool:
        return self._balancer.max_heads is None or num_heads <= self._balancer.max_heads

    def _built(self) -> Balancer:
        fresh = self._balancer.copy()
        fresh.build((len(self._rows), _SIZE))
        return fresh

    def _update(self, rows: np.ndarray) -> np.ndarray:
        return self._balancer.copy()(np.ascontiguousarray(rows)).numpy()

    def _same(self, received: np.ndarray, expected: np.ndarray, rule: str, tolerance: float = 1e-6) -> None:
        scale = max(np.abs(expected).max(), 1e-9 * np.abs(self._rows).max())
        error = np.abs(received.astype(np.float64) - expected).max() / scale if scale else np.abs(received).max()
        self._require(error <= tolerance, rule, f" (relative difference {error:.1e})")

    def _require(self, holds: bool, rule: str, detail: str = "") -> None:
        self._report.require(holds, rule, self._label, detail)


def _zoo(num_heads: int) -> dict[str, np.ndarray]:
    """Matrices `[num_heads, 12]` by label, float64 with values that float32 can represent."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(num_heads, _SIZE))
    common = rng.normal(size=_SIZE)
    lengths = 10.0 ** rng.permutation(np.linspace(-6, 6, num_heads))[:, None] if num_heads > 1 else np.ones([1, 1])
    zero_row, opposed = rows.copy(), rows.copy()
    zero_row[0] = 0 if num_heads > 1 else rows[0]
    opposed[-1] = -rows[0] if num_heads > 1 else rows[0]
    matrices = {
        "random": rows,
        "conflicting": rng.normal(size=(num_heads, 1)) * common + 0.5 * rows,
        "norms from 1e-6 to 1e6": rows * lengths,
        "very small": rows * 1e-15,
        "very large": rows * 1e15,
        "equal": np.ones([num_heads, 1]) * common,
        "dependent": rng.normal(size=(num_heads, 1)) * common,
        "one zero": zero_row,
        "two opposed": opposed,
        "all zero": np.zeros_like(rows),
    }
    return {label: matrix.astype(np.float32).astype(np.float64) for label, matrix in matrices.items()}
