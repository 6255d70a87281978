"""An update of accumulated mini-batches is that of all steps at once, and with it the pole is learnt."""

from __future__ import annotations

import importlib.util

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples import policy_gradient as program
from tests.helpers.tiny import tensor_variable, values

pytestmark = pytest.mark.programs

gymnasium = pytest.importorskip("gymnasium")


@pytest.fixture(scope="module")
def episodes():
    environments = gymnasium.make_vec("CartPole-v1", num_envs=program.ENVIRONMENTS)
    agent = program.Agent(0, keras.optimizers.SGD(0.1))
    yield program.play(agent, environments, np.random.default_rng(0))
    environments.close()


def test_rewards_to_come_are_those_of_the_closed_form(episodes):
    lengths = episodes.lengths
    assert lengths.min() >= 8 and len(set(lengths.tolist())) > 3  # no pole falls sooner
    assert len(episodes.observations) == len(episodes.actions) == lengths.sum()
    expected = [1 - program.DISCOUNT ** np.arange(1, length + 1) for length in lengths]
    np.testing.assert_allclose(np.sort(episodes.to_come), np.sort(np.concatenate(expected)), rtol=1e-5)
    # The last step of an episode has one reward to come: its pole has not fallen yet, and is about to.
    last = np.isclose(episodes.to_come, 1 - program.DISCOUNT)
    assert last.sum() == program.ENVIRONMENTS
    tilt = np.abs(episodes.observations[:, 2])
    assert tilt.max() < 12 * 2 * np.pi / 360 and tilt[last].mean() > 2 * tilt[~last].mean()


def test_mini_batches_make_the_update_of_all_steps(episodes):
    weights = []
    for size in (len(episodes.actions), 37):
        agent = program.Agent(1, keras.optimizers.Adam(0.01))
        before = np.concatenate([np.ravel(value) for value in values(agent.variables)])
        agent.learn(episodes, size)
        assert int(agent.trainer.optimizer.iterations) == 1
        weights.append(np.concatenate([np.ravel(value) for value in values(agent.variables)]))
    assert len(episodes.actions) % 37  # the last one is shorter
    assert np.abs(weights[0] - before).max() > 1e-3
    np.testing.assert_allclose(weights[1], weights[0], rtol=1e-4, atol=2e-6)


def test_the_update_is_that_of_a_tape(episodes):
    agent = program.Agent(1, keras.optimizers.SGD(1.0))
    variables = [tensor_variable(variable) for variable in agent.variables]
    before = [variable.numpy() for variable in variables]
    rows = np.arange(len(episodes.actions))
    with tf.GradientTape() as tape:
        answers = agent.trainer(episodes.observations)
        advantages = episodes.to_come - answers["value"].numpy()[:, 0]
        advantages = (advantages - advantages.mean()) / advantages.std()
        taken = tf.gather_nd(tf.math.log_softmax(answers["policy"]), np.stack([rows, episodes.actions], axis=1))
        loss = -tf.reduce_mean(advantages * taken) + tf.reduce_mean((episodes.to_come - answers["value"][:, 0]) ** 2)
    gradients = tape.gradient(loss, variables)
    agent.learn(episodes, 50)
    for start, gradient, variable in zip(before, gradients, variables):
        np.testing.assert_allclose(start - variable.numpy(), gradient, rtol=1e-3, atol=1e-5)


def test_averages():
    lengths = np.arange(250.0)
    found = program.averages(lengths.tolist())
    assert found[3] == 1.5 and found[249] == lengths[150:].mean() and len(found) == 250


@pytest.mark.thorough
def test_the_pole_is_learnt():
    run = program.train(1, 60)
    assert run.solved and np.mean(run.lengths[-100:]) >= 195 > 3 * np.mean(run.lengths[:100])
    assert run.most_steps > 4 * program.MINI_BATCH  # an update does not fit in one batch
    assert len(run.lengths) == program.ENVIRONMENTS * run.updates


def test_the_program(tmp_path, capsys):
    assert program.main(["--quick", "--output", str(tmp_path)]) == 0
    assert "seed 2" in capsys.readouterr().out
    assert (tmp_path / "policy_gradient.png").read_bytes().startswith(b"\x89PNG")


def test_without_the_environments_it_says_so(capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gymnasium" else find(name))
    assert program.main([]) == 2
    assert capsys.readouterr().err.endswith("needs gymnasium. Install the extra: pip install -e '.[examples]'\n")
