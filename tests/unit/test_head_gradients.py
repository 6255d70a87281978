"""`head_gradients`: each head's gradients against a tape written by hand, without training."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing

pytestmark = [pytest.mark.usefixtures("eager_updates"), pytest.mark.first_cases(1)]  # the other cases are thorough

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 5)).astype("float32")
Y = {
    "a": RNG.normal(size=(8, 2)).astype("float32"),
    "b": RNG.integers(0, 3, (8, 1)),
}


def made(**options):
    keras.utils.set_random_seed(0)
    encoder = keras.Sequential(
        [keras.layers.Dense(6, activation="tanh"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    )
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("a", keras.layers.Dense(2), "mse", weight=0.5)
    trainer.add_head("b", keras.layers.Dense(3, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.compile("adam", **options)
    trainer.compute_gradients((X, Y))
    return trainer


def plain(*, is_built=True):
    """A trainer without random numbers, and a function from a batch to the weighted losses and the representation."""
    keras.utils.set_random_seed(0)
    encoder = keras.Sequential([keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(4)])
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("a", keras.layers.Dense(2), "mse", weight=0.5)
    trainer.add_head("b", keras.layers.Dense(3, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.compile("adam", balancer="UPGrad")
    if is_built:
        trainer.compute_gradients((X, Y))

    def losses(representation):
        a = 0.5 * tf.reduce_mean((trainer.heads["a"].module(representation) - Y["a"]) ** 2)
        probabilities = tf.gather(trainer.heads["b"].module(representation), Y["b"][:, 0], batch_dims=1)
        return {"a": a, "b": -tf.reduce_mean(tf.math.log(probabilities))}

    return trainer, losses


def by_hand(at):
    trainer, losses = plain()
    variables = trainer.encoder.trainable_variables
    with tf.GradientTape(persistent=True) as tape:
        representation = trainer.encoder(X, training=True)
        tape.watch(representation)
        found = losses(representation)
    sources = (
        [representation]
        if at == "representation"
        else [getattr(v, "value", v) if keras.__version__ >= "3" else v for v in variables]
    )
    return trainer, {name: tape.gradient(loss, sources) for name, loss in found.items()}


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("at", ["representation", "parameters"])
def test_gradients_norms_and_cosines_are_those_of_a_tape(at, in_graph):
    trainer, expected = by_hand(at)

    def compute():
        found = trainer.head_gradients((X, Y), at=at)
        return dict(found), found.gramian, found.norms, found.cosines

    found, gramian, norms, cosines = tf.function(compute)() if in_graph else compute()
    assert list(found) == ["a", "b"]
    for name, rows in expected.items():
        for one, other in zip(found[name], rows):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    flat = np.stack([np.concatenate([np.ravel(each) for each in rows]) for rows in expected.values()]).astype("float64")
    np.testing.assert_allclose(gramian, flat @ flat.T, rtol=1e-5)
    np.testing.assert_allclose(norms, np.linalg.norm(flat, axis=1), rtol=1e-5)
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    np.testing.assert_allclose(cosines, unit @ unit.T, rtol=1e-5)


@pytest.mark.parametrize("at", ["representation", "parameters"])
def test_nothing_changes_and_the_next_update_is_as_if_it_had_not_been_asked(at):
    asked, other = made(balancer="PCGrad"), made(balancer="PCGrad")
    before = [np.array(each) for each in asked.get_weights()]
    tf.function(lambda: asked.head_gradients((X, Y), at=at))()
    asked.head_gradients((X, Y), at=at)
    for one, two in zip(asked.get_weights(), before):
        np.testing.assert_array_equal(one, two)
    for trainer in (asked, other):
        trainer.train_on_batch(X, Y)
    if keras.__version__ >= "3":  # Keras 2 draws its random numbers from a counter inside of the operation
        for one, two in zip(asked.get_weights(), other.get_weights()):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("at", ["representation", "parameters"])
@pytest.mark.parametrize("name", ["PCGrad", "UPGrad", "MGDA", "Sum", "GradDrop"])
def test_balance_takes_them_as_they_are(at, name):
    trainer, _ = plain()
    found = trainer.head_gradients((X, Y), at=at)
    expected = balancing.balance(list(found.values()), name)
    for one, other in zip(balancing.balance(found, name), expected):
        np.testing.assert_array_equal(one, other)
    in_graph = tf.function(
        lambda x, a, b: balancing.balance(trainer.head_gradients((x, {"a": a, "b": b}), at=at), name),
        input_signature=[tf.TensorSpec([None, 5]), tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1], tf.int64)],
    )
    if name != "GradDrop" or at == "parameters":  # which needs gradients of a known size
        for one, other in zip(in_graph(X, Y["a"], Y["b"]), expected):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_loop_of_ones_own_makes_the_update_of_the_trainer():
    (loop, _), (other, _) = plain(), plain()
    for trainer in (loop, other):
        trainer.compile(keras.optimizers.SGD(0.1), balancer="UPGrad", balance_at="parameters")
    for _ in range(3):
        found = loop.head_gradients((X, Y), at="parameters")
        encoder = balancing.balance(found, "UPGrad")
        loop.apply_gradients([*zip(encoder, loop.encoder.trainable_variables), *found.own])
        other.train_on_batch(X, Y)
    for one, two in zip(loop.get_weights(), other.get_weights()):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("at", ["representation", "parameters"])
def test_the_gramian_is_that_of_all_replicas(at, two_replicas):
    trainer, expected = by_hand(at)
    flat = np.stack([np.concatenate([np.ravel(each) for each in rows]) for rows in expected.values()]).astype("float64")
    strategy = two_replicas
    with strategy.scope():
        spread, _ = plain(is_built=False)
        spread.encoder.build((None, 5))
        for name in ("a", "b"):
            spread.heads[name].module.build((None, 4))
            spread.heads[name].module.set_weights(trainer.heads[name].module.get_weights())
        spread.encoder.set_weights(trainer.encoder.get_weights())
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    batches = strategy.experimental_distribute_dataset(data)

    @tf.function
    def run(batch):
        return strategy.run(lambda each: spread.head_gradients(each, at=at).gramian, args=(batch,))

    for gramian in strategy.experimental_local_results(run(next(iter(batches)))):
        np.testing.assert_allclose(gramian, flat @ flat.T, rtol=1e-4)


def test_errors():
    trainer, _ = plain()
    with pytest.raises(ValueError, match="`at` must be one of 'representation', 'parameters'. Received: at='heads'"):
        trainer.head_gradients((X, Y), at="heads")
    with pytest.raises(ValueError, match="`targets` must name only heads"):
        trainer.head_gradients((X, {"c": Y["a"]}))
