"""From the heads' gradients to the encoder's, on numbers written out."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead import balancing, weighting
from multihead._ground.tensors import inner_products
from multihead._update import ways
from multihead._update.micro_batches import MicroBatch, MicroBatches
from multihead._update.passes import Sums
from multihead._update.ways import CombinedFirst, PassPerHead, Summed
from multihead._update.weights import LossWeights

ROWS = np.array([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]])
REST = np.array([0.5, 0.0, -0.5])
MGDA = np.array([0.6, 0.4])


class Net:
    """What a way reads of a network: one encoder variable of three elements, and no others."""

    encoder_tensors = (tf.Variable(tf.zeros([3])),)
    heads, own = (None, None), ((), ())

    def own_tensors(self, k):
        return []


class Passed:
    """The passes of a micro-batch through an encoder that is the identity: half of the rows, and of the rest."""

    def __init__(self, network, micro_batch, weights, *, is_repeated):
        self.network, self.heads, self.added_loss = network, (None, None), tf.constant(0.0)
        self.part, self.can_repeat = micro_batch.inputs[0, 0], is_repeated
        self.at_representation = [[self.part * tf.cast(row, tf.float32)] for row in micro_batch.measured]

    def backward(self, of_losses, factors):
        return [of_losses[0] + self.part * tf.constant(REST, tf.float32)]

    def of_added(self):
        return self.backward([tf.zeros([3])], None)

    def by_head(self):
        assert self.can_repeat
        return [list(row) for row in self.at_representation]

    def by_head_if(self, condition):
        return []


class Sum(Sums):
    @classmethod
    def of(cls, passed, *, is_measured):
        losses, nothing = passed.part * tf.constant([2.0, 16.0]), [[], []]
        return Sums(losses=losses, added_loss=tf.constant(0.0), own=nothing, added_own=nothing, broken=tf.zeros([2]))


def combined(monkeypatch, way, parts, active=(True, True), method=None, rows=ROWS):
    """What a way makes of the rows, from so many micro-batches of equal parts of them."""
    if method is not None:
        method.bind(["a", "b"])
        method.build((2,))
    known = {"counts": tf.constant([2.0, 2.0]), "examples": tf.constant(4.0), "scale": None, "conditional": ()}
    active = tf.constant(active)
    weights = LossWeights.of(method, tf.ones([2]), active=active, meeting=active, step=tf.constant(0, tf.int64), **known)
    monkeypatch.setattr(ways, "HeadsPass", Passed)
    monkeypatch.setattr(ways, "Sums", Sum)
    batches = [MicroBatch(tf.fill([1, 1], 1.0 / parts), [], rows) for _ in range(parts)]
    return way.gradients(Net(), MicroBatches(batches, 1), weights, None)


@pytest.mark.parametrize("parts", [1, 2])
def test_the_sum_takes_every_head_once_and_measures_what_it_is_told(monkeypatch, parts):
    for way in (Summed(None, inner_products), PassPerHead(None, inner_products)):
        _, _, found = combined(monkeypatch, way, parts)
        np.testing.assert_allclose(found.gradients[0], ROWS.sum(0) + REST)
        np.testing.assert_allclose(found.norms * parts**0.5, np.linalg.norm(ROWS, axis=1), rtol=1e-6)
        assert found.coefficients.numpy().tolist() == [1, 1]
        assert combined(monkeypatch, type(way)(None, None), parts)[2].norms is None


@pytest.mark.parametrize(("way", "parts"), [(CombinedFirst, 1), (PassPerHead, 1), (PassPerHead, 2)])
def test_weights_of_the_losses_are_found_after_the_last_micro_batch(monkeypatch, way, parts):
    factors = np.array([1.0, 1 / 8])  # one over the mean losses
    for measure in (None, inner_products):
        _, losses, found = combined(monkeypatch, way(None, measure), parts, method=weighting.LogLoss())
        np.testing.assert_allclose(found.gradients[0], factors @ ROWS + REST, rtol=1e-5)
        np.testing.assert_allclose(losses.times_factors(found.coefficients), factors, rtol=1e-5)
    np.testing.assert_allclose(found.norms * parts**0.5, factors * np.linalg.norm(ROWS, axis=1), rtol=1e-5)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "make", [PassPerHead, lambda *given: PassPerHead(*given, at_parameters=True)], ids=["representation", "parameters"]
)
def test_balancing_after_the_last_micro_batch_is_the_balancers_own_answer(monkeypatch, make, parts):
    _, _, found = combined(monkeypatch, make(balancing.MGDA(), inner_products), parts)
    np.testing.assert_allclose(found.coefficients, MGDA, rtol=1e-6)
    np.testing.assert_allclose(found.gradients[0], MGDA @ ROWS + REST, atol=1e-6)


def test_balancing_before_the_backward_pass_is_the_same_answer(monkeypatch):
    _, losses, found = combined(monkeypatch, CombinedFirst(balancing.MGDA(), inner_products), 1)
    np.testing.assert_allclose(found.gradients[0], MGDA @ ROWS + REST, atol=1e-6)
    np.testing.assert_allclose(losses.times_factors(found.coefficients), MGDA, rtol=1e-6)


def test_methods_that_need_gradients_get_them_weighted_and_describe_the_result(monkeypatch):
    balancer = balancing.MetaBalance(relax=1.0, beta=0.0)
    balancer.build([(2, 3)])
    _, _, found = combined(monkeypatch, PassPerHead(balancer, at_parameters=True), 1)
    expected = ROWS[0] + ROWS[1] / np.linalg.norm(ROWS[1]) * np.linalg.norm(ROWS[0])
    np.testing.assert_allclose(found.gradients[0], expected + REST, rtol=1e-5)
    np.testing.assert_allclose(found.coefficients, expected @ ROWS.T / (ROWS**2).sum(1), rtol=1e-5)


@pytest.mark.parametrize("make", [CombinedFirst, PassPerHead, lambda *given: PassPerHead(*given, at_parameters=True)])
def test_idle_heads_have_the_coefficient_zero(monkeypatch, make):
    idle = np.array([ROWS[0], np.zeros(3)])
    _, _, found = combined(monkeypatch, make(balancing.Sum(), inner_products), 1, active=(True, False), rows=idle)
    assert found.coefficients.numpy().tolist() == [1, 0]
