"""What is computed in float64 is exact in float64: losses, weights, counts, and the update that they make."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, clipping
from tests.helpers import tiny

RNG = np.random.default_rng(0)
X = RNG.normal(size=(7, 3))
Y = {"a": RNG.normal(size=(7, 1)), "b": RNG.normal(size=(7, 2))}
Y["b"][RNG.random((7, 2)) < 0.4] = np.nan
SAMPLE = {"a": RNG.uniform(0.1, 2.0, 7)}
# Numbers that float32 can hold, to which Keras 3 may convert arrays.
X, Y, SAMPLE = tf.nest.map_structure(lambda array: array.astype("float32").astype("float64"), (X, Y, SAMPLE))
WEIGHTS = {"a": 0.1, "b": 0.3}
pytestmark = pytest.mark.usefixtures("eager_updates")


@pytest.fixture(params=["floatx", "policies"])
def layer(request):
    """Makes dense layers of float64."""
    if request.param == "policies":
        yield lambda *args, **kwargs: keras.layers.Dense(*args, **kwargs, dtype="float64")
        return
    keras.backend.set_floatx("float64")
    keras.mixed_precision.set_global_policy("float64")
    yield keras.layers.Dense
    keras.backend.set_floatx("float32")
    keras.mixed_precision.set_global_policy("float32")


def made(layer, **options):
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(layer(4, activation="tanh", kernel_regularizer=keras.regularizers.L2(2.0**-7)))
    for name, loss in (("a", "mse"), ("b", "mae")):
        trainer.add_head(name, layer(Y[name].shape[1]), loss, weight=held(WEIGHTS[name]), metrics=["mse"])
    trainer.compile(keras.optimizers.SGD(0.125), **options)
    trainer.compute_gradients((X, Y, SAMPLE))
    return trainer


def held(number):
    """A number as the variables of weights hold it: in the precision that Keras has by default."""
    return number if keras.backend.floatx() == "float64" else float(np.float32(number))


def by_hand(trainer):
    """The losses and the weights after a step of gradient descent, in NumPy."""
    kernel, bias = (np.asarray(each, np.float64) for each in tiny.values(trainer.encoder.variables))
    hidden = np.tanh(X @ kernel + bias)
    at_hidden, losses, new = np.zeros_like(hidden), {}, []
    for name in Y:
        w, c = (np.asarray(each, np.float64) for each in tiny.values(trainer.heads[name].module.variables))
        error = hidden @ w + c - Y[name]
        counts = SAMPLE[name][:, None] if name == "a" else ~np.isnan(Y[name])
        error = np.where(counts > 0, error, 0.0)
        losses[name] = (counts * (error**2 if name == "a" else np.abs(error))).sum() / counts.sum()
        slope = held(WEIGHTS[name]) * counts * (2 * error if name == "a" else np.sign(error)) / counts.sum()
        at_hidden += slope @ w.T
        new += [w - 0.125 * hidden.T @ slope, c - 0.125 * slope.sum(0)]
    inner = at_hidden * (1 - hidden**2)
    regularizer = 2.0**-7 * (kernel**2).sum()
    total = sum(held(WEIGHTS[name]) * losses[name] for name in Y) + regularizer
    return total, losses, [kernel - 0.125 * (X.T @ inner + 2.0**-6 * kernel), bias - 0.125 * inner.sum(0), *new]


OPTIONS = {
    "plain": {"run_eagerly": False},
    "micro-batches": {"micro_batches": 3},
    "a balancer": {"balancer": "Sum"},
    "clipped by a limit that is not reached": {"clip": clipping.ByGlobalNorm(1e6)},
}


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", OPTIONS)
def test_an_update_is_that_of_numpy(name, layer):
    trainer = made(layer, **OPTIONS[name])
    total, losses, expected = by_hand(trainer)
    before = trainer.evaluate(X, Y, sample_weight=SAMPLE, verbose=0, return_dict=True)
    logs = trainer.train_on_batch(X, Y, sample_weight=SAMPLE, return_dict=True)
    for found in (before, logs):
        np.testing.assert_allclose([found["loss"]], [total], rtol=1e-13)
        np.testing.assert_allclose([found[f"{head}_loss"] for head in Y], list(losses.values()), rtol=1e-13)
    after = tiny.values([*trainer.encoder.variables, *(v for head in Y for v in trainer.heads[head].module.variables)])
    for one, other in zip(after, expected, strict=True):
        assert one.dtype == np.float64
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15)
    pairs = trainer.compute_gradients((X, Y, SAMPLE))
    assert pairs.loss.dtype == pairs.losses["a"].dtype == tf.float64


def test_heads_of_both_precisions_train_together(tmp_path):
    encoder = keras.layers.Dense(4)
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("single", keras.layers.Dense(1), "mse")
    trainer.add_head("double", keras.layers.Dense(1, dtype="float64"), "mse")
    trainer.compile(keras.optimizers.SGD(0.1), weighting="Uncertainty", balancer="UPGrad", telemetry="full")
    x, y = X.astype("float32"), {"single": Y["a"], "double": Y["a"]}
    history = trainer.fit(x, y, verbose=0, validation_data=(x, y), epochs=2).history
    assert all(np.isfinite(values).all() for values in history.values())
    trainer.save_weights(tmp_path / "a.weights.h5")
    trainer.load_weights(tmp_path / "a.weights.h5")
    assert np.isfinite(trainer.train_on_batch(x, {"single": Y["a"]}, return_dict=True)["loss"])
