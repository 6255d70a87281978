"""A custom training loop trains as `fit` does, and methods that learn from updates learn there, too."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import Head, MultiHeadTrainer, balancing, schedules, weighting
from multihead._method import Method

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = {"a": X[:, :1].copy(), "b": 5 * X[:, 1:2] - 2 * X[:, :1]}


class Counting(balancing.Balancer):
    """The sum, and a count of the updates."""

    def create_state(self, num_heads):
        self.seen = self.add_state("seen", ())

    def coefficients(self, gramian):
        return tf.ones(tf.shape(gramian)[0])

    def observe(self, update, applied):
        self.seen.assign(tf.convert_to_tensor(self.seen) + tf.cast(applied, tf.float32))


class OwnStep(MultiHeadTrainer):
    """A step as the documentation has it."""

    def train_step(self, data):
        pairs = self.compute_gradients(data)
        self.apply_gradients(pairs)
        return {"loss": pairs.loss}


def learning(module, option):
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Method)]
    return {kind.__name__: {option: kind} for kind in kinds if kind.observe is not Method.observe}


METHODS = {
    **learning(weighting, "weighting"),
    **learning(schedules, "head_schedule"),
    "Counting": {"balancer": Counting},
    "Counting every second": {"balancer": Counting, "balance_every": 2},
    "none": {},
    "NormFloor": {"balancer": balancing.NormFloor},
}


def trained(name, way):
    keras.utils.set_random_seed(0)
    kind = OwnStep if way == "own step" else MultiHeadTrainer
    trainer = kind(
        keras.layers.Dense(4, "tanh"), {"a": Head(keras.layers.Dense(1), "mse"), "b": Head(keras.layers.Dense(1), "mae")}
    )
    options = {key: value() if isinstance(value, type) else value for key, value in METHODS[name].items()}
    if name == "DWA":
        options = {"weighting": weighting.DWA(updates_per_epoch=1)}
    trainer.compile(keras.optimizers.SGD(0.05), **options)
    if way in ("fit", "own step"):
        trainer.fit(X, Y, batch_size=8, epochs=4, verbose=0, shuffle=False)
        return trainer
    step = lambda: trainer.apply_gradients(trainer.compute_gradients((X, Y)))  # noqa: E731
    step = step if way == "eager" else tf.function(step)
    for _ in range(4):
        step()
    return trainer


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("way", ("own step", "graph", "eager"))
@pytest.mark.parametrize("name", METHODS)
def test_a_custom_loop_trains_as_fit_does(name, way):
    expected, made = trained(name, "fit"), trained(name, way)
    assert len(METHODS) >= 9 and int(made.update_count) == 4
    pairs = zip(expected.get_weights(), made.get_weights(), strict=True)
    assert all(np.allclose(one, other, rtol=1e-5, atol=1e-5, equal_nan=True) for one, other in pairs)
    method = made.balancer or made.weighting
    if name.startswith("Counting"):
        assert float(method.seen if hasattr(method, "seen") else method.balancer.seen) == 4


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("none", "NormFloor")])
def test_pairs_of_another_origin_teach_a_method_nothing_which_is_said(name):
    trainer = trained(name, "eager")
    pairs = trainer.compute_gradients((X, Y))
    with pytest.warns(UserWarning, match="do not come from `compute_gradients`, so that .* learns nothing from this update"):
        trainer.apply_gradients([(gradient, variable) for gradient, variable in pairs])
    changed = [(2.0 * pairs[0][0], pairs[0][1]), *pairs[1:]]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trainer.apply_gradients(changed)
