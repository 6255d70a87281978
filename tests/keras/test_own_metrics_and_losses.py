"""Metrics and losses of layers, and of the trainer itself, are logged, reset and counted as those of a Keras model."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import Head, MultiHeadTrainer

layers = keras.layers
X = np.random.default_rng(0).normal(size=(48, 6)).astype("float32")
Y = {"a": X[:, :1], "b": X[:, 1:2]}
VALIDATION = (X[:20] * 2, {name: y[:20] for name, y in Y.items()})
FIT = {"epochs": 2, "batch_size": 16, "shuffle": False, "verbose": 0}


class Measured(layers.Layer):
    """A layer that keeps a metric, and adds a loss."""

    def __init__(self, units, metric):
        super().__init__()
        self.dense, self.kept = layers.Dense(units), keras.metrics.Mean(name=metric)

    def call(self, x):
        outputs = self.dense(x)
        size = tf.reduce_mean(tf.square(outputs))
        self.add_loss(0.1 * size)
        self.kept.update_state(size)
        return outputs


class Nested(layers.Layer):
    """A layer with such a layer inside."""

    def __init__(self, units, metric):
        super().__init__()
        self.inner = Measured(units, metric)

    def call(self, x):
        return self.inner(x)


def modules(encoder, head):
    keras.utils.set_random_seed(0)
    return encoder(8, "in_encoder"), {"a": head(1, "in_head"), "b": layers.Dense(1)}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("encoder", "head", "eagerly"), [(Measured, Nested, True), (Nested, Measured, False)])
def test_metrics_of_layers_are_logged_and_reset_as_in_keras(encoder, head, eagerly):
    module, heads = modules(encoder, head)
    symbol = keras.Input((6,))
    hidden = module(symbol)
    plain = keras.Model(symbol, {name: each(hidden) for name, each in heads.items()})
    plain.compile("sgd", "mse", run_eagerly=True)
    want = plain.fit(X, Y, validation_data=VALIDATION, **FIT).history
    module, heads = modules(encoder, head)
    symbol = keras.Input((6,))
    hidden = module(symbol)
    [each(hidden) for each in heads.values()]  # the same initial values
    trainer = MultiHeadTrainer(module, {name: Head(each, "mse") for name, each in heads.items()})
    trainer.compile("sgd", run_eagerly=eagerly)
    got = trainer.fit(X, Y, validation_data=VALIDATION, **FIT).history
    for name in ("in_encoder", "in_head", "val_in_encoder", "val_in_head", "loss"):
        np.testing.assert_allclose(got[name], want[name], rtol=2e-5)
    expected = dict(zip(trainer.metrics_names, trainer.evaluate(*VALIDATION, verbose=0)))
    assert {"in_encoder", "in_head"} <= set(expected)
    logs = trainer.evaluate(*VALIDATION, verbose=0, return_dict=True)
    assert logs == pytest.approx(expected)
    trainer.reset_metrics()
    assert all(float(metric.count) == 0 for metric in trainer.metrics if metric.name in ("in_encoder", "in_head"))


def test_metrics_of_layers_are_those_of_updates_that_count():
    module, heads = modules(Measured, Measured)
    trainer = MultiHeadTrainer(module, {name: Head(each, "mse", ignore_label=-1) for name, each in heads.items()})
    trainer.compile("sgd", run_eagerly=True)
    x = X.copy()
    x[16:32] = np.inf  # an update that is skipped
    with pytest.warns(RuntimeWarning, match="1 of the epoch's updates was skipped"):
        logs = trainer.fit(x, Y, **{**FIT, "epochs": 1}).history
    assert np.isfinite(logs["in_encoder"]).all() and float(module.kept.count) == 2
    logs = trainer.train_on_batch(X[:4], {"b": Y["b"][:4]}, return_dict=True)  # the head is idle
    assert float(logs["in_head"]) == 0 and float(logs["in_encoder"]) > 0


class Own(MultiHeadTrainer):
    """A trainer with a metric of its own, which its own step updates."""

    def __init__(self, encoder, heads):
        super().__init__(encoder, heads)
        self.batches = keras.metrics.Sum(name="batches")

    def train_step(self, data):
        self.batches.update_state(1.0)
        return {**super().train_step(data), "batches": self.batches.result()}


def test_a_metric_of_the_trainer_is_reset_in_every_epoch():
    module, heads = layers.Dense(4), {"a": layers.Dense(1)}
    trainer = Own(module, {name: Head(each, "mse") for name, each in heads.items()})
    trainer.compile("sgd", run_eagerly=True)
    assert trainer.fit(X, {"a": Y["a"]}, **FIT).history["batches"] == [3.0, 3.0]


def test_losses_added_to_the_trainer_itself():
    encoder = layers.Dense(8)
    trainer = MultiHeadTrainer(encoder, {"a": Head(layers.Dense(1), "mse")})
    trainer.compile(keras.optimizers.SGD(0.1))
    data = (X, {"a": Y["a"]})
    trainer.fit(*data, **{**FIT, "epochs": 1})
    penalty = lambda: 100.0 * tf.reduce_mean(tf.square(tf.convert_to_tensor(encoder.kernel)))  # noqa: E731
    if keras.__version__ >= "3":
        for loss in (penalty, tf.constant(1.0)):
            with pytest.raises(
                ValueError, match=r"^`add_loss` must be called in the `call` of a layer .*Received: .*regulari"
            ):
                trainer.add_loss(loss)
        return
    with pytest.raises(ValueError, match="unless its losses are functions"):
        trainer.add_loss(tf.constant(1.0))
    trainer.add_loss(penalty)  # steps that were traced before are traced again
    logs = trainer.evaluate(*data, verbose=0, return_dict=True)
    assert logs["loss"] - logs["a_loss"] == pytest.approx(float(penalty()), rel=1e-5)
    before = float(penalty())
    history = trainer.fit(*data, **{**FIT, "epochs": 3}).history
    assert float(penalty()) < 0.2 * before and "added_loss" in history


@pytest.mark.first_cases(7)
@pytest.mark.parametrize("where", ["encoder", "head", "trainer"])
@pytest.mark.parametrize("name", ["loss", "a_loss", "b_mae", "a_norm", "skipped_updates", "val_a_loss", "val_loss"])
def test_a_metric_that_a_layer_keeps_hides_no_other_value(name, where):
    metric = {part: name if part == where else "kept" for part in ("encoder", "head", "trainer")}
    heads = {"a": Measured(1, metric["head"]), "b": layers.Dense(1)}
    trainer = MultiHeadTrainer(
        Measured(4, metric["encoder"]), {k: Head(each, "mse", metrics=["mae"]) for k, each in heads.items()}
    )
    trainer.kept = keras.metrics.Mean(name=metric["trainer"])
    trainer.compile("sgd")
    with pytest.raises(ValueError, match=rf"`name` of a metric that a layer keeps.*Received: '{name}'.*Rename the metric"):
        trainer.fit(X, Y, **FIT)
    assert trainer.num_updates == 0


def test_add_metric_is_refused_in_words():
    trainer = MultiHeadTrainer(layers.Dense(2), {"a": Head(layers.Dense(1), "mse")})
    with pytest.raises(
        ValueError, match=r"`add_metric` must not be called on a trainer.*`metrics=\[\.\.\.\]` to `add_head`"
    ):
        trainer.add_metric(keras.metrics.Mean(), name="mean")


class WithResult(MultiHeadTrainer):
    def train_step(self, data):
        super().train_step(data)
        return self.get_metrics_result()

    def test_step(self, data):
        super().test_step(data)
        return self.get_metrics_result()


def test_the_result_of_all_metrics_is_the_logs():
    x = np.linspace(-1, 1, 24, dtype="float32").reshape(8, 3)
    y = {name: (x[:, i] > 0).astype(int) for i, name in enumerate("ab")}
    histories = []
    for kind in (MultiHeadTrainer, WithResult):
        keras.utils.set_random_seed(0)
        trainer = kind(keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4)]))
        for name in y:
            head = keras.layers.Dense(2, activation="softmax")
            trainer.add_head(name, head, "sparse_categorical_crossentropy", metrics=["accuracy"])
        trainer.compile("sgd")
        histories.append(trainer.fit(x, y, batch_size=4, shuffle=False, validation_data=(x, y), verbose=0).history)
        evaluated = trainer.evaluate(x, y, return_dict=True, verbose=0)
        np.testing.assert_equal({name: float(value) for name, value in trainer.get_metrics_result().items()}, evaluated)
    assert histories[0] == histories[1] and "b_accuracy" in histories[1] and "val_a_accuracy" in histories[1]


def test_a_list_of_metrics_has_the_order_of_keras():
    x, y = np.ones((4, 3), "float32"), {"a": np.zeros((4, 1), "float32"), "b": np.ones((4, 1), "float32")}
    inputs = keras.Input((3,))
    features = keras.layers.Dense(2)(inputs)
    model = keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(features) for name in "ab"})
    metrics, weighted = {"a": ["mse", "mae"], "b": ["mae"]}, {"a": ["mape"]}
    model.compile("sgd", {"a": "mse", "b": "mse"}, metrics=metrics, weighted_metrics=weighted)
    expected = model.evaluate(x, y, verbose=0)
    trainer = MultiHeadTrainer.from_model(model)
    trainer.compile("sgd")
    np.testing.assert_allclose(trainer.evaluate(x, y, verbose=0), expected, rtol=1e-6)
