"""The solvers that several methods share, beside NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from scipy.optimize import nnls

from multihead import balancing
from multihead.balancing._rows import unit_rows
from multihead.balancing._solvers.least_squares import nonnegative_least_squares
from multihead.balancing._solvers.pivoting import definiteness, nonnegative
from tests.helpers import zoo

pytestmark = pytest.mark.mathematics


@pytest.mark.parametrize("angle", [1e-2, 1e-4, 1e-6])
def test_rows_that_almost_oppose_each_other_keep_their_precision(angle):
    """The weights are about the inverse of the angle; that another row is left out of a subset must not mix with them."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        columns = zoo.units(random.normal(size=(4, 8)))
        columns[3] = -columns[0] + angle * columns[3]
        columns = zoo.units(columns)
        products = tf.constant(columns @ columns.T)
        found = nonnegative_least_squares(products, products, tf.ones([4], tf.float64), 1e-15, 1e-14).numpy()
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
def test_principal_pivoting_is_scipy_s_solution_wherever_it_says_so(num_heads):
    for kind in ("random", "conflicting"):
        columns = zoo.units(zoo.matrix(kind, num_heads, size=3 * num_heads))
        targets = zoo.units(np.random.default_rng(1).normal(size=(5, columns.shape[1])) - columns.sum(0))
        matrix = columns @ columns.T
        found, is_solved = nonnegative(tf.constant(matrix), tf.constant(targets @ columns.T), 1e-14)
        assert is_solved and (found.numpy() >= 0).all()
        for target, solution in zip(targets, found.numpy()):
            np.testing.assert_allclose(solution, nnls(columns.T, -target)[0], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_depend_on_each_other_are_left_to_the_exact_solver(dtype):
    definite = {}
    for kind in ("random", *zoo.HARD):
        rows = zoo.matrix(kind, 4, 6)
        definite[kind] = bool(definiteness(unit_rows(tf.constant(rows @ rows.T, dtype))))
    assert definite["random"] and definite["zero_row"] and definite["all_zero"]
    assert not any(definite[kind] for kind in ("colinear", "rank_deficient", "equal", "opposed", "opposed_scaled"))
