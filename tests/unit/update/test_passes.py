"""One micro-batch against a tape over the whole loss."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead._ground.tensors import inner_products
from multihead._update.labels import Labels
from multihead._update.micro_batches import MicroBatch, MicroBatches, plus
from multihead._update.network import Network, gradients_of_weights
from multihead._update.passes import HeadsPass
from multihead._update.ways import CombinedFirst, PassPerHead, Summed
from multihead._update.weights import LossWeights
from multihead.heads._named import new_head

X = tf.constant(np.random.default_rng(0).normal(size=(4, 3)), tf.float32)
Y = tf.constant(np.random.default_rng(1).normal(size=(4, 1)), tf.float32)
FACTORS, ACTIVE = tf.constant([0.5, 2.0]), tf.constant([True, True])


class Tied(keras.layers.Layer):
    """Multiplies by the encoder's own kernel, and adds a loss."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.scale = keras.layers.Dense(1)

    def call(self, hidden):
        self.add_loss(0.1 * tf.reduce_mean(hidden**2))
        return self.scale(self.encoder(hidden))


def network():
    keras.utils.set_random_seed(0)
    encoder = keras.layers.Dense(3, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.1))
    tied, plain = Tied(encoder), keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.2))
    for module in (encoder, tied, plain):
        module(X)
    return Network.of(encoder, [new_head("tied", tied, "mse"), new_head("plain", plain, "mse")])


WAYS = [Summed(None), CombinedFirst(None, inner_products), PassPerHead(None, inner_products)]


def weights_of(scale, active, conditional=(False, False)):
    known = {"counts": tf.ones([2]), "examples": tf.constant(4.0), "scale": scale, "step": tf.constant(0, tf.int64)}
    return LossWeights.of(None, FACTORS, active=active, meeting=active, conditional=conditional, **known)


def computed(net, way, scale=None, conditional=(False, False), active=ACTIVE, by_layer=None, parts=1):
    labels = Labels(Y, tf.ones([4]))
    micro_batches = MicroBatches([MicroBatch(X, [labels, labels])], parts)
    return way.gradients(net, micro_batches, weights_of(scale, active, conditional), by_layer)


def by_head(net):
    """For each head, the gradients of its weighted loss for the encoder's variables."""
    labels = Labels(Y, tf.ones([4]))
    batch, weights = MicroBatch(X, [labels, labels]), weights_of(None, ACTIVE)
    return HeadsPass(net, batch, weights, is_repeated=True).by_head()


def by_tape(net):
    """The gradients of the weighted loss sums and the regularisers, the encoder's and the heads' own."""
    with tf.GradientTape(persistent=True) as tape:
        hidden = net.encoder(X)
        losses = [tf.reduce_sum(tf.square(head.module(hidden) - Y)) for head in net.heads]
        kernel = tf.convert_to_tensor(net.variables.encoder[0])
        added = 0.1 * tf.reduce_sum(kernel**2)
        of_heads = [
            0.1 * tf.reduce_mean(hidden**2),
            0.2 * tf.reduce_sum(tf.convert_to_tensor(net.heads[1].module.kernel) ** 2),
        ]
        total = tf.tensordot(FACTORS, tf.stack(losses), 1) + added + tf.add_n(of_heads)
    tensors = [
        *net.encoder_tensors,
        *(v if not hasattr(v, "value") or callable(v.value) else v.value for v in net.variables.heads),
    ]
    return tape.gradient(total, tensors)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("scale", [None, 1024.0])
@pytest.mark.parametrize("way", WAYS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("conditional", [(False, False), (True, True)])
def test_the_sum_of_all_is_the_gradient_of_the_whole_loss(scale, way, conditional):
    net = network()
    sums, _, combined = computed(net, way, None if scale is None else tf.constant(scale), conditional)
    own, (_, of_weights) = sums.of_heads(net, None), gradients_of_weights(net, ACTIVE)
    for actual, wanted in zip(plus([*combined.gradients, *own], of_weights.of_losses), by_tape(net), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]], ids=lambda each: type(each).__name__)
def test_micro_batches_some_of_which_are_empty_add_up(way):
    net = network()
    (sums, _, combined), (_, _, whole) = computed(net, way, parts=6), computed(net, way)
    for actual, wanted in zip(combined.gradients, whole.gradients, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-6)
    own, (_, of_weights) = sums.of_heads(net, None), gradients_of_weights(net, ACTIVE)
    for actual, wanted in zip(plus([*combined.gradients, *own], of_weights.of_losses), by_tape(net), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-6)


def test_an_idle_head_is_not_computed():
    net = network()
    active = tf.constant([True, False])
    sums, _, combined = computed(net, WAYS[2], conditional=(True, True), active=active)
    assert float(sums.losses[1]) == 0.0 and not np.any(sums.own[1][0]) and not np.any(sums.added_own[1][0])
    np.testing.assert_array_equal(combined.gramian[1], 0)


def test_factors_that_are_known_later_scale_the_heads_losses_alone():
    net = network()
    found, _, _ = computed(net, WAYS[2])
    once, twice = found.of_heads(net, None), found.of_heads(net, tf.constant([1.0, 2.0]))
    first = len(net.own[0])  # where the second head's variables begin
    np.testing.assert_allclose(twice[first] - once[first], found.own[1][0], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(twice[0], once[0])


@pytest.mark.parametrize("way", WAYS, ids=lambda each: type(each).__name__)
def test_the_heads_encoder_gradients_are_computed_beside_the_combined_one_only_if_asked(way):
    net = network()
    both = computed(net, way, by_layer=tf.constant(True))[2]
    for row, expected in zip(both.rows, by_head(net), strict=True):
        for found, gradient in zip(row, expected, strict=True):
            np.testing.assert_allclose(tf.convert_to_tensor(found), tf.convert_to_tensor(gradient), rtol=1e-5, atol=1e-7)
    assert len(computed(net, way)[2].rows) == 0
    if not way.per_head:
        nothing = computed(net, way, by_layer=tf.constant(False))[2].rows
        assert [len(row) for row in nothing] == [len(row) for row in both.rows]
        assert all(not np.any(tf.convert_to_tensor(each)) for row in nothing for each in row if each is not None)


def test_a_head_that_trains_nothing_is_refused():
    encoder = keras.layers.Dense(3)
    encoder(X)
    bias = keras.layers.Dense(1)
    bias(X)
    net = Network.of(encoder, [new_head("deaf", lambda hidden: bias(tf.ones_like(hidden)), "mse")])
    batch, weights = MicroBatch(X, [Labels(Y, tf.ones([4]))]), weights_of(None, tf.constant([True]))
    with pytest.raises(ValueError, match="Head 'deaf' must have a loss that trains something"):
        HeadsPass(net, batch, weights._replace(per_element=tf.ones([1])), is_repeated=False)
