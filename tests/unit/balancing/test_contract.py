"""What every balancer keeps to, over every method that the package offers, and over inputs from harmless to hard."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import zoo
from tests.helpers.balancers import ALL, USUAL, make, traced, update_of, usual_update, xla_heads
from tests.helpers.cases import quick

pytestmark = pytest.mark.mathematics

# Methods whose update depends on the order of the heads, because they go through them in random orders, or draw.
ORDERED = ("PCGrad", "GradVac", "MetaBalance")

# Methods whose update scales with the gradients; the others have a size of their own.
HOMOGENEOUS = tuple(name for name in ALL if name not in ("NashMTL", "FairGrad", "MoCo"))

# Methods whose weights are found by unequal steps, so that float32 input is as near to float64 as that step allows.
PROMISE_NO_CONFLICT = ("UPGrad", "DualProj", "MGDA", "NashMTL", "FairGrad", "Chain")


# Each method at one of two sizes; then at the other, and those that promise more at the smallest.
SIZES = [(name, (3, 16)[(i + turn) % 2]) for turn in (0, 1) for i, name in enumerate(ALL)]
SIZES += [(name, 2) for name in PROMISE_NO_CONFLICT]


@pytest.mark.first_cases(8)
@pytest.mark.parametrize(("name", "num_heads"), quick(len(ALL), SIZES))
def test_finite_with_the_right_shape_and_dtype_and_as_promised_without_conflict(name, num_heads):
    promises = name in PROMISE_NO_CONFLICT
    ranges = {(0, 1.0): 1, (6, 1.0): 1, (3, 1e-15): 1, (3, 1e15): 1}  # spread, overall: number of seeds
    if promises:
        ranges |= {(0, 1.0): 2, (3, 1.0): 2, (6, 1.0): 2, (6, 1e-15): 2, (6, 1e15): 2}
    for kind in zoo.KINDS:
        for (spread, overall), seeds in ranges.items():
            for seed in range(seeds):
                rows, case = zoo.matrix(kind, num_heads, spread, overall, seed), (kind, spread, overall, seed)
                call = traced(name, num_heads, xla=num_heads == xla_heads(name))
                update = call(tf.constant(rows, tf.float32)).numpy()
                assert update.shape == (31,) and update.dtype == np.float32, case
                assert np.isfinite(update).all(), case
                assert kind != "all_zero" or not update.any(), case
                assert not promises or zoo.conflict(update.astype(np.float64), rows) >= -1e-5, case


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", sorted(PROMISE_NO_CONFLICT, key=("DualProj", "MGDA", "NashMTL").__contains__))
def test_no_head_is_opposed_by_coefficients_of_a_float32_gramian(name):
    """The last three are quick with many heads."""
    balancer = make(name)
    balancer.build((3, None))
    coefficients_of = tf.function(lambda gramian: balancer.coefficients(gramian), autograph=False)
    for kind in zoo.KINDS:
        for spread in (0, 3, 6):
            for seed in range(3):
                rows = zoo.matrix(kind, 3, spread, 1.0, seed)
                coefficients = coefficients_of(tf.constant(rows @ rows.T, tf.float32)).numpy()
                assert coefficients.dtype == np.float32
                assert zoo.conflict(coefficients.astype(np.float64) @ rows, rows) >= -1e-5, (kind, spread, seed)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", ALL)
def test_eager_graph_and_xla_agree(name):
    num_heads = xla_heads(name)
    matrix = tf.constant(USUAL if num_heads == 3 else zoo.matrix("conflicting", 2, 1.0), tf.float32)
    eager = usual_update(name, np.float32) if num_heads == 3 else make(name)(matrix).numpy()
    for xla in (False, True):
        update = traced(name, num_heads, xla)(matrix).numpy()
        np.testing.assert_allclose(update, eager, rtol=1e-5, atol=1e-6 * np.abs(eager).max(), err_msg=f"xla={xla}")


@pytest.mark.first_cases(12)
@pytest.mark.parametrize("name", ALL)
def test_float32_is_close_to_float64_and_kept(name):
    rows = zoo.matrix("zero_row", 3, 1.0)
    usual = usual_update(name, np.float32), usual_update(name)
    for narrow, wide in (usual, (update_of(name, rows, np.float32), update_of(name, rows))):
        assert narrow.dtype == np.float32 and wide.dtype == np.float64
        np.testing.assert_allclose(narrow, wide, rtol=1e-4, atol=1e-5 * np.abs(wide).max())


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", [name for name in ALL if name not in ORDERED])
def test_the_order_of_heads_does_not_matter(name):
    for kind in ("conflicting", "opposed_scaled", "rank_deficient"):
        rows = zoo.matrix(kind, 5, 1.0)
        order = np.random.default_rng(1).permutation(5)
        update = update_of(name, rows)
        np.testing.assert_allclose(update_of(name, rows[order]), update, rtol=1e-6, atol=1e-8 * norm_of(rows, update))


def norm_of(rows, update):
    return max(np.abs(rows).max(), np.abs(update).max()) if update.any() else 1.0


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ALL)
def test_a_head_without_gradient_changes_nothing_for_the_others(name):
    with_idle = np.concatenate([USUAL, np.zeros((1, 31))])
    np.testing.assert_allclose(update_of(name, with_idle), usual_update(name), rtol=1e-6, atol=1e-9)


SIZES_OF_ONE_HEAD = {"NashMTL": "unit", "FairGrad": "own", "CAGrad": 1.4}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ALL)
def test_one_head_is_left_as_it_is_up_to_the_documented_size(name):
    rows = zoo.matrix("random", 1)
    size = SIZES_OF_ONE_HEAD.get(name, 1.0)
    length = np.linalg.norm(rows)
    factor = {"unit": 1 / length, "own": length ** (-4 / 3)}.get(size, size)  # FairGrad: n^2 w = w^(-1/2)
    np.testing.assert_allclose(update_of(name, rows), factor * rows[0], rtol=1e-6)


@pytest.mark.first_cases(9)
@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_scaling_all_gradients_scales_the_update(name):
    np.testing.assert_allclose(update_of(name, 1e3 * USUAL), 1e3 * usual_update(name), rtol=1e-5, atol=1e-7)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", [name for name in ALL if "gradients" not in make(name).uses])
def test_gramian_and_gradients_lead_to_the_same_update(name):
    balancer, other = make(name), make(name)
    for each in (balancer, other):
        each.build((3, None))
    coefficients = balancer.coefficients(tf.constant(USUAL @ USUAL.T)).numpy()
    np.testing.assert_allclose(coefficients @ USUAL, usual_update(name), rtol=1e-9, atol=1e-9)
    cut = other.combine([tf.constant(USUAL[:, :7]), tf.constant(USUAL[:, 7:])])
    update = np.concatenate([part.numpy() for part in cut])
    np.testing.assert_allclose(update, usual_update(name), rtol=1e-9, atol=1e-9)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ALL)
def test_a_non_finite_gradient_spoils_this_update_only(name):
    num_heads = xla_heads(name)  # whose graph is there already
    rows = zoo.matrix("conflicting", num_heads)
    spoilt = rows.copy()
    spoilt[1, 4] = np.nan
    matrix, spoilt = tf.constant(rows, tf.float32), tf.constant(spoilt, tf.float32)
    untouched = traced(name, num_heads)(matrix).numpy()
    call = traced(name, num_heads)
    assert np.isnan(call(spoilt).numpy()).any()
    np.testing.assert_array_equal(call(matrix).numpy(), untouched)
