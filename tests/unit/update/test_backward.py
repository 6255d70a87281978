"""One micro-batch against a tape over the whole loss."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead._update.added_losses import gradients_of_weights
from multihead._update.backward import (
    CombinedPass,
    PassPerHead,
    SummedPass,
    micro_batch_gradients,
)
from multihead._update.combined import Combined
from multihead._update.head_gradients import LossFactors
from multihead._update.labels import Labels
from multihead._update.micro_batches import MicroBatch, plus
from multihead._update.network import Network
from multihead._update.representation import RepresentationGradients
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


PER_HEAD = PassPerHead(RepresentationGradients.gramian)


def computed(net, encoder_pass, scale=None, conditional=(False, False), active=ACTIVE):
    labels = Labels(Y, tf.ones([4]))
    factors = LossFactors(tf.where(active, FACTORS, 0.0), lambda: tf.constant(1.0), scale, tf.constant(0, tf.int64))
    return micro_batch_gradients(net, MicroBatch(X, [labels, labels]), factors, active, conditional, encoder_pass)


def plain_sum(by_layer=None):
    """The sum of the heads, by a function that combines them."""

    def combine(gradients, losses):
        return Combined(gradients=gradients.total(), coefficients=tf.ones([2]), gramian=None, at_representation=None)

    step, counts = tf.constant(0, tf.int64), tf.ones([2])
    return CombinedPass(
        combine, LossWeights.of(None, FACTORS, counts=counts, active=ACTIVE, meeting=ACTIVE, step=step), True, by_layer
    )


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
@pytest.mark.parametrize("encoder_pass", [plain_sum(), SummedPass(None), PER_HEAD], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("conditional", [(False, False), (True, True)])
def test_the_sum_of_all_is_the_gradient_of_the_whole_loss(scale, encoder_pass, conditional):
    net = network()
    found = computed(net, encoder_pass, None if scale is None else tf.constant(scale), conditional)
    encoder = list(found.added if encoder_pass is PER_HEAD else found.encoder)
    assert len(found.per_head) == (2 if encoder_pass is PER_HEAD else 0)
    for row in found.per_head:
        encoder = [b if a is None else a if b is None else a + b for a, b in zip(encoder, row)]
    own, (_, of_weights) = found.sums.of_heads(net, None), gradients_of_weights(net, ACTIVE)
    for actual, wanted in zip(plus([*encoder, *own], of_weights.of_losses), by_tape(net), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-6)


def test_an_idle_head_is_not_computed():
    net = network()
    found = computed(net, PER_HEAD, conditional=(True, True), active=tf.constant([True, False]))
    sums = found.sums
    assert float(sums.losses[1]) == 0.0 and not np.any(sums.own[1][0]) and not np.any(sums.added_own[1][0])
    np.testing.assert_array_equal(found.gramian[1], 0)


def test_factors_that_are_known_later_scale_the_heads_losses_alone():
    net = network()
    found = computed(net, PER_HEAD).sums
    once, twice = found.of_heads(net, None), found.of_heads(net, tf.constant([1.0, 2.0]))
    first = len(net.own[0])  # where the second head's variables begin
    np.testing.assert_allclose(twice[first] - once[first], found.own[1][0], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(twice[0], once[0])


def test_shapes_have_the_structure_of_the_result():
    net = network()
    measure = RepresentationGradients.gramian
    for encoder_pass in (SummedPass(None), SummedPass(measure, tf.constant(True)), PassPerHead(None), PER_HEAD):
        found, shapes = computed(net, encoder_pass), encoder_pass.shapes(net)
        assert type(found) is type(shapes)
        flat, wanted = tf.nest.flatten(found), tf.nest.flatten(shapes)
        assert len(flat) == len(wanted)
        for tensor, shape in zip(flat, wanted):
            if tensor is not None and shape is not None:
                assert tensor.shape.as_list() == shape.numpy().tolist()


def test_the_heads_encoder_gradients_are_computed_beside_the_combined_one_only_if_asked():
    net = network()
    apart, both = computed(net, PER_HEAD), computed(net, plain_sum(tf.constant(True)))
    for row, expected in zip(both.per_head, apart.per_head):
        for found, gradient in zip(row, expected):
            np.testing.assert_allclose(tf.convert_to_tensor(found), tf.convert_to_tensor(gradient), rtol=1e-5, atol=1e-7)
    nothing = computed(net, plain_sum(tf.constant(False))).per_head
    assert [len(row) for row in nothing] == [len(row) for row in both.per_head]
    assert all(not np.any(tf.convert_to_tensor(each)) for row in nothing for each in row if each is not None)
    assert computed(net, plain_sum()).per_head == []


def test_a_head_that_trains_nothing_is_refused():
    encoder = keras.layers.Dense(3)
    encoder(X)
    bias = keras.layers.Dense(1)
    bias(X)
    net = Network.of(encoder, [new_head("deaf", lambda hidden: bias(tf.ones_like(hidden)), "mse")])
    with pytest.raises(ValueError, match="Head 'deaf' must have a loss that trains something"):
        micro_batch_gradients(
            net,
            MicroBatch(X, [Labels(Y, tf.ones([4]))]),
            LossFactors(tf.ones([1]), lambda: tf.ones([]), None, tf.constant(0, tf.int64)),
            tf.constant([True]),
            [False],
            PassPerHead(None),
        )
