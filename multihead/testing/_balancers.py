"""The contract of balancers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from multihead._method import Observation
from multihead.balancing import Balancer
from multihead.testing._report import Case, Report, state_of, traced

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
        cases = {label: _Case(balancer, report, label, rows) for label, rows in _zoo(count).items()}
        for case in cases.values():
            case.check(order_matters)
        cases["random"].check_modes(xla)
    _Case(balancer, report, "random", _zoo(max(num_heads))["random"]).check_copies()
    return report


class _Case(Case):
    """One balancer on one matrix of gradients."""

    def __init__(self, balancer: Balancer, report: Report, label: str, rows: np.ndarray) -> None:
        super().__init__(balancer, report, f"{label}, {len(rows)} heads", len(rows), _SIZE)
        self._rows = rows

    def check(self, order_matters: bool) -> None:
        update = self._update(self._rows)
        narrow = self._update(self._rows.astype(np.float32))
        self.require(update.shape == (_SIZE,), "have the shape [num_parameters]", f", not {update.shape}")
        self.require(narrow.dtype == np.float32 and update.dtype == np.float64, "have the gradients' dtype")
        self.require(np.isfinite(update).all() and np.isfinite(narrow).all(), "be finite")
        if self._rows.any():
            idle = np.concatenate([self._rows, np.zeros([1, _SIZE])])
            if self._method.max_heads is None or len(idle) <= self._method.max_heads:
                with_idle = self._update(idle)
                self.require(np.isfinite(with_idle).all(), "be finite if a head has no gradient")
                self._same(with_idle, update, "give the same update when a head without a gradient is added")
            if not order_matters:
                self._same(self._update(self._rows[::-1]), update, "not depend on the order of the heads")

    def check_modes(self, xla: bool) -> None:
        update = self._update(self._rows)
        self._same(self._update(self._rows.astype(np.float32)), update, "be the same in float32 and float64", 1e-3)
        for is_compiled in (False, True) if xla else (False,):
            fresh = self.built()
            rows = tf.constant(self._rows)
            run = traced(lambda rows, balancer=fresh: balancer.combine([rows])[0], rows, xla=is_compiled)
            mode = "compiled by XLA" if is_compiled else "in a graph"
            self._same(run(rows).numpy(), update, f"be the same {mode} as in eager mode", 1e-5)
        if "gradients" not in self._method.uses:
            coefficients = self.built().coefficients(tf.constant(self._rows @ self._rows.T))
            self.require(coefficients.shape == (len(self._rows),), "return one coefficient per head")
            self._same(coefficients.numpy() @ self._rows, update, "be the same from inner products as from gradients")

    def check_copies(self) -> None:
        one, other = self._method.copy(), self.built()
        self.check_config(other)
        trainable = any(variable.trainable for variable in other.variables)
        self.require(not trainable, "have no trainable variables", ". Create them with `add_state`")
        start, first = state_of(other), other(self._rows).numpy()
        self.require(np.array_equal(one(self._rows).numpy(), first), "give the same update from equal configurations")
        self.check_skipped(other, Observation(tf.constant(0, tf.int64), tf.ones([len(self._rows)], tf.bool)))
        self.check_reset(other, start)

    def _update(self, rows: np.ndarray) -> np.ndarray:
        return self._method.copy()(np.ascontiguousarray(rows)).numpy()

    def _same(self, received: np.ndarray, expected: np.ndarray, rule: str, tolerance: float = 1e-6) -> None:
        scale = max(np.abs(expected).max(), 1e-9 * np.abs(self._rows).max())
        error = np.abs(received.astype(np.float64) - expected).max() / scale if scale else np.abs(received).max()
        self.require(error <= tolerance, rule, f" (relative difference {error:.1e})")


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
