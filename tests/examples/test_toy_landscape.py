"""The landscape of two losses: its numbers by NumPy, and who gets down from where, as the papers show."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from examples import toy_landscape
from multihead import balancing

pytestmark = pytest.mark.programs

NAMES = {
    name
    for name in balancing.__all__
    if isinstance(getattr(balancing, name), type) and issubclass(getattr(balancing, name), balancing.Balancer)
} - {"Balancer"}


def losses_by_numpy(x, y, scale):
    """Written for one point at a time, half by half."""
    if y > 0:
        factor = (1 - np.exp(-y)) / (1 + np.exp(-y))
        first = np.log(max(abs(-x / 2 - 3.5 + np.tanh(y)), 5e-6)) + 6
        second = np.log(max(abs(-x / 2 + 3.5 - np.tanh(y)), 5e-6)) + 6
    else:
        factor = (1 - np.exp(y)) / (1 + np.exp(y))
        first = (x - 7) ** 2 / 10 + (y + 8) ** 2 / 100 - 20
        second = (x + 7) ** 2 / 10 + (y + 8) ** 2 / 100 - 20
    return np.array([scale * factor * first, factor * second])


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_losses_are_those_of_numpy(scale, monkeypatch):
    monkeypatch.setattr(toy_landscape, "SCALE", scale)
    points = np.random.default_rng(0).uniform(-10, 10, size=(4, 50, 2))
    received = toy_landscape.losses(tf.constant(points)).numpy()
    expected = [losses_by_numpy(x, y, scale) for x, y in points.reshape(-1, 2)]
    np.testing.assert_allclose(received.reshape(-1, 2), expected, rtol=1e-10)


def test_gradients_are_those_of_differences():
    for point in np.random.default_rng(1).uniform(-9, 9, size=(40, 2)):
        values, gradients = toy_landscape.losses_and_gradients(tf.constant(point))
        expected = [
            (losses_by_numpy(*(point + step), 0.1) - losses_by_numpy(*(point - step), 0.1)) / 2e-6
            for step in 1e-6 * np.eye(2)
        ]
        np.testing.assert_allclose(values, losses_by_numpy(*point, 0.1), rtol=1e-10)
        np.testing.assert_allclose(gradients, np.transpose(expected), rtol=1e-4, atol=1e-6)


def test_nothing_is_better_than_the_front_in_both_losses():
    front = toy_landscape.pareto_front(141)
    at_front = np.array([losses_by_numpy(*point, 1.0) for point in front])
    assert (np.diff(at_front[:, 0]) < 0).all() and (np.diff(at_front[:, 1]) > 0).all()
    side = np.linspace(-12, 12, 241)
    grid = np.array([losses_by_numpy(x, y, 1.0) for x in side for y in side])
    for values in at_front:
        assert not (grid < values - 1e-9).all(axis=1).any()
    # What is not on the front is worse than some point of it.
    for point in [(0.0, -7.5), (0.0, -9.5), (7.5, -8.36), (-5.0, 5.0), (5.0, 0.0)]:
        assert toy_landscape.distance_to_front(np.array([point]))[0] > 0.4
        assert (at_front < losses_by_numpy(*point, 1.0)).all(axis=1).any()


def test_every_balancer_of_the_package_is_there_and_does_something():
    found = toy_landscape.balancers()
    assert set(found) == NAMES
    assert next(iter(found)) == "Sum"
    conflicting = np.array([[-0.4, 0.1], [6.0, 1.0]])
    plain = conflicting.sum(axis=0)
    for name, balancer in found.items():
        update = balancer(conflicting, losses=[0.5, 2.0]).numpy()
        assert np.isfinite(update).all()
        assert name == "Sum" or not np.allclose(update, plain), name


def test_a_path_is_that_of_adam_by_numpy():
    steps, rate = 40, 0.05
    (path,) = toy_landscape.follow(balancing.Sum(), steps=steps, rate=rate, starts=[(-7.5, -0.5)])
    point, mean, square, expected = np.array([-7.5, -0.5]), 0.0, 0.0, []
    for count in range(1, steps + 1):
        expected.append(point)
        gradient = np.array(
            [
                (losses_by_numpy(*(point + step), 0.1) - losses_by_numpy(*(point - step), 0.1)).sum() / 2e-6
                for step in 1e-6 * np.eye(2)
            ]
        )
        mean, square = mean + 0.1 * (gradient - mean), square + 0.001 * (gradient**2 - square)
        point = point - rate * (mean / (1 - 0.9**count)) / np.sqrt(square / (1 - 0.999**count))
    np.testing.assert_allclose(path, [*expected, point], atol=1e-5)


@pytest.mark.parametrize("name", ["MoCo", "GradVac"])
def test_each_start_begins_with_a_fresh_state(name):
    balancer = toy_landscape.balancers()[name]
    first, _, again = toy_landscape.follow(balancer, steps=60, starts=[(9.0, 9.0), (-8.5, 5.0), (9.0, 9.0)])
    assert first.shape == (61, 2)
    np.testing.assert_array_equal(first, again)


def test_paths_keep_their_ends_whatever_the_number_of_steps():
    start = [(-7.5, -0.5)]
    (every,) = toy_landscape.follow(balancing.Sum(), steps=350, starts=start)
    (some,) = toy_landscape.follow(balancing.Sum(), steps=351, starts=start)
    assert len(every) == 351 and len(some) == 351
    np.testing.assert_allclose(some[1:175], every[2:350:2], rtol=1e-12)
    (only,) = toy_landscape.follow(balancing.Sum(), steps=1, starts=start)
    np.testing.assert_allclose(only[-1], every[1], rtol=1e-12)


def ends(balancer, **options):
    return np.stack([path[-1] for path in toy_landscape.follow(balancer, **options)])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("name", "steps", "rate"),
    [("NashMTL", 5000, 0.009), ("MGDA", 20000, 0.003), ("IMTLG", 20000, 0.003)],  # NashMTL's steps take the longest
)
def test_reaches_the_front_from_everywhere(name, steps, rate):
    reached = toy_landscape.distance_to_front(ends(balancing.get(name), steps=steps, rate=rate))
    assert (reached < toy_landscape.TOLERANCE).all(), reached


def test_plain_sum_gets_stuck_from_the_upper_right():
    reached = toy_landscape.distance_to_front(ends(balancing.Sum(), steps=25000))
    assert reached[2] > 5  # in the narrow valley of the second loss
    assert (reached[3:] < toy_landscape.TOLERANCE).all()  # and what starts below gets there


@pytest.mark.thorough
def test_cagrad_reaches_the_lowest_mean_where_the_sum_is_stuck(monkeypatch):
    monkeypatch.setattr(toy_landscape, "SCALE", 1.0)
    options = {"steps": 35000, "starts": [(-8.5, 7.5)]}
    assert toy_landscape.distance_to_front(ends(balancing.Sum(), **options))[0] > 5
    (end,) = ends(balancing.CAGrad(), **options)
    front = toy_landscape.pareto_front()
    lowest = front[np.argmin([losses_by_numpy(*point, 1.0).mean() for point in front])]
    np.testing.assert_allclose(end, lowest, atol=0.05)


def test_the_program(tmp_path, capsys):
    assert toy_landscape.main(["--quick", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in toy_landscape.QUICK) and "0/5" in printed
    for name in ("toy_landscape", "landscape/Sum", "landscape/EqualNorms"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
