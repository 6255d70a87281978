"""From the heads' gradients to the encoder's, on numbers written out."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead import balancing, weighting
from multihead._update.backward import (
    CombinedGradients,
    CombinedPass,
    GradientsPerHead,
    PassPerHead,
    SummedGradients,
    SummedPass,
    Sums,
)
from multihead._update.combine import BalanceAtParameters, BalanceAtRepresentation, SumHeads
from multihead._update.representation import RepresentationGradients
from multihead._update.weights import LossWeights, times_factors

ROWS = np.array([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]])
REST = np.array([0.5, 0.0, -0.5])
MGDA = np.array([0.6, 0.4])


class Net:
    """What a combiner reads of a network: one encoder variable of three elements."""

    encoder_tensors = (tf.Variable(tf.zeros([3])),)


def losses(active=(True, True), method=None):
    active, counts = tf.constant(active), tf.constant([2.0, 2.0])
    if method is not None:
        method.bind(["a", "b"])
        method.build((2,))
    step = tf.constant(0, tf.int64)
    weights = LossWeights.of(method, tf.ones([2]), counts=counts, active=active, meeting=active, step=step)
    return weights.weigh(tf.constant([2.0, 16.0]))


def gathered(rows=ROWS, rest=REST):
    tensor = lambda values: tf.constant(values, tf.float32)  # noqa: E731
    return GradientsPerHead(
        sums=sums(),
        added=[tensor(rest)],
        per_head=[[tensor(row)] for row in rows],
        gramian=tf.constant(rows @ rows.T),
    )


def sums():
    return Sums(
        losses=tf.constant([2.0, 16.0]),
        added_loss=tf.constant(0.0),
        own=[[], []],
        added_own=[[], []],
        broken=tf.zeros([2]),
    )


def at_representation():
    return RepresentationGradients([[tf.constant(row, tf.float32)] for row in ROWS])


def test_the_sum_takes_every_head_once_and_measures_what_it_is_told():
    combiner = SumHeads(RepresentationGradients.gramian)
    early = combiner.encoder_pass(losses().given, 3, None)
    assert isinstance(early, SummedPass) and early.measure is RepresentationGradients.gramian
    encoder, gramian = [tf.constant(ROWS.sum(0) + REST)], tf.constant(ROWS @ ROWS.T)
    done = SummedGradients(sums=sums(), encoder=encoder, per_head=[], gramian=gramian)
    for each in (gathered(), done):
        found = combiner.combine(Net(), each, losses())
        np.testing.assert_allclose(found.gradients[0], ROWS.sum(0) + REST)
        np.testing.assert_allclose(found.norms, np.linalg.norm(ROWS, axis=1), rtol=1e-6)
        assert found.coefficients.numpy().tolist() == [1, 1]


def test_weights_of_the_losses_wait_for_the_last_micro_batch():
    combiner, known = SumHeads(RepresentationGradients.gramian), losses(method=weighting.LogLoss())
    assert isinstance(combiner.encoder_pass(known.given, 2, None), PassPerHead)
    assert isinstance(combiner.encoder_pass(known.given, 1, None), CombinedPass)
    factors = np.array([1.0, 1 / 8])  # one over the mean losses
    early = combiner.at_representation(at_representation(), known)
    np.testing.assert_allclose(early.gradients[0], factors @ ROWS, rtol=1e-5)
    np.testing.assert_allclose(times_factors(early.coefficients, known), factors, rtol=1e-5)
    unmeasured = SumHeads().at_representation(at_representation(), known)
    np.testing.assert_allclose(unmeasured.gradients[0], factors @ ROWS, rtol=1e-5)
    found = combiner.combine(Net(), gathered(), known)
    np.testing.assert_allclose(found.gradients[0], factors @ ROWS + REST, rtol=1e-5)
    np.testing.assert_allclose(found.norms, factors * np.linalg.norm(ROWS, axis=1), rtol=1e-5)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("make", [BalanceAtRepresentation, BalanceAtParameters])
def test_balancing_after_the_last_micro_batch_is_the_balancers_own_answer(make):
    combiner = make(balancing.MGDA())
    assert isinstance(combiner.encoder_pass(losses().given, 2, None), PassPerHead)
    found = combiner.combine(Net(), gathered(), losses())
    np.testing.assert_allclose(found.coefficients, MGDA, rtol=1e-6)
    np.testing.assert_allclose(found.gradients[0], MGDA @ ROWS + REST, atol=1e-6)


def test_balancing_before_the_backward_pass_leaves_only_the_reduction():
    combiner = BalanceAtRepresentation(balancing.MGDA())
    assert isinstance(combiner.encoder_pass(losses().given, 1, None), CombinedPass)
    early = combiner.at_representation(at_representation(), losses())
    np.testing.assert_allclose(early.gradients[0], MGDA @ ROWS, atol=1e-6)
    np.testing.assert_allclose(times_factors(early.coefficients, losses()), MGDA, rtol=1e-6)
    encoder = [tf.constant(REST, tf.float32)]
    done = CombinedGradients(sums=sums(), encoder=encoder, per_head=[], losses=losses(), combined=early)
    found = combiner.combine(Net(), done, losses())
    np.testing.assert_allclose(found.gradients[0], REST)  # that is what the backward pass gave
    np.testing.assert_allclose(found.coefficients, MGDA, rtol=1e-6)


def test_methods_that_need_gradients_get_them_weighted_and_describe_the_result():
    combiner = BalanceAtParameters(balancing.MetaBalance(relax=1.0, beta=0.0))
    combiner.balancer.build([(2, 3)])
    found = combiner.combine(Net(), gathered(), losses())
    expected = ROWS[0] + ROWS[1] / np.linalg.norm(ROWS[1]) * np.linalg.norm(ROWS[0])
    np.testing.assert_allclose(found.gradients[0], expected + REST, rtol=1e-5)
    np.testing.assert_allclose(found.coefficients, expected @ ROWS.T / (ROWS**2).sum(1), rtol=1e-5)


@pytest.mark.parametrize("make", [BalanceAtRepresentation, BalanceAtParameters])
def test_idle_heads_have_the_coefficient_zero(make):
    idle = np.array([ROWS[0], np.zeros(3)])
    found = make(balancing.Sum()).combine(Net(), gathered(idle), losses(active=(True, False)))
    assert found.coefficients.numpy().tolist() == [1, 0]
