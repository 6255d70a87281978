"""`from_model(model)` and `compile()` keep every option of the model's optimizer, and which metrics are weighted."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer

layers, optimizers = keras.layers, keras.optimizers
X = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
Y = {"a": X[:, :1] * 0, "b": X[:, 1:2] * 0}


class Falling(optimizers.schedules.LearningRateSchedule):
    """A schedule that is not registered, so that Keras could not load it."""

    def __call__(self, step):
        return 0.1 / (1.0 + tf.cast(step, tf.float32))

    def get_config(self):
        return {}


def a_model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    hidden = layers.Dense(8, "tanh", bias_initializer="ones", name="hidden")(inputs)
    return keras.Model(inputs, {name: layers.Dense(1, name=name)(hidden) for name in "ab"})


def without_decay(model, inner=None, **names):
    optimizer = optimizers.AdamW(0.01, weight_decay=5.0)
    optimizer.exclude_from_weight_decay(**names)
    return optimizer


def with_loss_scaling(model):
    kind = getattr(keras.mixed_precision, "LossScaleOptimizer", None) or optimizers.LossScaleOptimizer
    return kind(without_decay(model, var_names=["bias"]))


def changed(model, **values):
    optimizer = optimizers.AdamW(0.01, weight_decay=0.1)
    for name, value in values.items():
        setattr(optimizer, name, value)
    return optimizer


OPTIMIZERS = {
    "excluded by name": lambda model: without_decay(model, var_names=["bias"]),
    "excluded variables": lambda model: without_decay(model, var_list=[model.get_layer("hidden").kernel]),
    "a pattern": lambda model: without_decay(model, var_names=["b.as", "nothing"]),
    "loss scaling": with_loss_scaling,
    "a schedule of one's own": lambda model: optimizers.SGD(Falling(), momentum=0.9),
    "a learning rate set later": lambda model: changed(model, learning_rate=0.03),
    "a decay set later": lambda model: changed(model, weight_decay=3.0),
    "averages": lambda model: optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_trainer_of_a_model_trains_with_the_options_of_its_optimizer(name):
    plain, model = a_model(), a_model()
    plain.compile(OPTIMIZERS[name](plain), "mse", run_eagerly=True)
    model.compile(OPTIMIZERS[name](model), "mse", run_eagerly=True)
    trainer = MultiHeadTrainer.from_model(model)
    for _ in range(2):  # each `compile` makes another optimizer
        trainer.compile(run_eagerly=True)
        assert trainer.optimizer is not model.optimizer and int(trainer.optimizer.iterations) == 0
    first = trainer.optimizer
    options = {"epochs": 3, "batch_size": 32, "shuffle": False, "verbose": 0}
    plain.fit(X, Y, **options)
    trainer.fit(X, Y, **options)
    for expected, found in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5)
    trainer.compile(run_eagerly=True)
    assert trainer.optimizer is not first and int(trainer.optimizer.iterations) == 0


def test_an_optimizer_that_cannot_be_copied():
    class Mine(optimizers.SGD):
        def __init__(self, factor):
            super().__init__(0.1)

    model = a_model()
    model.compile(Mine(2.0), "mse")
    trainer = MultiHeadTrainer.from_model(model)
    with pytest.raises(ValueError, match=r"`optimizer` must be passed to `compile` .*Received: Mine, whose `from_config`"):
        trainer.compile()
    trainer.compile("sgd")


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(
    ("metrics", "weighted"),
    [(["mae"], ["mae"]), (None, ["mae"]), ([keras.metrics.MeanAbsoluteError()], None), (["mae"], None), (["mse"], ["mae"])],
)
def test_metrics_are_unweighted_and_weighted_metrics_weighted(metrics, weighted):
    weights = np.random.default_rng(1).random(32).astype("float32") ** 4
    model = a_model()
    of_a = {name: {"a": each} for name, each in (("metrics", metrics), ("weighted_metrics", weighted)) if each}
    model.compile("sgd", "mse", **of_a)
    trainer = MultiHeadTrainer.from_model(model)
    trainer.compile(run_eagerly=True)
    found = trainer.evaluate(X, Y, sample_weight={"a": weights}, verbose=0, return_dict=True)
    errors = trainer.predict(X, verbose=0)["a"][:, 0]
    values = {"mae": abs(errors), "mse": errors**2, "mean_absolute_error": abs(errors)}
    expected = {keras.metrics.get(each).name if not isinstance(each, str) else each: None for each in metrics or []}
    expected = {name: values[name].mean() for name in expected}
    for name in weighted or []:
        expected[f"weighted_{name}" if name in expected else name] = np.average(values[name], weights=weights)
    assert {name for name in found if name.startswith("a_") and name != "a_loss"} == {f"a_{name}" for name in expected}
    for name, value in expected.items():
        assert found[f"a_{name}"] == pytest.approx(value, rel=1e-4), name
