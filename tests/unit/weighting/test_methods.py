"""What each weighting promises, against NumPy in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from multihead import weighting
from multihead._method import Observation
from tests.helpers.draws import at_steps

pytestmark = pytest.mark.mathematics

ALL = tf.constant([True, True, True])
LOSSES = np.array([0.5, 2.0, 30.0])


def seen(losses, active=ALL, after=None):
    return Observation(tf.constant(0, tf.int64), active, losses, losses_after=after)


def built(method, heads=3):
    method.bind([f"head_{k}" for k in range(heads)])
    method.build((heads,))
    return method


def as_tensor(values):
    return tf.constant(values, tf.float32)


def learn(method, losses, norms=None, steps=1, rate=0.1):
    """Plain gradient descent on what the method learns."""

    @tf.function
    def step():
        gradients = method.gradients(as_tensor(losses), norms, ALL)
        for variable, gradient in zip(method.trainable_variables, gradients):
            variable.assign(tf.convert_to_tensor(variable) - rate * gradient)

    for _ in range(steps):
        step()


def learned(method):
    return np.array([float(tf.convert_to_tensor(v)) for v in method.trainable_variables])


def test_uncertainty_learns_the_losses():
    method = built(weighting.Uncertainty())
    learn(method, LOSSES, steps=3000)
    np.testing.assert_allclose(np.exp(learned(method)), LOSSES, rtol=1e-3)
    weights, total = method.weigh(as_tensor(LOSSES), ALL)
    np.testing.assert_allclose(weights, 1 / (2 * LOSSES), rtol=1e-3)
    np.testing.assert_allclose(total, np.sum(0.5 + 0.5 * np.log(LOSSES)), rtol=1e-3)
    assert weighting.Uncertainty()([0.01, 0.01]).numpy().tolist() == [0.5, 0.5]


def test_imtll_brings_losses_to_one_and_is_twice_uncertainty():
    method, other = built(weighting.IMTLL()), built(weighting.Uncertainty())
    learn(method, LOSSES, steps=3000, rate=0.01)
    weights, total = method.weigh(as_tensor(LOSSES), ALL)
    np.testing.assert_allclose(weights * LOSSES, 1, rtol=1e-3)
    for variable, scale in zip(other.trainable_variables, learned(method)):
        variable.assign(-scale)
    np.testing.assert_allclose(total, 2 * other.weigh(as_tensor(LOSSES), ALL)[1], rtol=1e-6)
    np.testing.assert_allclose(method.regularizer(ALL), -learned(method).sum(), rtol=1e-6)


def test_logarithms_and_geometric_mean():
    np.testing.assert_allclose(weighting.LogLoss()(LOSSES), 1 / LOSSES, rtol=1e-6)
    mean = np.prod(LOSSES) ** (1 / 3)
    weights, total = built(weighting.GeometricMean()).weigh(as_tensor(LOSSES), ALL)
    np.testing.assert_allclose(total, mean, rtol=1e-6)
    np.testing.assert_allclose(weights, mean / (3 * LOSSES), rtol=1e-6)
    other = weighting.GeometricMean()(LOSSES * [1, 1000, 1]) * [1, 1000, 1]  # the gradient grows as the loss does
    np.testing.assert_allclose(other, 10 * weights, rtol=1e-5)  # another size, the same direction
    assert np.isfinite(weighting.LogLoss()([0.0, 1.0])).all()
    assert np.isnan(weighting.LogLoss()([-1.0, 1.0])).any()


def test_dwa_follows_the_formula():
    method = built(weighting.DWA(temperature=2.0))
    rng = np.random.default_rng(0)
    epochs = rng.uniform(0.5, 2, size=(5, 4, 3))
    means = epochs.mean(axis=1)
    for epoch, losses in enumerate(epochs):
        ratios = np.ones(3) if epoch < 2 else means[epoch - 1] / means[epoch - 2]
        expected = 3 * special.softmax(ratios / 2)
        for each in losses:
            np.testing.assert_allclose(method.weigh(as_tensor(each), ALL)[0], expected, rtol=1e-5)
            method.observe(seen(as_tensor(each)), tf.constant(True))
        method.end_epoch()
    counted = built(weighting.DWA(temperature=2.0, updates_per_epoch=4))
    for losses in epochs.reshape(-1, 3):
        counted.observe(seen(as_tensor(losses)), tf.constant(True))
        counted.end_epoch()  # of Keras: says nothing here
    np.testing.assert_allclose(counted.weigh(as_tensor(LOSSES), ALL)[0], method.weigh(as_tensor(LOSSES), ALL)[0], rtol=1e-5)


def test_random_weights():
    method = weighting.RandomLossWeighting(seed=3)
    method(LOSSES, step=0)  # builds
    draws = at_steps(lambda step: method(LOSSES, step=step), 2000)
    np.testing.assert_allclose(draws.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(draws.mean(axis=0), 1 / 3, atol=0.02)
    again = np.array([weighting.RandomLossWeighting(seed=3)(LOSSES, step=u) for u in range(5)])
    np.testing.assert_allclose(again, draws[:5], rtol=1e-6)
    assert not np.allclose(weighting.RandomLossWeighting(seed=4)(LOSSES, step=0), draws[0])
    logits = np.log(draws) - np.log(draws).mean(axis=1, keepdims=True)  # centred normal draws
    np.testing.assert_allclose(logits.std(), np.sqrt(2 / 3), atol=0.03)


@pytest.mark.parametrize("mu", [0.01, 1.0, 50.0])
def test_smooth_tchebycheff_is_a_smooth_maximum(mu):
    method = built(weighting.SmoothTchebycheff(mu, least_losses={"head_1": 1.5}))
    weights, total = method.weigh(as_tensor(LOSSES), ALL)
    above = LOSSES - [0, 1.5, 0]
    np.testing.assert_allclose(weights, special.softmax(above / mu), atol=1e-6)
    np.testing.assert_allclose(total, mu * special.logsumexp(above / mu), rtol=1e-5)
    assert above.max() - 1e-4 <= total <= above.max() + mu * np.log(3) + 1e-4


def gradnorm_by_hand(norms, losses, alpha, rate):
    """Algorithm 1 of the paper with plain gradient descent: weights before each step."""
    weights, first, history = np.ones(3), losses[0], []
    for norm, loss in zip(norms, losses):
        history.append(weights)
        lengths = weights * norm
        ratios = loss / first
        targets = lengths.mean() * (ratios / ratios.mean()) ** alpha
        weights = weights - rate * np.sign(lengths - targets) * norm
        weights = 3 * weights / weights.sum()
    return np.array(history)


def test_gradnorm_is_the_papers_algorithm():
    rng = np.random.default_rng(0)
    norms, losses = rng.uniform(0.5, 3, size=(20, 3)), rng.uniform(0.5, 3, size=(20, 3))
    method = built(weighting.GradNorm(alpha=1.5))
    expected = gradnorm_by_hand(norms, losses, 1.5, 0.02)
    for norm, loss, wanted in zip(norms, losses, expected):
        weights = method.weigh(as_tensor(loss), ALL)[0]
        np.testing.assert_allclose(weights, wanted, rtol=1e-4)
        np.testing.assert_allclose(np.sum(weights), 3, rtol=1e-6)
        gradients = method.gradients(as_tensor(loss), as_tensor(norm), ALL)
        method.observe(seen(as_tensor(loss)), tf.constant(True))
        for variable, gradient in zip(method.trainable_variables, gradients):
            # A step of 0.02 of the weights, which are `scale` times the parts.
            variable.assign(tf.convert_to_tensor(variable) - 0.02 * gradient)


def famo_by_hand(pairs, rate=0.025, decay=1e-3):
    """Algorithm 1 of the paper, with Adam written out: weights of the losses before each step."""
    logits, first, second, history = np.zeros(3), np.zeros(3), np.zeros(3), []
    for step, (before, after) in enumerate(pairs, start=1):
        shares = special.softmax(logits)
        history.append(shares / before / np.sum(shares / before))
        delta = np.log(before) - np.log(after)
        jacobian = np.diag(shares) - np.outer(shares, shares)
        gradient = jacobian @ delta + decay * logits
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        logits = logits - rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return np.array(history)


def test_famo_is_the_papers_algorithm():
    rng = np.random.default_rng(0)
    before = rng.uniform(0.5, 3, size=(30, 3))
    after = before * rng.uniform(0.8, 1.05, size=(30, 3))
    method = built(weighting.FAMO())
    for old, new, wanted in zip(before, after, famo_by_hand(zip(before, after))):
        weights = method.weigh(as_tensor(old), ALL)[0]
        np.testing.assert_allclose(weights, wanted, rtol=1e-3)
        np.testing.assert_allclose(np.sum(weights), 1, rtol=1e-5)
        method.observe(seen(as_tensor(old), after=as_tensor(new)), tf.constant(True))


def test_famo_takes_weight_from_a_head_that_fell_more_and_ignores_what_was_not_made():
    method = built(weighting.FAMO())
    logits = lambda: np.array(tf.convert_to_tensor(method.logits))  # noqa: E731
    before, after = as_tensor([1.0, 1.0, 1.0]), as_tensor([0.5, 0.9, 1.0])
    method.observe(seen(before, after=after), tf.constant(False))
    method.observe(seen(before, after=as_tensor([np.nan, 1, 1])), tf.constant(True))
    np.testing.assert_array_equal(logits(), 0)
    method.observe(seen(before, tf.constant([True, True, False]), after), tf.constant(True))
    assert logits()[0] < 0 < logits()[1] and logits()[2] == 0


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("temperature", [0.05, 1.0, 30.0])
def test_uwso_is_a_softmax_of_the_weights_that_uncertainties_would_end_with(temperature):
    for scale in (1e-6, 1e-2, 1.0, 1e6):
        losses = np.float32(scale * LOSSES).astype(np.float64)
        weights, total = weighting.UWSO(temperature).weigh(as_tensor(losses), ALL)
        expected = special.softmax(1 / ((losses + 1e-8) * temperature))
        np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-30)
        np.testing.assert_allclose(total, np.sum(expected * losses), rtol=1e-4)
    uncertain = built(weighting.Uncertainty())
    learn(uncertain, LOSSES, steps=3000)
    optimal = np.exp(-learned(uncertain))  # 1 / L_k
    logarithms = np.log(np.float64(weighting.UWSO(temperature)(LOSSES)))
    np.testing.assert_allclose(temperature * (logarithms[1:] - logarithms[0]), optimal[1:] - optimal[0], atol=5e-3)
    assert np.isnan(weighting.UWSO(temperature)([1.0, -1.0])).any()  # a loss without a weight: the update is skipped
    assert np.isfinite(weighting.UWSO(temperature)([1.0, 0.0])).all()


def best_groups(values, num_groups):
    """Of all divisions into groups, the means of the one with the smallest squared distances."""
    labels = itertools.product(range(num_groups), repeat=len(values))
    means = [np.array([values[np.equal(label, group)].mean() for group in label]) for label in map(np.array, labels)]
    return min(means, key=lambda mean: ((values - mean) ** 2).sum())


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("num_groups", [1, 2, 3, 6])
def test_go4align_follows_the_paper(num_groups):
    for scale in (1e-6, 1.0, 1e6):
        losses = np.float64(np.float32(scale * np.array([0.5, 2.0, 30.0, 0.4, 25.0])))
        method, risks = built(weighting.GO4Align(num_groups, 0.1 / scale), 5), np.zeros(5)
        present = tf.constant([True] * 5)
        for factor in (1.0, 0.5, 0.7):
            risks += factor * losses
            values = special.softmax(-0.1 / scale * risks) * losses.sum() / (losses + 1e-8 / factor)
            weights, total = method.weigh(as_tensor(factor * losses), present)
            expected = best_groups(values, min(num_groups, 5))
            np.testing.assert_allclose(weights, expected, rtol=1e-3)
            np.testing.assert_allclose(total, factor * losses @ expected, rtol=1e-3)
            method.observe(seen(as_tensor(factor * losses), present), tf.constant(True))
        kept = np.asarray(method.indicators)
        method.observe(seen(as_tensor(losses), present), tf.constant(False))  # a skipped update
        np.testing.assert_array_equal(np.asarray(method.indicators), kept)
    assert np.isnan(weighting.GO4Align()([1.0, -1.0])).any()
    assert np.isfinite(weighting.GO4Align()([1.0, 0.0])).all()


def test_absent_heads_do_not_matter():
    active = tf.constant([True, False, True])
    two = LOSSES[[0, 2]]
    for name in (
        "LogLoss",
        "GeometricMean",
        "SmoothTchebycheff",
        "FAMO",
        "Uncertainty",
        "IMTLL",
        "GradNorm",
        "DWA",
        "UWSO",
        "GO4Align",
    ):
        weights = built(weighting.get(name)).weigh(as_tensor([LOSSES[0], 0, LOSSES[2]]), active)[0].numpy()
        expected = built(weighting.get(name), 2).weigh(as_tensor(two), tf.constant([True, True]))[0]
        np.testing.assert_allclose(weights[[0, 2]], expected, rtol=1e-5, err_msg=name)
        assert weights[1] == 0


@pytest.mark.parametrize("name", ["Uncertainty", "IMTLL", "GradNorm"])
def test_what_is_learned_does_not_depend_on_absent_heads(name):
    active, norms = tf.constant([True, False, True]), as_tensor([1.0, 5.0, 3.0])
    found, objectives = [], []
    for heads, those, mask in ((3, [0, 1, 2], active), (2, [0, 2], tf.constant([True, True]))):
        method = built(weighting.get(name), heads)
        method.observe(seen(as_tensor(LOSSES[those]), active=mask), tf.constant(True))
        later = as_tensor((LOSSES * [0.9, 0.0, 0.4])[those])
        found.append([float(gradient) for gradient in method.gradients(later, tf.gather(norms, those), mask)])
        objectives.append(float(method.objective(later, tf.gather(norms, those), mask)))
    assert found[0][1] == 0
    np.testing.assert_allclose([found[0][0], found[0][2]], found[1], rtol=1e-5)
    assert np.all(np.abs(found[1]) > 1e-3)
    assert objectives[0] == pytest.approx(objectives[1], rel=1e-5)
