"""The solvers that several methods share, beside NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from scipy.optimize import nnls

from multihead import balancing
from multihead.balancing._rows import unit_rows
from multihead.balancing._solvers.least_squares import dual_cone, nonnegative_least_squares
from tests.helpers import zoo

pytestmark = pytest.mark.mathematics


@pytest.mark.parametrize("angle", [1e-2, 1e-4, 1e-6])
def test_rows_that_almost_oppose_each_other_keep_their_precision(angle):
    """The weights are about the inverse of the angle; that another row is left out of a subset must not mix with them."""
    solve = tf.function(lambda products: nonnegative_least_squares(products, products, 1e-15, 1e-14), autograph=False)
    for seed in range(20):
        random = np.random.default_rng(seed)
        columns = zoo.units(random.normal(size=(4, 8)))
        columns[3] = -columns[0] + angle * columns[3]
        columns = zoo.units(columns)
        found = solve(tf.constant(columns @ columns.T)).numpy()
        for target, solution in zip(columns, found):
            wanted, _ = nnls(columns.T, -target)
            np.testing.assert_allclose(
                solution @ columns, wanted @ columns, atol=1e-14 / angle**2 + 1e-10, err_msg=str(seed)
            )


def test_xla_keeps_the_precision_of_rows_that_almost_oppose_each_other():
    balancer = balancing.UPGrad()
    balancer.build((4, None))
    of_graph, of_xla = (tf.function(balancer.coefficients, autograph=False, jit_compile=each) for each in (False, True))
    for seed in range(20):
        random = np.random.default_rng(seed)
        rows = random.normal(size=(4, 6))
        rows[1] = -rows[0] * (1 + 1e-3 * random.normal()) + 1e-5 * random.normal(size=6)
        one, other = (each(tf.constant(rows @ rows.T)).numpy() @ rows for each in (of_graph, of_xla))
        np.testing.assert_allclose(one, other, atol=1e-3 * np.linalg.norm(one), err_msg=str(seed))


@pytest.mark.parametrize("num_heads", [3, 16, 40])
def test_least_squares_are_scipy_s_solution(num_heads):
    for kind in ("random", "conflicting"):
        columns = zoo.units(zoo.matrix(kind, num_heads, size=3 * num_heads))
        targets = zoo.units(np.random.default_rng(1).normal(size=(5, columns.shape[1])) - columns.sum(0))
        found = nonnegative_least_squares(
            tf.constant(columns @ columns.T), tf.constant(targets @ columns.T), 1e-14, 1e-13
        ).numpy()
        assert (found >= 0).all()
        for target, solution in zip(targets, found):
            np.testing.assert_allclose(solution, nnls(columns.T, -target)[0], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_only_rows_that_others_cancel_are_opposed(dtype):
    for kind in ("random", *zoo.HARD):
        rows = zoo.matrix(kind, 4, 6)
        cone = dual_cone(unit_rows(tf.constant(rows @ rows.T, dtype)))
        assert kind == "rank_deficient" or bool(tf.reduce_any(cone.opposed)) == kind.startswith("opposed"), kind
        products = tf.linalg.matvec(cone.rows.cosines, cone.inner)
        assert tf.reduce_all(products[(cone.rows.active > 0) & ~cone.opposed] >= 1 - 1e-6), kind
