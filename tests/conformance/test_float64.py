"""What is computed in float64 is exact in float64: losses, weights, counts, and the update that they make."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing, clipping
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


def made(layer, optimizer=None, **options):
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(layer(4, activation="tanh", kernel_regularizer=keras.regularizers.L2(2.0**-7)))
    for name, loss in (("a", "mse"), ("b", "mae")):
        trainer.add_head(name, layer(Y[name].shape[1]), loss, weight=WEIGHTS[name], metrics=["mse"])
    trainer.compile(optimizer or keras.optimizers.SGD(0.125), **options)
    trainer.compute_gradients((X, Y, SAMPLE))
    return trainer


def by_hand(trainer, preference=1.0, rate=1.0, decays=(0.0, 0.0), limit=np.inf):
    """The losses and the weights after a step of gradient descent, in NumPy.

    `preference` is a factor of the heads' gradients in the encoder, `rate` one of the encoder's learning rate, `decays` are
    the decays of the encoder and the heads, `limit` is the largest norm of all gradients together.
    """
    kernel, bias = (np.asarray(each, np.float64) for each in tiny.values(trainer.encoder.variables))
    hidden = np.tanh(X @ kernel + bias)
    at_hidden, losses, old, gradients = np.zeros_like(hidden), {}, [kernel, bias], []
    for name in Y:
        w, c = (np.asarray(each, np.float64) for each in tiny.values(trainer.heads[name].module.variables))
        error = hidden @ w + c - Y[name]
        counts = SAMPLE[name][:, None] if name == "a" else ~np.isnan(Y[name])
        error = np.where(counts > 0, error, 0.0)
        losses[name] = (counts * (error**2 if name == "a" else np.abs(error))).sum() / counts.sum()
        slope = WEIGHTS[name] * counts * (2 * error if name == "a" else np.sign(error)) / counts.sum()
        at_hidden += preference * slope @ w.T
        old, gradients = [*old, w, c], [*gradients, hidden.T @ slope, slope.sum(0)]
    inner = at_hidden * (1 - hidden**2)
    gradients = [X.T @ inner + 2.0**-6 * kernel, inner.sum(0), *gradients]
    regularizer = 2.0**-7 * (kernel**2).sum()
    total = sum(WEIGHTS[name] * losses[name] for name in Y) + regularizer
    scale = min(1.0, limit / np.sqrt(sum((gradient**2).sum() for gradient in gradients)))
    rates, decays = [rate] * 2 + [1.0] * 4, [decays[0]] * 2 + [decays[1]] * 4
    new = [v - 0.125 * r * (d * v + scale * g) for v, g, r, d in zip(old, gradients, rates, decays)]
    return total, losses, new


def third(step):
    return tf.constant(1 / 3, tf.float64)


THIRDS = dict.fromkeys(Y, 1 / 3)
OPTIONS = {
    "plain": ({"run_eagerly": False}, {}),
    "micro-batches": ({"micro_batches": 3}, {}),
    "a balancer": ({"balancer": "Sum"}, {}),
    "clipped by a limit that is not reached": ({"clip": clipping.ByGlobalNorm(1e6)}, {}),
    "clipped": ({"clip": clipping.ByGlobalNorm(0.1)}, {"limit": 0.1}),
    "preferences": ({"balancer": balancing.Sum(THIRDS)}, {"preference": 1 / 3}),
    "preferences, micro-batches": ({"balancer": balancing.Sum(THIRDS), "micro_batches": 3}, {"preference": 1 / 3}),
    "a rate": ({"encoder_learning_rate_multiplier": 1 / 3}, {"rate": 1 / 3}),
    "a rate by step": ({"encoder_learning_rate_multiplier": third}, {"rate": 1 / 3}),
    "decays": (
        {"optimizer": lambda: keras.optimizers.SGD(0.125, weight_decay=0.1), "encoder_weight_decay_multiplier": 1 / 3},
        {"decays": (0.1 / 3, 0.1)},
    ),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ["a rate", *(name for name in OPTIONS if name != "a rate")])
def test_an_update_is_that_of_numpy(name, layer):
    options, by = OPTIONS[name]
    trainer = made(layer, **{key: value() if key == "optimizer" else value for key, value in options.items()})
    total, losses, expected = by_hand(trainer, **by)
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


@pytest.mark.parametrize("options", [{"telemetry": "full"}, {"balancer": "MoCo", "balance_at": "parameters"}])
def test_a_head_that_does_not_train_beside_others(options):
    """In eager mode nothing of such a head is computed, so that nobody knows the dtype of its gradients."""
    trainer = made(lambda *args, **kwargs: keras.layers.Dense(*args, **kwargs, dtype="float64"), run_eagerly=True, **options)
    trainer.train_on_batch(X, {"a": Y["a"], "b": np.full_like(Y["b"], np.nan)}, sample_weight={"b": np.ones(7)})
    assert trainer.num_updates == 1


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
