"""Two loops of one's own: actor and critic, and a network that solves a differential equation."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples import actor_critic, physics
from tests.helpers.sources import ROOT

pytestmark = pytest.mark.programs


@pytest.mark.parametrize("name", ["actor_critic", "physics"])
def test_a_loop_has_at_most_80_lines(name):
    assert len((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 80


def test_the_page_shows_all_ways():
    text = (ROOT / "docs" / "howto" / "actor_critic_and_physics.md").read_text(encoding="utf-8")
    ways = [*actor_critic.WAYS, *(f"plain sum, weight {weight:g}" for weight in physics.WEIGHTS), *physics.BALANCERS]
    printed = "".join(re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    shown = [line.partition(": ")[0] for line in printed.splitlines()]
    assert shown == [*ways, *ways[len(actor_critic.WAYS) :]]


def test_the_loss_of_the_policy_is_that_of_its_formula():
    logits, actions, advantages = np.array([[0.5, -1.0], [2.0, 0.0]]), np.array([1, 0]), np.array([3.0, -2.0])
    log = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = -advantages * log[[0, 1], actions] + 0.01 * (np.exp(log) * log).sum(axis=1)
    found = actor_critic.policy_loss(tf.constant(np.stack([actions, advantages], axis=1)), tf.constant(logits))
    np.testing.assert_allclose(found, expected)


@pytest.mark.thorough
def test_agents_play_and_learn(capsys):
    found = actor_critic.main(["--updates", "4", "--seeds", "2"])
    assert list(found) == list(actor_critic.WAYS) and all(part.shape == (2, 4) for part in found.values())
    # Every way begins with the same agent, in the same environments, and an episode of CartPole lasts at least 8 steps.
    assert len({tuple(part[:, 0]) for part in found.values()}) == 1 and min(part.min() for part in found.values()) >= 8
    assert capsys.readouterr().out.count(" ± ") == 4 * len(actor_critic.WAYS)


def test_the_closed_solutions_solve_the_equations():
    class Layer(keras.Model):
        def call(self, x):
            return x - (tf.exp((x - 1) / physics.E) - np.exp(-1 / physics.E)) / (1 - np.exp(-1 / physics.E))

    class Wave(keras.Model):
        def call(self, x):
            return tf.sin(physics.WAVES * x)

    x = np.linspace(0.0, 1.0, 50, dtype="float32")[:, None]
    for equation, solution in (("layer", Layer()), ("helmholtz", Wave())):
        residual, boundary, data = physics.losses(equation, solution, tf.constant(x))
        assert float(residual) < 1e-6 and float(boundary) < 1e-9 and float(data) < 1e-9
        np.testing.assert_allclose(solution(x), physics.SOLUTIONS[equation](x), atol=1e-6)


@pytest.mark.thorough
def test_networks_are_trained_in_all_ways(capsys):
    found = physics.main(["--updates", "3", "--seeds", "1", "--equation", "helmholtz"])
    assert len(found) == len(physics.WEIGHTS) + len(physics.BALANCERS)
    assert all(np.isfinite(errors).all() for errors in found.values())
    assert "plain sum, weight 0.01: " in capsys.readouterr().out


@pytest.mark.thorough
def test_a_weight_between_the_extremes_solves_the_equation():
    errors = {weight: physics.train("layer", 0, 3000, weight=weight) for weight in (1.0, 100.0)}
    assert errors[100.0] < 2 < 20 < errors[1.0]  # percent
