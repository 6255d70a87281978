"""Each method against its paper: SciPy in float64, closed forms for two heads, and the properties that it claims."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead import balancing
from tests.helpers import balancing_reference as reference
from tests.helpers import zoo
from tests.helpers.zoo import preferring

pytestmark = [pytest.mark.mathematics, pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")]

GOLDEN = np.array([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]])
COUNTS = (2, 3, 5)


def cases(spread, seeds, counts=COUNTS):
    """Rows with a text that names them. A test goes through them in a loop: each start of a test costs a first run."""
    for kind in ("random", "conflicting"):
        for num_heads in counts:
            for seed in seeds:
                yield zoo.matrix(kind, num_heads, spread, seed=seed), f"{kind}, {num_heads} heads, seed {seed}"


def update_of(balancer, rows, **used):
    return balancer(np.asarray(rows, np.float64), **used).numpy()


@functools.cache
def _graph(method, num_heads, options):
    balancer = method(*options)
    balancer.build((num_heads, None))
    return tf.function(lambda rows: balancer(rows), autograph=False)


def update_in_graph(method, rows, *options):
    """The same for a method without state, traced once per number of heads: worth it from about eight updates on."""
    return _graph(method, len(rows), options)(tf.constant(rows, tf.float64)).numpy()


def coefficients_of(balancer, rows, **used):
    rows = np.asarray(rows, np.float64)
    balancer.build((len(rows), None))
    return balancer.coefficients(tf.constant(rows @ rows.T), **used).numpy()


def close(update, expected, rtol=1e-7, case=""):
    atol = rtol * max(np.abs(expected).max(), 1e-300)
    np.testing.assert_allclose(update, expected, rtol=rtol, atol=atol, err_msg=case)


def cosine(one, other):
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


@st.composite
def gradients(draw, min_heads=2, max_heads=6):
    """Well-separated rows of any scales."""
    num_heads = draw(st.integers(min_heads, max_heads))
    spread = draw(st.sampled_from([0.0, 2.0, 6.0]))
    kind = draw(st.sampled_from(["random", "conflicting"]))
    return zoo.matrix(kind, num_heads, spread, 10.0 ** draw(st.integers(-9, 9)), draw(st.integers(0, 10_000)))


few = settings(max_examples=8, deadline=None, derandomize=True)


# ---------------------------------------------------------------------------------------------- scaling: Sum, norms


def test_sum_adds_with_the_preference():
    close(update_of(balancing.Sum(), GOLDEN), [2, 2, 2])
    close(update_of(preferring(balancing.Sum, [0.5, 2.0]), GOLDEN), 0.5 * GOLDEN[0] + 2 * GOLDEN[1])
    by_name = balancing.Sum({"price": 0.0})
    by_name.bind(["reply", "price"])
    close(update_of(by_name, GOLDEN), GOLDEN[0])


@few
@given(gradients())
def test_equal_norms_gives_every_head_the_mean_length(rows):
    parts = coefficients_of(balancing.EqualNorms(), rows)[:, None] * rows
    close(zoo.norms(parts), np.full(len(rows), zoo.norms(rows).mean()))


def test_equal_norms_with_a_preference_shares_the_update_accordingly():
    rows = zoo.matrix("conflicting", 3)
    preferred = balancing.EqualNorms({"b": 2.0})
    preferred.bind(["a", "b", "c"])
    sizes = coefficients_of(preferred, rows) * zoo.norms(rows)
    close(sizes, np.array([0.25, 0.5, 0.25]) * zoo.norms(rows).sum())
    rows[0] = 0.0  # an idle head has no share
    close((coefficients_of(preferred, rows) * zoo.norms(rows))[1:], np.array([2, 1]) / 3 * zoo.norms(rows).sum())
    close(update_of(preferring(balancing.EqualNorms, [3.0]), rows[1:2]), rows[1])


def shares_of(budgets, rows, dtype=np.float64):
    balancer = preferring(balancing.NormBudget, budgets)
    coefficients = balancer.coefficients(tf.constant(rows @ rows.T, dtype)).numpy()
    sizes = coefficients.astype(np.float64) * zoo.norms(rows)
    return sizes / sizes.sum(), coefficients


@few
@given(gradients(), st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5), st.sampled_from([np.float32, np.float64]))
def test_norm_budget_keeps_its_guarantee(rows, budgets, dtype):
    rows = rows / np.abs(rows).max() if dtype == np.float32 else rows
    budgets = [*budgets, *np.ones(len(rows))][: len(rows) - 1] + [1.0]
    shares, coefficients = shares_of(budgets, rows, dtype=dtype)
    assert (coefficients <= 1).all() and (coefficients > 0).all()
    slack = 0.0 if dtype == np.float32 else 1e-12
    for head, budget in enumerate(budgets):
        assert shares[head] <= budget + slack
        if coefficients[head] < 0.999:  # cut no more than needed
            assert shares[head] >= budget * (1 - 1e-5)
    free = [head for head in range(len(rows)) if budgets[head] == 1]
    np.testing.assert_array_equal(coefficients[free], 1)


def test_norm_budget_cuts_a_second_head_that_the_first_cut_brings_over_its_budget():
    rows = np.diag([10.0, 4.0, 1.0])
    shares, coefficients = shares_of([0.4, 0.3, 1.0], rows)
    close(shares, [0.4, 0.3, 0.3])
    close(coefficients, [4 / 30, 1 / 4, 1])


def test_norm_budget_of_all_heads_cuts_no_more_than_needed_and_shares_what_an_idle_head_leaves():
    shares, coefficients = shares_of([0.5, 0.4, 0.3], np.diag([10.0, 1.0, 1.0]))
    close(shares, [0.5, 0.25, 0.25])
    close(coefficients, [0.2, 1, 1])
    shares, coefficients = shares_of([0.5, 0.3, 0.4], np.diag([10.0, 1.0, 0.0]))
    close(shares, [0.625, 0.375, 0])  # 0.5 to 0.3
    close(coefficients, [1 / 6, 1, 0])


def test_meta_balance_follows_the_paper():
    rng = np.random.default_rng(0)
    balancer = balancing.MetaBalance(target=1, relax=0.7, beta=0.9)
    lengths = np.zeros((3, 2))
    balancer.build([(3, 4), (3, 2)])
    for update in range(1, 5):
        tensors = [rng.normal(size=(3, 4)), rng.normal(size=(3, 2)) * [[1e3], [1], [1e-3]]]
        expected = []
        for index, rows in enumerate(tensors):
            lengths[:, index] = 0.9 * lengths[:, index] + 0.1 * zoo.norms(rows)
            scaled = 0.7 * rows * (lengths[1, index] / lengths[:, index])[:, None] + 0.3 * rows
            expected.append(scaled.sum(axis=0))
        for part, wanted in zip(balancer.combine([tf.constant(rows) for rows in tensors]), expected):
            close(part.numpy(), wanted, 1e-5)
        assert update


def test_meta_balance_extremes_strategies_and_late_heads():
    close(update_of(balancing.MetaBalance(relax=0.0), GOLDEN), GOLDEN.sum(axis=0))
    rows = np.diag([2.0, 8.0, 0.5])
    equal = balancing.MetaBalance(relax=1.0, beta=0.0)
    close(np.abs(update_of(equal, rows)), [2, 2, 2])
    close(update_of(balancing.MetaBalance(relax=1.0, strategy="reduce"), rows), [2, 2, 0.5])
    close(update_of(balancing.MetaBalance(relax=1.0, strategy="enlarge"), rows), [2, 8, 2])
    late = balancing.MetaBalance(relax=1.0)
    for _ in range(5):
        late(np.diag([2.0, 0.0]))
    close(update_of(late, np.diag([2.0, 8.0])), [2, 2], 1e-6)  # no bias towards its zero start
    close(update_of(late, np.diag([0.0, 8.0])), [0, 8])  # without a target nothing to adapt to


# --------------------------------------------------------------------------------------------- projections and cones


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("seed", range(2))
def test_upgrad_and_dualproj_equal_scipy(seed):
    for rows, case in cases(2.0, [seed]):
        preference = np.random.default_rng(seed).uniform(0, 2, len(rows))
        close(update_of(balancing.UPGrad(), rows), reference.upgrad(rows), case=case)
        close(update_of(preferring(balancing.UPGrad, preference), rows), reference.upgrad(rows, preference), case=case)
        close(update_of(balancing.DualProj(), rows), reference.dualproj(rows), case=case)
        close(update_of(preferring(balancing.DualProj, preference), rows), reference.dualproj(rows, preference), case=case)


@few
@given(gradients(), st.integers(0, 100))
def test_without_conflict_upgrad_dualproj_and_pcgrad_are_the_sum(rows, update):
    rows = np.abs(rows)
    for balancer in (balancing.UPGrad(), balancing.DualProj()):
        np.testing.assert_array_equal(coefficients_of(balancer, rows), 1.0)
    np.testing.assert_allclose(coefficients_of(balancing.PCGrad(), rows, step=update), 1.0, rtol=1e-12)


@few
@given(gradients(max_heads=3))
def test_each_head_of_upgrad_scales_with_its_gradient(rows):
    factors = 10.0 ** np.random.default_rng(0).uniform(-2, 2, len(rows))
    parts = np.stack([update_of(preferring(balancing.UPGrad, one), rows) for one in np.eye(len(rows))])
    close(update_of(balancing.UPGrad(), rows * factors[:, None]), factors @ parts, 1e-6)


@pytest.mark.parametrize("method", [balancing.UPGrad, balancing.DualProj, balancing.MGDA, balancing.NashMTL])
def test_nothing_is_left_of_exactly_opposed_heads(method):
    assert not update_of(method(), [[1.0, 2.0], [-1.0, -2.0]]).any()
    assert not update_of(method(), [[1.0, 2.0], [-3e5, -6e5]]).any()
    plane = np.array([[1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0]])  # positive multiples of the three sum to 0
    assert not update_of(method(), plane).any()


@pytest.mark.parametrize("kind", ["random", "conflicting"])
@pytest.mark.parametrize("seed", range(2))
def test_pcgrad_and_gradvac_equal_the_papers_on_vectors(kind, seed):
    from multihead.balancing.projections import other_heads_in_random_order

    for num_heads in COUNTS:
        case = f"{num_heads} heads"
        rows = zoo.matrix(kind, num_heads, 1.0, seed=seed)
        orders = other_heads_in_random_order(num_heads, seed, 7).numpy()
        close(update_of(balancing.PCGrad(seed), rows, step=7), reference.pcgrad(rows, orders).sum(axis=0), case=case)
        vaccine, targets = balancing.GradVac(0.3, seed), np.zeros((num_heads, num_heads))
        for update in range(4):
            rows = zoo.matrix(kind, num_heads, 1.0, seed=100 * seed + update)
            orders = other_heads_in_random_order(num_heads, seed, update).numpy()
            results, targets = reference.gradvac(rows, orders, targets, 0.3)
            close(update_of(vaccine, rows, step=update), results.sum(axis=0), 1e-5, case)
            np.testing.assert_allclose(np.asarray(vaccine.targets), targets, atol=1e-6, err_msg=case)


# ----------------------------------------------------------------------------------- MGDA, CAGrad, Aligned-MTL


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("num_heads", COUNTS)
def test_mgda_equals_an_exhaustive_search(num_heads):
    for spread in (0.0, 3.0):
        for rows, case in cases(spread, range(3), [num_heads]):
            close(update_in_graph(balancing.MGDA, rows), reference.mgda(rows), 1e-6, f"{case}, spread {spread}")


@few
@given(gradients())
def test_mgda_gains_at_least_its_squared_length_with_weights_on_the_simplex(rows):
    weights = coefficients_of(balancing.MGDA(), rows)
    assert (weights >= 0).all() and weights.sum() == pytest.approx(1, abs=1e-9)
    update = weights @ rows
    square = update @ update
    # relative to what the product consists of, which is the precision of any float64 sum
    assert (rows @ update >= square - 1e-9 * zoo.norms(rows) * np.sqrt(square)).all()
    assert np.sqrt(square) <= zoo.norms(rows).min() * (1 + 1e-9)


@few
@given(gradients(max_heads=2))
def test_mgda_closed_form_of_two_heads(rows):
    (a, b), (_, c) = rows @ rows.T
    first, second = np.clip(np.array([c - b, a - b]) / (a + c - 2 * b), 0, 1)
    close(update_of(balancing.MGDA(), rows), first * rows[0] + second * rows[1], 1e-6)


@pytest.mark.parametrize("normalization", ["l2", "loss", "loss+"])
def test_mgda_finds_the_weights_of_normalized_gradients(normalization):
    losses = np.array([2.0, 0.1, 0.0, 3.0])  # nothing is divided by a loss of 0
    for rows, case in cases(2.0, [0], [4]):
        lengths = zoo.norms(rows)
        divisors = np.where(losses > 0, losses, 1) if "loss" in normalization else np.ones(4)
        scaled = rows / (divisors * (lengths if normalization != "loss" else 1))[:, None]
        point = reference.mgda(scaled)
        weights = np.linalg.lstsq(np.vstack([scaled.T, np.ones(4)]), np.append(point, 1), rcond=None)[0]
        if np.linalg.matrix_rank(scaled, tol=1e-6) == 4:  # otherwise several weights give the same point
            found = balancing.MGDA(normalization)(rows, losses=losses).numpy()
            close(found, weights @ rows, 1e-6, f"{case}, {normalization}")


PAIRS = [
    ("CAGrad", (2.0,)),
    ("ConicGrad", (0.7,)),
    ("AlignedMTL", (None, "min")),
    ("CAGrad", (0.1,)),
    ("ConicGrad", (0.0,)),
    ("AlignedMTL", (None, "rmse")),
]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("name", "options"), PAIRS)
def test_the_formula_of_two_heads_is_what_the_solver_of_several_finds(name, options):
    """With an idle head the heads are three, and the solver is that of any number."""
    method, rng = getattr(balancing, name), np.random.default_rng(0)
    for number in range(9):
        rows = rng.normal(size=(2, 4))
        if number % 3 == 1:  # from almost equal to almost opposed
            rows[1] = rng.choice([-1, 1]) * rows[0] + 10.0 ** rng.uniform(-3, 0) * rows[1]
        elif number % 3 == 2:
            rows *= 10.0 ** rng.uniform(-3, 3, size=(2, 1))
        several = update_in_graph(method, np.vstack([rows, np.zeros(4)]), *options)
        close(update_in_graph(method, rows, *options), several, 1e-6, f"{name}{options}, number {number}")


@pytest.mark.thorough
def test_cagrad_of_two_heads_that_almost_oppose_each_other_stays_within_its_radius():
    rng = np.random.default_rng(0)
    for number in range(24):
        first, noise = rng.normal(size=(2, 5))
        rows = np.stack([first, -rng.uniform(0.2, 5) * first + 10.0 ** rng.uniform(-7, -1) * noise])
        update, mean = update_in_graph(balancing.CAGrad, rows, 1.0), rows.mean(axis=0)
        assert np.linalg.norm(update - mean) <= (1 + 1e-6) * np.linalg.norm(mean), number
        assert zoo.conflict(update, rows) > -1e-4, number


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("seed", "c"), list(enumerate([0.2, 1.0, 2.0])))
def test_cagrad_equals_scipy_and_reaches_the_radius(seed, c):
    for rows, case in cases(0.5, [seed]):
        update, mean = update_of(balancing.CAGrad(c), rows), rows.mean(axis=0)
        radius = c * np.linalg.norm(mean)
        assert np.linalg.norm(update - mean) == pytest.approx(radius, rel=1e-9), case
        expected = reference.cagrad(rows, c)
        close(update, expected, 2e-4, case)  # SLSQP's precision; what counts is that its least gain is not better
        assert (rows @ update).min() >= (rows @ expected).min() - 1e-7 * radius * zoo.norms(rows).min(), case


def test_with_a_preference_the_mean_is_a_weighted_one():
    weighted = 0.75 * GOLDEN[0] + 0.25 * GOLDEN[1]
    close(update_of(preferring(balancing.CAGrad, [3, 1], c=0.0), GOLDEN), weighted)
    close(update_of(preferring(balancing.ConicGrad, [3, 1], c=1.0), GOLDEN), weighted)


@pytest.mark.parametrize("c", [0.3, 0.7, 0.95])
@pytest.mark.first_cases(1)
def test_conicgrad_equals_scipy_within_its_cone(c):
    of_few_columns = [(rows[:, :2], f"{case}, dependent") for rows, case in cases(0.5, [0], [3])]
    for rows, case in [*cases(0.5, [1, 2], [2, 5]), *of_few_columns]:
        update, mean = update_in_graph(balancing.ConicGrad, rows, c), rows.mean(axis=0)
        assert np.linalg.norm(update) == pytest.approx(np.linalg.norm(mean), rel=1e-9), case
        assert cosine(update, mean) >= c - 1e-9, case
        least, best = (rows @ update).min(), reference.conicgrad_improvement(rows, c)
        assert least >= best - 1e-6 * np.linalg.norm(mean) * zoo.norms(rows).min(), case


@pytest.mark.parametrize(("seed", "scale"), list(enumerate(["min", "median", "rmse"])))
def test_aligned_mtl_equals_a_decomposition_of_the_rows(seed, scale):
    for rows, case in cases(1.0, [seed]):
        preference = np.random.default_rng(len(rows)).uniform(0.1, 2, len(rows))
        expected = reference.aligned_mtl(rows, preference, scale)
        close(update_of(preferring(balancing.AlignedMTL, preference, scale=scale), rows), expected, case=case)


def test_aligned_mtl_of_dependent_rows_aligns_what_is_there():
    rows = zoo.matrix("colinear", 3)
    close(update_of(balancing.AlignedMTL(), rows), reference.aligned_mtl(rows, rank=2), 1e-6)


# ------------------------------------------------------------------------------------------- bargaining, impartiality


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(("seed", "alpha"), list(enumerate([0.5, 1.0, 2.0, 5.0])))
def test_bargaining_equals_scipy(seed, alpha):
    for rows, case in cases(1.0, [seed]):
        weights = coefficients_of(balancing.FairGrad(alpha), rows)
        np.testing.assert_allclose(rows @ rows.T @ weights, weights ** (-1 / alpha), rtol=1e-8, err_msg=case)
        np.testing.assert_allclose(weights, reference.bargain(rows, alpha), rtol=1e-5, err_msg=case)


@pytest.mark.thorough
@few
@given(gradients(max_heads=16), st.sampled_from([0.3, 1.0, 2.0, 10.0]))
def test_bargaining_equation_at_all_scales(rows, alpha):
    weights = coefficients_of(balancing.FairGrad(alpha), rows)
    assert (weights > 0).all()
    gramian = rows @ rows.T
    wanted, rounding = weights ** (-1 / alpha), 1e-13 * np.abs(gramian) @ weights
    assert (np.abs(gramian @ weights - wanted) <= 1e-6 * wanted + rounding).all()


@pytest.mark.thorough
@few
@given(gradients())
def test_nash_size_and_independence_of_scales(rows):
    update = update_of(balancing.NashMTL(), rows)
    assert np.linalg.norm(update) == pytest.approx(np.sqrt(len(rows)), rel=1e-6)
    factors = 10.0 ** np.random.default_rng(0).uniform(-3, 3, len(rows))
    close(update_of(balancing.NashMTL(), rows * factors[:, None]), update, 1e-5)
    close(update_of(balancing.FairGrad(1.0), rows), update)


@few
@given(gradients(max_heads=2))
def test_nash_closed_form_of_two_heads(rows):
    weights = 1 / (zoo.norms(rows) * np.sqrt(1 + cosine(*rows)))
    np.testing.assert_allclose(coefficients_of(balancing.NashMTL(), rows), weights, rtol=1e-6)


def test_imtlg_and_config_equal_a_pseudo_inverse():
    for rows, case in cases(0.5, range(3)):
        close(update_of(balancing.IMTLG(), rows), reference.imtlg(rows), 1e-6, case)
        close(update_of(balancing.ConFIG(), rows), reference.config(rows), 1e-6, case)


@few
@given(gradients())
def test_imtlg_projections_and_config_cosines_are_equal(rows):
    weights = coefficients_of(balancing.IMTLG(), rows)
    assert weights.sum() == pytest.approx(1, abs=1e-6 * np.abs(weights).sum())
    projections = zoo.units(rows) @ (weights @ rows)
    np.testing.assert_allclose(projections, projections.mean(), rtol=1e-4)
    update = update_of(balancing.ConFIG(), rows)
    cosines = zoo.units(rows) @ update / np.linalg.norm(update)
    assert (cosines > 0).all()
    np.testing.assert_allclose(cosines, cosines.mean(), rtol=1e-5)
    assert np.linalg.norm(update) == pytest.approx((rows @ update).sum() / np.linalg.norm(update), rel=1e-6)


@few
@given(gradients(max_heads=2))
def test_imtlg_closed_form_of_two_heads(rows):
    lengths = zoo.norms(rows)
    np.testing.assert_allclose(coefficients_of(balancing.IMTLG(), rows), lengths[::-1] / lengths.sum(), rtol=1e-6)


# ---------------------------------------------------------------------------------------------- methods with a draw


def test_graddrop_keeps_one_sign_per_coordinate_at_its_rate():
    rows = zoo.matrix("random", 3, size=400)
    positive = 0.5 * (1 + rows.sum(axis=0) / np.abs(rows).sum(axis=0))
    pos, neg = np.maximum(rows, 0).sum(axis=0), np.minimum(rows, 0).sum(axis=0)
    balancer, chosen = balancing.GradDrop(seed=3), []
    for update in range(60):
        dropped = update_of(balancer, rows, step=update)
        is_positive = np.isclose(dropped, pos)
        assert (is_positive | np.isclose(dropped, neg)).all()
        chosen.append(is_positive)
    mixed = (positive > 0) & (positive < 1)
    error = np.mean(chosen, axis=0)[mixed] - positive[mixed]
    assert abs(error.mean()) < 0.01 and np.abs(error).max() < 0.35
    np.testing.assert_array_equal(update_of(balancing.GradDrop(seed=3), rows, step=5), update_of(balancer, rows, step=5))
    assert not np.array_equal(update_of(balancer, rows, step=5), update_of(balancer, rows, step=6))


# ---------------------------------------------------------------------------------- methods that follow the training


def noisy(rows, updates, seed=0):
    rng = np.random.default_rng(seed)
    return [rows + 0.3 * rng.normal(size=rows.shape) for _ in range(updates)]


def test_db_mtl_follows_the_paper_and_makes_all_parts_equally_long():
    rows, losses = zoo.matrix("conflicting", 3), np.array([2.0, 0.5, 30.0])
    balancer, running, mass = balancing.DBMTL(0.8, 0.5), np.zeros_like(rows), 0.0
    for count, batch in enumerate(noisy(rows, 4), start=1):
        past = 0.8 / count**0.5
        running, mass = past * running + (1 - past) * batch / losses[:, None], past * mass + 1 - past
        lengths = zoo.norms(running / mass)
        expected = (lengths.max() * zoo.units(running)).sum(axis=0)
        close(update_of(balancer, batch, losses=losses), expected, 1e-5)


def test_moco_follows_the_paper():
    rows = zoo.matrix("conflicting", 3)
    balancer = balancing.MoCo(0.5, 0.5, 0.01, 0.5, rho=0.1)
    running, weights = None, np.full(3, 1 / 3)
    for count, batch in enumerate(noisy(rows, 5), start=1):
        rate, step = 0.5 / count**0.5, 0.01 / count**0.5
        running = batch if running is None else running - rate * (running - batch)
        slope = (running @ running.T + 0.1 * np.eye(3)) @ weights
        weights = reference.project_onto_simplex(weights - step * slope)
        close(update_of(balancer, batch), weights @ running, 1e-4)
    np.testing.assert_allclose(np.asarray(balancer.weights_of_heads), weights, atol=1e-5)
    rows[0] = 0.0  # the others share what they had; that of an idle head stays
    update_of(balancer, rows)
    after = np.asarray(balancer.weights_of_heads)
    np.testing.assert_allclose([after[0], after.sum()], [weights[0], 1.0], atol=1e-5)


def test_excess_mtl_follows_the_paper():
    rows = zoo.matrix("conflicting", 3, 1.0)
    balancer = balancing.ExcessMTL(0.5)
    sums, first, weights = np.zeros_like(rows), None, np.full(3, 1 / 3)
    for batch in noisy(rows, 4):
        sums += batch**2
        risks = (batch**2 / np.sqrt(sums)).sum(axis=1)
        first = risks if first is None else first
        weights = weights * np.exp(0.5 * risks / first)
        weights /= weights.sum()
        close(update_of(balancer, batch), weights @ batch, 1e-5)


@pytest.mark.parametrize("method", [balancing.DBMTL, balancing.MoCo, balancing.ExcessMTL])
def test_an_idle_heads_state_stays(method):
    rows = zoo.matrix("conflicting", 3)
    balancer = method()
    update_of(balancer, rows)
    before = [np.asarray(variable) for variable in balancer.variables]
    rows[1] = 0
    update_of(balancer, rows)
    for old, new in zip(before, balancer.variables):
        if old.shape and len(old) == 3 and not (method is balancing.ExcessMTL and "log_weights" in new.name):
            np.testing.assert_allclose(np.asarray(new)[1], old[1], rtol=1e-6)


# -------------------------------------------------------------------------------------------------------------- chains


def test_a_chain_hands_on_the_scaled_rows():
    rows = zoo.matrix("conflicting", 3, 2.0)
    scaled = zoo.units(rows) * zoo.norms(rows).mean()
    close(update_of(balancing.Chain(balancing.EqualNorms(), balancing.UPGrad()), rows), reference.upgrad(scaled))
    close(update_of(balancing.Chain("EqualNorms", "MGDA"), rows), reference.mgda(scaled), 1e-6)
    close(update_of(balancing.Chain(), rows), rows.sum(axis=0))
    limited = preferring(balancing.NormBudget, [0.2, 1.0, 1.0])
    budget = balancing.Chain(limited, balancing.GradDrop(leak=1.0))
    assert budget.uses == ("gradients", "step")
    close(update_of(budget, rows), update_of(limited, rows))


# ----------------------------------------------------------------------------------------------------- known negatives


def conflicts(update_of):
    """The conflicts of random three-head cases, half of them made to conflict, one after the other."""
    for seed in range(60):
        rows = zoo.matrix("conflicting" if seed % 2 else "random", 3, seed=seed, size=4)
        yield zoo.conflict(update_of(rows), rows)


@pytest.mark.parametrize("method", [balancing.PCGrad, balancing.AlignedMTL, functools.partial(balancing.CAGrad, 0.4)])
def test_methods_that_promise_less_may_oppose_a_head(method):
    """Aligned-MTL opposes an original gradient but no aligned one; CAGrad one if its `c` is below one."""
    assert any(conflict < -0.01 for conflict in conflicts(lambda rows: update_in_graph(method, rows)))
