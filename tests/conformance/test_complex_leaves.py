"""Complex numbers in the representation, such as spectra: their gradients train the encoder, and are balanced."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing
from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 5)).astype("float32")
Y = {"a": RNG.normal(size=(12, 1)).astype("float32"), "b": RNG.normal(size=(12, 2)).astype("float32")}


class Encoder(keras.layers.Layer):
    """Leaves of which some are complex."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.dense = kind, keras.layers.Dense(8, activation="tanh")

    def call(self, x):
        h = self.dense(x)
        if self.kind == "spectrum":
            return tf.signal.rfft(h)
        if self.kind == "pair":
            return {"plain": h, "complex": tf.complex(h[:, :4], h[:, 4:] ** 2)}
        return (tf.signal.fft(tf.cast(h, tf.complex64)), tf.signal.rfft(h**2))


class Reader(keras.layers.Layer):
    """Reads sizes, and parts for which the order of real and imaginary parts matters."""

    def __init__(self, units, by):
        super().__init__()
        self.by, self.dense = by, keras.layers.Dense(units)

    def call(self, leaves):
        parts = []
        for leaf in tf.nest.flatten(leaves):
            if not leaf.dtype.is_complex:
                parts.append(leaf)
            elif self.by == "sizes":
                parts.append(tf.math.real(leaf * tf.math.conj(leaf)))
            else:
                parts.append(tf.math.imag(leaf) - 0.3 * tf.math.real(leaf) * tf.math.imag(leaf))
        return self.dense(tf.concat(parts, axis=-1))


def trainer_of(kind, **options):
    keras.utils.set_random_seed(1)
    trainer = MultiHeadTrainer(Encoder(kind))
    trainer.add_head("a", Reader(1, "sizes"), "mse")
    trainer.add_head("b", Reader(2, "parts"), "mse", weight=0.5)
    trainer.compile(keras.optimizers.SGD(0.1), **options)
    return trainer


def losses_of(trainer, leaves):
    predictions = {name: head.module(leaves) for name, head in trainer.heads.items()}
    return {name: tf.reduce_mean((predictions[name] - Y[name]) ** 2) * trainer.heads[name].weight for name in predictions}


def tensors_of(trainer):
    return [tiny.tensor_variable(each) for each in trainer.encoder.trainable_variables]


def by_tape(trainer):
    """Each head's gradients of the encoder by a tape through everything, and at the leaves as NumPy numbers."""
    variables = tensors_of(trainer)
    with tf.GradientTape(persistent=True) as tape:
        leaves = trainer.encoder(X)
        losses = losses_of(trainer, leaves)
    of_encoder = {name: [each.numpy() for each in tape.gradient(losses[name], variables)] for name in losses}
    alone = tf.nest.map_structure(tf.stop_gradient, leaves)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(alone)
        at_leaves, flat = losses_of(trainer, alone), tf.nest.flatten(alone)
    return of_encoder, {name: [each.numpy() for each in tape.gradient(at_leaves[name], flat)] for name in losses}


def parts(leaf):
    """The real and the imaginary part of complex numbers."""
    return [tf.math.real(leaf), tf.math.imag(leaf)] if tf.as_dtype(leaf.dtype).is_complex else [leaf]


def computed(trainer):
    """The gradients of the encoder's variables."""
    found = {id(tiny.tensor_variable(variable)): gradient for gradient, variable in trainer.compute_gradients((X, Y))}
    return [np.asarray(found[id(each)]) for each in tensors_of(trainer)]


@pytest.mark.parametrize(
    ("kind", "options"), [("spectrum", {}), ("pair", {"micro_batches": 3}), ("two", {"run_eagerly": False})]
)
def test_the_encoder_learns_what_a_tape_says(kind, options):
    trainer = trainer_of(kind, **options)
    found = computed(trainer)
    of_encoder, _ = by_tape(trainer)
    for one, *others in zip(found, *of_encoder.values(), strict=True):
        assert np.abs(one).max() > 0
        np.testing.assert_allclose(one, sum(others), atol=1e-5)


@pytest.mark.parametrize("kind", ["spectrum", "pair", "two"])
def test_inner_products_are_the_real_parts_of_hermitian_ones(kind):
    trainer = trainer_of(kind)
    found = trainer.head_gradients((X, Y))
    _, of_leaves = by_tape(trainer)
    pairs = {(i, j): sum(np.vdot(a, b).real for a, b in zip(of_leaves[i], of_leaves[j])) for i in Y for j in Y}
    np.testing.assert_allclose(found.gramian, [[pairs[i, j] for j in Y] for i in Y], rtol=1e-4)
    for name, leaves in of_leaves.items():
        for one, other in zip(found[name], leaves, strict=True):
            other = np.stack(parts(other), axis=-1) if np.iscomplexobj(other) else other
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("name", ["EqualNorms", "UPGrad"])
@pytest.mark.parametrize("kind", ["spectrum", "pair"])
def test_a_balancer_sees_them(kind, name):
    """Its result by hand, from the rows of a tape as real numbers, goes through the encoder by another tape."""
    method = getattr(balancing, name)()
    trainer = trainer_of(kind, balancer=name)
    found = computed(trainer)
    _, of_leaves = by_tape(trainer)
    rows = np.stack([np.concatenate([np.ravel(part) for leaf in of_leaves[head] for part in parts(leaf)]) for head in Y])
    combined = np.asarray(method(tf.constant(rows)))
    variables, place = tensors_of(trainer), 0
    with tf.GradientTape() as tape:
        leaves = tf.nest.flatten(trainer.encoder(X))
        total = 0.0
        for leaf in leaves:
            for part in parts(leaf):
                size = int(tf.size(part))
                total += tf.reduce_sum(part * combined[place : place + size].reshape(part.shape))
                place += size
    for one, other in zip(found, tape.gradient(total, variables), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_training_moves_all_layers_and_idle_heads_stay():
    trainer = trainer_of("two", head_schedule=None)
    y = {**Y, "b": np.full((12, 2), np.nan, "float32")}
    trainer.compute_gradients((X, Y))
    before = {name: tiny.values(head.module.trainable_variables) for name, head in trainer.heads.items()}
    encoder = tiny.values(trainer.encoder.trainable_variables)
    trainer.fit(X, y, verbose=0)
    assert all(np.abs(a - b).max() > 0 for a, b in zip(encoder, tiny.values(trainer.encoder.trainable_variables)))
    for a, b in zip(before["b"], tiny.values(trainer.heads["b"].module.trainable_variables), strict=True):
        np.testing.assert_array_equal(a, b)
