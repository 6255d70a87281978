"""Weights of heads that are set between updates, and the methods under which weights have no effect."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing
from tests.helpers import tiny

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 3)).astype("float32")
Y = {"a": X.sum(1, keepdims=True), "b": RNG.normal(size=(8, 2)).astype("float32")}


@keras.saving.register_keras_serializable(package="tests")
class Counted(keras.layers.Dense):
    """A dense layer that counts its calls: in a graph, how often it is traced."""

    def __init__(self, units, **options):
        super().__init__(units, **options)
        self.calls = []

    def call(self, inputs):
        self.calls.append("call")
        return super().call(inputs)


def trainer_of(a=1.0, b=1.0, **options):
    keras.utils.set_random_seed(1)
    trainer = MultiHeadTrainer(Counted(3, activation="tanh"))
    trainer.add_head("a", keras.layers.Dense(1), "mse", weight=a)
    trainer.add_head("b", keras.layers.Dense(2), "mse", weight=b)
    trainer.compile(keras.optimizers.SGD(0.1), **options)
    return trainer


def fit(trainer, epochs=1, **options):
    return trainer.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, **options)


class Lower(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.set_weight("a", 1.0 / (1 + epoch))


@pytest.mark.thorough
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_callback_sets_a_weight_without_another_trace(replicas, two_replicas):
    strategy = two_replicas if replicas > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        trainer = trainer_of()
    calls = []
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: calls.append(len(trainer.encoder.calls)))
    fit(trainer, 3, callbacks=[Lower(), note])
    assert calls[0] > 0 and calls == calls[:1] * 3
    by_function = trainer_of(a=lambda step: 1.0 / (1.0 + tf.cast(step // 2, tf.float32)), run_eagerly=True)
    fit(by_function, 3)
    for one, other in zip(tiny.weights_of(trainer), tiny.weights_of(by_function), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert trainer.heads["a"].weight == pytest.approx(1 / 3) and trainer.heads["b"].weight == 1


@pytest.mark.thorough
def test_a_weight_that_was_set_is_saved_and_goes_with_its_head(tmp_path):
    trainer = trainer_of(b=0.7)
    fit(trainer)
    trainer.set_weight("a", 0.3)
    trainer.save(tmp_path / "trainer.keras")
    trainer.save_weights(tmp_path / "of.weights.h5")
    loaded = keras.models.load_model(tmp_path / "trainer.keras")
    assert (loaded.heads["a"].weight, loaded.heads["b"].weight) == (pytest.approx(0.3), pytest.approx(0.7))
    other = trainer_of()
    fit(other)
    other.load_weights(tmp_path / "of.weights.h5")
    assert other.heads["a"].weight == pytest.approx(0.3)
    for each in (trainer, loaded):
        fit(each)
    for one, two in zip(tiny.weights_of(trainer), tiny.weights_of(loaded), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-7)
    trainer.add_head("c", keras.layers.Dense(1), "mse")
    trainer.remove_head("b")
    assert [(name, head.weight) for name, head in trainer.heads.items()] == [("a", pytest.approx(0.3)), ("c", 1.0)]
    assert trainer.get_config()["heads"][0]["weight"] == pytest.approx(0.3)


def test_errors_say_what_cannot_be_set():
    trainer = trainer_of(b=lambda step: 1.0)
    with pytest.raises(ValueError, match="`name` must be one of 'a', 'b'. Received: name='c'"):
        trainer.set_weight("c", 1.0)
    with pytest.raises(ValueError, match="whose weight is a number. Received: name='b', whose weight is a function"):
        trainer.set_weight("b", 1.0)
    for value in (-1, float("nan"), float("inf"), "a"):
        with pytest.raises(ValueError, match="`weight` must be a finite number of at least 0"):
            trainer.set_weight("a", value)
    with pytest.raises(ValueError, match="`value` must be a number. Received"):
        trainer.set_weight("a", lambda step: 1.0)


ROWS = np.array([[1.0, 0.3, -0.4, 0.2], [-0.3, 1.1, 0.5, -0.1], [0.2, -0.6, 0.8, 0.7]])
METHODS = {name: getattr(balancing, name)() for name in balancing.__all__ if name not in ("Balancer", "balance", "get")}
MORE = {
    "FairGrad(1)": balancing.FairGrad(1.0),
    "MetaBalance(relax=1)": balancing.MetaBalance(relax=1.0),
    "Chain(EqualNorms, UPGrad)": balancing.Chain(balancing.EqualNorms(), balancing.UPGrad()),
    "Chain(Sum, UPGrad)": balancing.Chain(balancing.Sum(), balancing.UPGrad()),
}


@pytest.mark.first_cases(18)
@pytest.mark.mathematics
@pytest.mark.parametrize("method", [*METHODS, *MORE])
def test_a_balancer_knows_whether_a_weight_of_1000_changes_the_direction(method):
    balancer = {**METHODS, **MORE}[method]
    directions = []
    for weights in ([1, 1, 1], [1000, 1, 1], [1, 1, 0.001]):
        found = np.asarray(balancer.copy()(ROWS * np.array(weights)[:, None]), "float64")
        directions.append(found / np.linalg.norm(found))
    changed = max(np.abs(direction - directions[0]).max() for direction in directions)
    assert (changed < 1e-4) == balancer.scale_invariant, f"changed by {changed}"


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("options", [{"weighting": "LogLoss"}, {"weighting": "GeometricMean"}, {"balancer": "NashMTL"}, {}])
def test_the_trainer_warns_of_weights_without_effect(options):
    directions = []
    for weight in (1.0, 1000.0):
        if options and weight > 1:
            with pytest.warns(UserWarning, match="do not change the direction of the encoder's update with .*: 'a'. Omit"):
                trainer = trainer_of(a=weight, **options)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # without other weights there is nothing to say
                trainer = trainer_of(a=weight, **options)
        pairs = trainer.compute_gradients((X, Y))
        of_encoder = np.concatenate([np.ravel(gradient) for gradient, _ in pairs[:2]])
        directions.append(of_encoder / np.linalg.norm(of_encoder))
    assert (np.abs(directions[0] - directions[1]).max() < 1e-4) == bool(options)


@pytest.mark.parametrize("run_eagerly", [True, False])
def test_an_update_at_which_a_weight_is_0_does_not_count_in_the_loss_of_its_head(run_eagerly):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 3)).astype("float32"), rng.normal(size=(8, 1)).astype("float32")
    trainer = MultiHeadTrainer(keras.layers.Dense(3))
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.add_head("b", keras.layers.Dense(1), "mse", weight=lambda step: tf.cast(step % 2 == 0, tf.float32))
    trainer.compile(keras.optimizers.SGD(1e-9), run_eagerly=run_eagerly)
    logs = trainer.fit(x, {"a": y, "b": y}, batch_size=4, shuffle=False, verbose=0).history
    error = trainer.predict(x, verbose=0)["b"] - y
    np.testing.assert_allclose(logs["b_loss"], [(error[:4] ** 2).mean()], rtol=1e-5)
