"""The contract of balancers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from multihead._method import Observation
from multihead.balancing import Balancer
from multihead.testing._report import Case, Report

_SIZE = 12


def check_balancer(
    balancer: Balancer, *, num_heads: Sequence[int] = (1, 2, 3, 5), order_matters: bool = False, xla: bool = True
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
    report = Report(type(balancer).__name__, num_heads)
    for count in num_heads:
        for label, rows in _zoo(count).items():
            case = Case(balancer, report, f"gradients of the kind: {label}, {count} heads", (count, _SIZE))
            _check_updates(case, rows, order_matters)
            if label == "random":
                _check_copied_balancers(case, rows, xla)
    return report


def _check_updates(case: Case, rows: np.ndarray, order_matters: bool) -> None:
    update, narrow = _update(case, rows), _update(case, rows.astype(np.float32))
    case.require(update.shape == (_SIZE,), "have the shape [num_parameters]", f", not {update.shape}")
    case.require(narrow.dtype == np.float32 and update.dtype == np.float64, "have the gradients' dtype")
    case.require(np.isfinite(update).all() and np.isfinite(narrow).all(), "be finite")
    if rows.any():
        idle = np.concatenate([rows, np.zeros([1, _SIZE])])
        if case.method.max_heads is None or len(idle) <= case.method.max_heads:
            with_idle = _update(case, idle)
            case.require(np.isfinite(with_idle).all(), "be finite if a head has no gradient")
            _require_same_update(
                case, rows, with_idle, update, "give the same update when a head without a gradient is added"
            )
        if not order_matters:
            _require_same_update(case, rows, _update(case, rows[::-1]), update, "not depend on the order of the heads")


def _check_copied_balancers(case: Case, rows: np.ndarray, xla: bool) -> None:
    update = _update(case, rows)
    narrow = _update(case, rows.astype(np.float32))
    _require_same_update(case, rows, narrow, update, "be the same in float32 and float64", 1e-3)
    modes = case.in_graphs(lambda balancer, rows: balancer.combine([rows])[0], tf.constant(rows), xla=xla)
    for rule, result in modes:
        _require_same_update(case, rows, result, update, rule, 1e-5)
    if "gradients" not in case.method.uses:
        coefficients = case.built().coefficients(tf.constant(rows @ rows.T)).numpy()
        case.require(coefficients.shape == (len(rows),), "return one coefficient per head")
        _require_same_update(case, rows, coefficients @ rows, update, "be the same from inner products as from gradients")
    one, other = case.built(), case.built()
    trainable = any(variable.trainable for variable in one.variables)
    case.require(not trainable, "have no trainable variables", ". Create them with `add_state`")
    is_same = np.array_equal(one(rows).numpy(), other(rows).numpy())
    case.require(is_same, "give the same update from equal configurations")
    fresh, shown = case.built(), Observation(tf.constant(0, tf.int64), tf.ones([len(rows)], tf.bool))
    case.check_state(fresh, [(case.description, shown)] * 2, lambda _: fresh(rows))


def _update(case: Case, rows: np.ndarray) -> np.ndarray:
    return case.method.copy()(np.ascontiguousarray(rows)).numpy()


def _require_same_update(
    case: Case, rows: np.ndarray, actual: np.ndarray, expected: np.ndarray, rule: str, tolerance: float = 1e-6
) -> None:
    case.require_close(actual, expected, max(np.abs(expected).max(), 1e-9 * np.abs(rows).max()), rule, tolerance)


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
