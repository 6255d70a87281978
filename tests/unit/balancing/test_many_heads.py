"""Many heads: what is promised still holds, and what is solved is solved."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead import balancing
from tests.helpers import balancing_reference as reference
from tests.helpers import zoo

pytestmark = pytest.mark.mathematics

MANY = 36


def gradients(kind):
    """Rows with a common direction: clearly independent, or more than there are columns, or some exactly opposed."""
    random = np.random.default_rng(1)
    columns = {"independent": 4 * MANY, "dependent": MANY // 2, "opposed": 4 * MANY}[kind]
    rows = random.normal(size=(MANY, columns)) + 0.4 * random.normal(size=columns) * (kind != "dependent") + 0.5
    if kind == "opposed":
        rows[-1] = -3 * rows[0]
    return rows * 10.0 ** random.uniform(-2, 2, size=(MANY, 1))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("method", [balancing.DualProj, balancing.MGDA, balancing.NashMTL])
def test_no_head_is_opposed_and_independent_gradients_are_solved(method):
    balancer = method()
    balancer.build((MANY, None))
    solve = tf.function(balancer.coefficients, autograph=False)
    for kind in ("independent", "dependent", "opposed"):
        rows = gradients(kind)
        weights = solve(tf.constant(rows @ rows.T, tf.float32)).numpy().astype(np.float64)
        update = weights @ rows
        assert np.isfinite(update).all() and zoo.conflict(update, rows) >= -1e-5, kind
        assert kind == "opposed" or update.any(), kind
        if kind == "independent" and method is balancing.DualProj:
            expected = reference.dualproj(rows)
            np.testing.assert_allclose(update, expected, atol=1e-3 * np.abs(expected).max())
        if kind == "independent" and method is balancing.MGDA:
            assert update @ update - (rows @ update).min() <= 1e-4 * (rows**2).sum(axis=1).min()
        if kind == "independent" and method is balancing.NashMTL:
            np.testing.assert_allclose(rows @ update * weights, 1, rtol=1e-2)


@pytest.mark.parametrize("method", [balancing.PCGrad, balancing.GradVac])
def test_projections_one_after_another_are_the_same_in_a_loop(method):
    from multihead.balancing.projections import other_heads_in_random_order

    rows = zoo.matrix("conflicting", 20, 1.0)
    orders = other_heads_in_random_order(20, 3, 5).numpy()
    assert all(sorted([head, *order]) == list(range(20)) for head, order in enumerate(orders))
    update = method(seed=3)(rows, step=5).numpy()
    expected = reference.pcgrad(rows, orders) if method is balancing.PCGrad else None
    if expected is None:
        expected, _ = reference.gradvac(rows, orders, np.zeros((20, 20)), 0.01)
    np.testing.assert_allclose(update, expected.sum(axis=0), rtol=1e-5, atol=1e-7 * np.abs(rows).max())
