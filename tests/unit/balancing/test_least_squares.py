"""The solvers that several methods share, beside NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from scipy.optimize import nnls

from multihead.balancing._least_squares import nonnegative_least_squares, pseudo_inverse
from multihead.balancing._pivoting import definiteness, nonnegative
from multihead.balancing._rows import unit_rows
from tests.helpers import zoo

pytestmark = pytest.mark.mathematics


@pytest.mark.parametrize("kind", ["random", "rank_deficient", "zero_row", "equal", "opposed"])
def test_the_pseudo_inverse_is_that_of_numpy(kind):
    rows = zoo.units(zoo.matrix(kind, 4))
    found = pseudo_inverse(tf.constant(rows @ rows.T), 1e-9).numpy()
    np.testing.assert_allclose(found, np.linalg.pinv(rows @ rows.T, rcond=1e-9, hermitian=True), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["random", "conflicting", "rank_deficient", "opposed"])
def test_nonnegative_least_squares_are_those_of_scipy(kind):
    columns = zoo.units(zoo.matrix(kind, 5))
    targets = zoo.units(np.random.default_rng(1).normal(size=(6, columns.shape[1])) - columns.sum(0))
    gramians = tf.constant(np.broadcast_to(columns @ columns.T, (6, 5, 5)))
    found = nonnegative_least_squares(gramians, targets @ columns.T, np.ones(6), 1e-12, 1e-12).numpy()
    assert (found >= 0).all()
    for target, solution in zip(targets, found):
        wanted, _ = nnls(columns.T, -target)
        np.testing.assert_allclose(solution @ columns, wanted @ columns, rtol=1e-6, atol=1e-8)


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
