"""`NormFloor` against its formula in NumPy float64, its guarantee and its law, over updates and scales."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead import balancing
from tests.helpers import zoo
from tests.helpers.balancing_reference import NormFloor

pytestmark = pytest.mark.mathematics


def after(balancer, updates):
    balancer.build((len(updates[0]), None))
    return [balancer.coefficients(tf.constant(rows @ rows.T)).numpy() for rows in updates]


@pytest.mark.parametrize("overall", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(("floor", "preference"), [(0.0, (1, 1, 1)), (0.2, (1, 1, 1)), (1.0, (1, 2, 0.5)), (0.5, (1, 0, 3))])
def test_the_formula_over_updates_in_which_heads_are_idle(floor, preference, overall):
    updates = [overall * zoo.matrix("random", 3, 6.0, seed=seed) for seed in range(5)]
    updates[0][1] = updates[1][0] = updates[2][0] = updates[3][2] = 0.0
    reference = NormFloor(floor, preference, 0.9)
    expected = [reference(rows @ rows.T) for rows in updates]
    for one, other in zip(after(zoo.preferring(balancing.NormFloor, preference, floor=floor, beta=0.9), updates), expected):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_the_first_update_is_the_plain_sum_and_what_it_measures_serves_the_next():
    rows = zoo.matrix("random", 3, 6.0)
    balancer = balancing.NormFloor(1.0)
    balancer.build((3, None))
    active = tf.constant([True] * 3)
    first = balancer.known(tf.constant(0), active)[1].numpy()
    np.testing.assert_array_equal(first, 1.0)
    np.testing.assert_allclose(balancer(rows).numpy(), rows.sum(axis=0), rtol=1e-6)
    # An update of quite another size changes nothing of its own coefficients.
    known = balancer.known(tf.constant(1), active)[1].numpy()
    lengths = np.linalg.norm(rows, axis=1)
    np.testing.assert_allclose(known * lengths, np.sqrt((lengths**2).mean()), rtol=1e-6)
    for scale in (1e-6, 1.0, 1e6):
        other = balancing.NormFloor(1.0)
        after(other, [rows])
        np.testing.assert_allclose(other(scale * rows[::-1]).numpy(), scale * known @ rows[::-1], rtol=1e-5)


def test_without_a_starved_head_it_is_the_plain_sum_bit_for_bit():
    updates = [zoo.matrix("conflicting", 4, seed=seed) for seed in range(3)]
    for coefficients in after(balancing.NormFloor(0.05), updates) + after(balancing.NormFloor(0.0), updates):
        np.testing.assert_array_equal(coefficients, 1.0)


@pytest.mark.parametrize("floor", [0.05, 0.2, 0.6, 1.0])
def test_the_guarantee_and_the_relative_learning_speed(floor):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        num_heads = int(rng.integers(2, 9))
        norms = 10.0 ** rng.uniform(-6, 6, num_heads)
        rows = np.diag(norms)  # orthogonal
        preference = 10.0 ** rng.uniform(-1, 1, num_heads)
        for p in (np.ones(num_heads), preference):
            _, coefficients = after(zoo.preferring(balancing.NormFloor, p, floor=floor), [rows, rows])
            targets = coefficients * norms
            relative = targets / p
            assert relative.min() >= floor * relative.max() * (1 - 1e-6)
            np.testing.assert_allclose(np.linalg.norm(targets), np.linalg.norm(norms), rtol=1e-6)
            # A head's progress at a step of unit size, over its progress alone, is its row times the direction.
            speed = np.diag(rows) * (coefficients @ rows) / norms / np.linalg.norm(coefficients @ rows)
            np.testing.assert_allclose(speed, targets / np.linalg.norm(targets), rtol=1e-6)
            assert np.isclose((speed**2).sum(), 1)
            if p is not preference:
                assert (speed >= norms / np.linalg.norm(norms) / np.sqrt(1 + (num_heads - 1) * floor**2) * (1 - 1e-6)).all()


def test_an_idle_head_keeps_its_state_and_its_place_in_the_maximum():
    balancer = balancing.NormFloor(0.5)
    _, first = after(balancer, [np.diag([8.0, 1.0])] * 2)
    state = [variable.numpy().copy() for variable in balancer.variables]
    second = balancer.coefficients(tf.constant(np.diag([0.0, 1.0]))).numpy()
    assert second[0] == 0 and second[1] == pytest.approx(first[1], rel=1e-6)
    for variable, before in zip(balancer.variables, state):
        assert variable.numpy()[0] == before[0]


def test_options_are_checked_and_saved():
    for wrong in (-0.1, 1.5, float("nan"), "much"):
        with pytest.raises(ValueError, match="`floor` must be .* Received: "):
            balancing.NormFloor(wrong)
    with pytest.raises(ValueError, match="`beta` must be .* Received: "):
        balancing.NormFloor(beta=1.0)
    made = balancing.NormFloor(0.3, {"a": 2.0}, 0.9)
    copy = balancing.NormFloor.from_config(made.get_config())
    assert (copy.floor, copy.preference, copy.beta) == (0.3, {"a": 2.0}, 0.9)
