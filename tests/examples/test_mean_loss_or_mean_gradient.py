"""Means of means are wrong where mini-batches are ragged; the library's gradients are those of one large batch."""

from __future__ import annotations

import numpy as np
import pytest

from examples import mean_loss_or_mean_gradient as program

pytestmark = [pytest.mark.programs, pytest.mark.usefixtures("eager_updates")]


def first_gradient(points, classes, weights):
    """At zero weights every probability is one half: `sum_i s_i (1/2 - y_i) (x_i, 1) / sum_i s_i`."""
    inputs = np.concatenate([points, np.ones_like(classes)], axis=1).astype("float64")
    return weights @ ((0.5 - classes) * inputs) / weights.sum()


@pytest.mark.parametrize("case", ["equal", "ragged", "weighted"])
def test_weights_after_one_update_are_those_of_the_closed_form(case):
    batches = program.cases(np.random.default_rng(3), 5)[case]
    means = np.stack([first_gradient(*batch) for batch in batches])
    large = first_gradient(*program.joined(batches))
    expected = {way: means.mean(axis=0) for way in ("gradient of mean of mean losses", "mean of the mean gradients")}
    expected |= {"sum of the mean gradients": means.sum(axis=0), "GradientAccumulator with counts": large}
    for way, gather in program.BY_HAND.items():
        found = program.train_by_hand(gather, batches, 1)
        np.testing.assert_allclose(found, -program.RATE * expected[way], rtol=1e-4, atol=1e-6)
    found = program.train_with_library(batches, 1)
    np.testing.assert_allclose(found, -program.RATE * large, rtol=1e-4, atol=1e-6)
    error = np.linalg.norm(means.mean(axis=0) - large) / np.linalg.norm(large)
    assert error < 1e-6 if case == "equal" else error > 0.02


def test_a_summed_policy_gradient_explodes():
    batches = program.blobs(np.random.default_rng(0), [12] * 50, gap=1.0)
    mean, total = (program.play(way, batches, 100, 0.5, np.random.default_rng(0)) for way in ("mean", "sum"))
    assert total[0, 1] / mean[0, 1] >= 16  # sixteen episodes have at least as many steps
    assert total[-10:, 0].mean() < 50 < 100 < mean[-10:, 0].mean()


def test_the_program(tmp_path, capsys):
    assert program.main(["--quick", "--output", str(tmp_path / "new")]) == 0
    output = capsys.readouterr().out
    assert "fit, accumulated" in output and "sum, rate 0.5" in output
    assert (tmp_path / "new" / "mean_loss_or_mean_gradient.png").read_bytes().startswith(b"\x89PNG")
