"""Means of means are wrong where mini-batches are ragged; the library's gradients are those of one large batch."""

from __future__ import annotations

import numpy as np
import pytest

from examples import mean_loss_or_mean_gradient as program

pytestmark = [pytest.mark.programs, pytest.mark.usefixtures("eager_updates")]


@pytest.fixture(scope="module")
def data():
    return program.cases(np.random.default_rng(3), 5)


def first_gradient(batch):
    """At zero weights every probability is one half: `sum_i s_i (1/2 - y_i) (x_i, 1) / sum_i s_i`."""
    inputs = np.concatenate([batch.points, np.ones_like(batch.classes)], axis=1).astype("float64")
    return batch.weights @ ((0.5 - batch.classes) * inputs) / batch.weights.sum()


def flat(gradient):
    return np.concatenate([np.ravel(part) for part in gradient])


@pytest.mark.parametrize("case", ["equal", "ragged", "weighted"])
def test_gradients_are_those_of_the_closed_form(data, case):
    batches = data[case]
    means = np.stack([first_gradient(batch) for batch in batches])
    large = first_gradient(program.joined(batches))
    expected = {
        "gradient of the mean of mean losses": means.mean(axis=0),
        "mean of the mean gradients": means.mean(axis=0),
        "sum of the mean gradients": means.sum(axis=0),
        "GradientAccumulator with counts": large,
    }
    assert set(expected) == set(program.BY_HAND)
    model = program.Perceptron()
    for way, values in expected.items():
        np.testing.assert_allclose(flat(program.BY_HAND[way](model, batches)), values, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(flat(program.gradient_of_large_batch(model, batches)), large, rtol=1e-4, atol=1e-6)
    error = np.linalg.norm(means.mean(axis=0) - large) / np.linalg.norm(large)
    assert error < 1e-6 if case == "equal" else error > 0.02


@pytest.mark.parametrize(("case", "optimizer"), [("ragged", "Adam"), ("weighted", "SGD")])
def test_trained_weights(data, case, optimizer):
    found = program.distances(data[case], optimizer, 3, lambda: None)
    losses, gradients = found["gradient of the mean of mean losses"], found["mean of the mean gradients"]
    assert losses == pytest.approx(gradients, rel=1e-3) and losses > 1e-3
    for way in ("GradientAccumulator with counts", *program.LIBRARY):
        assert found[way] < 3e-6, way


def test_ragged_mini_batches_are_ragged(data):
    sizes = {case: {len(batch.weights) for batch in batches} for case, batches in data.items()}
    assert len(sizes["equal"]) == len(sizes["weighted"]) == 1 < len(sizes["ragged"])
    assert np.ptp(program.joined(data["weighted"]).weights) > 0.5 and np.ptp(program.joined(data["ragged"]).weights) == 0


def test_a_summed_policy_gradient_explodes():
    batches = program.blobs(np.random.default_rng(0), [12] * 50, gap=1.0)
    mean, total = (program.play(way, batches, 100, 0.5, np.random.default_rng(0)) for way in ("mean", "sum"))
    assert total.norms[0] / mean.norms[0] >= 16  # sixteen episodes have at least as many steps
    assert total.lengths[-1] > 10 * mean.lengths[-1]
    assert total.returns[-10:].mean() < 50 < 100 < mean.returns[-10:].mean()


def test_the_program(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(program, "OPTIMIZERS", {"SGD": program.OPTIMIZERS["SGD"]})  # with Adam it takes twice as long
    assert program.main(["--quick", "--output", str(tmp_path / "new")]) == 0
    output = capsys.readouterr().out
    assert "fit, gradient_accumulation_steps" in output and "sum, rate 0.5" in output
    assert (tmp_path / "new" / "mean_loss_or_mean_gradient.png").read_bytes().startswith(b"\x89PNG")
