"""`from_model`: what the trainer takes over of a compiled model, and of what its user wrote, against the model itself."""

from __future__ import annotations

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer

layers = keras.layers
KERAS_2 = keras.__version__ < "3"
ROWS = 24
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 5)).astype("float32")
WEIGHTS = RNG.uniform(0.2, 2, ROWS).astype("float32")
CLASSES, NUMBERS = RNG.integers(0, 3, ROWS), X[:, 0]


def two_outputs(units=1, activation=None, *, is_read=False, scale=1.0):
    """Outputs `p`, which `q` reads too or not, and `q`."""
    inputs = keras.Input((5,))
    hidden = layers.Dense(6, "tanh", name="hidden")(inputs)
    kernel = keras.initializers.RandomNormal(stddev=scale, seed=1)
    p = layers.Dense(units, activation, kernel_initializer=kernel, name="p")(hidden)
    q = layers.Dense(1, name="q")(layers.Concatenate()([hidden, p]) if is_read else hidden)
    return keras.Model(inputs, {"p": p, "q": q})


def trainer_of(model, optimizer=None):
    trainer = MultiHeadTrainer.from_model(model)
    trainer.compile(optimizer)
    return trainer


@pytest.mark.parametrize(("units", "activation"), [(1, "sigmoid"), (3, "softmax")])
def test_the_logits_of_an_output_that_another_reads_are_kept(units, activation):
    """Probabilities that are 0 or 1 in single precision: their crossentropy is that of the logits, and so is its gradient."""
    model = two_outputs(units, activation, is_read=True, scale=60.0)
    loss = "binary_crossentropy" if units == 1 else "sparse_categorical_crossentropy"
    model.compile("sgd", loss={"p": loss, "q": "mse"})
    hidden = keras.Model(model.input, model.get_layer("hidden").output).predict(X, verbose=0).astype("float64")
    logits = hidden @ model.get_layer("p").get_weights()[0].astype("float64")
    if units == 1:
        labels = (X[:, 1:2] > 0).astype("float32")
        losses, slopes = np.logaddexp(0, logits) - logits * labels, 1 / (1 + np.exp(-logits)) - labels
    else:
        labels, shifted = CLASSES, logits - logits.max(axis=1, keepdims=True)
        probabilities = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
        losses, slopes = -np.log(np.take_along_axis(probabilities, labels[:, None], 1)), probabilities - np.eye(3)[labels]
    assert losses.max() > 30
    trainer = MultiHeadTrainer.from_model(model)
    trainer.compile(keras.optimizers.SGD(1.0))
    kernel = model.get_layer("p").kernel
    before = np.array(kernel)
    targets = {"p": labels, "q": np.full(ROWS, np.nan, "float32")}
    found = trainer.fit(X, targets, batch_size=ROWS, verbose=0).history["p_loss"][0]
    np.testing.assert_allclose(found, losses.mean(), rtol=1e-4)
    np.testing.assert_allclose(before - np.array(kernel), hidden.T @ slopes / ROWS, rtol=1e-3, atol=1e-4)


FORMS = {
    "two classes": (1, "sigmoid", "binary_crossentropy", (X[:, 1:2] > 0).astype("float32")),
    "class numbers": (3, "softmax", "sparse_categorical_crossentropy", CLASSES),
    "one-hot classes": (3, "softmax", "categorical_crossentropy", np.eye(3, dtype="float32")[CLASSES]),
}


@pytest.mark.parametrize("form", FORMS)
def test_one_metric_with_and_without_weights(form):
    units, activation, loss, labels = FORMS[form]
    model = two_outputs(units, activation)
    both = {"metrics": {"p": ["accuracy", "mae"]}, "weighted_metrics": {"p": ["accuracy", "mae"]}}
    model.compile("sgd", loss={"p": loss, "q": "mse"}, **(both if units == 1 else {k: {"p": ["accuracy"]} for k in both}))
    predictions = model.predict(X, verbose=0)["p"]
    hits = (predictions > 0.5) == labels if units == 1 else predictions.argmax(1) == CLASSES
    targets, weights = {"p": labels, "q": NUMBERS}, {"p": WEIGHTS}
    found = trainer_of(model).evaluate(X, targets, sample_weight=weights, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["p_accuracy"], hits.mean(), rtol=1e-5)
    np.testing.assert_allclose(found["p_weighted_accuracy"], np.average(hits.ravel(), weights=WEIGHTS), rtol=1e-5)
    if units == 1:
        errors = np.abs(predictions - labels).ravel()
        np.testing.assert_allclose(found["p_mae"], errors.mean(), rtol=1e-5)
        np.testing.assert_allclose(found["p_weighted_mae"], np.average(errors, weights=WEIGHTS), rtol=1e-5)


def mean_and_log_variance(y_true, y_pred):
    """A loss whose users rely on the axes in which Keras hands them labels of one axis."""
    y_true = y_true if KERAS_2 else y_true[:, tf.newaxis]
    return tf.reduce_mean(y_pred[:, 1:] + tf.square(y_true - y_pred[:, :1]) * tf.exp(-y_pred[:, 1:]), axis=-1)


def error_of_mean(y_true, y_pred):
    y_true = y_true if KERAS_2 else y_true[:, tf.newaxis]
    return tf.abs(y_true - y_pred[:, :1])


class ErrorOfMean(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(error_of_mean(y_true, y_pred))


@pytest.mark.parametrize("metric", [error_of_mean, ErrorOfMean])
def test_labels_of_one_axis_reach_what_users_wrote_as_keras_hands_them_over(metric):
    model = two_outputs(2)
    metrics = {"p": [metric(name="error_of_mean") if isinstance(metric, type) else metric]}
    model.compile("sgd", loss={"p": mean_and_log_variance, "q": "mse"}, metrics=metrics)
    targets = {"p": NUMBERS, "q": NUMBERS}
    expected = model.evaluate(X, targets, batch_size=ROWS, verbose=0, return_dict=True)
    found = trainer_of(model).evaluate(X, targets, batch_size=ROWS, verbose=0, return_dict=True)
    for name in ("p_loss", "p_error_of_mean"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)


class OfTwo(keras.metrics.Metric):
    """As many public programs write the F1 score: the option reaches other metrics only."""

    def __init__(self, name="of_two", threshold=0.5, **kwargs):
        super().__init__(name=name, **kwargs)
        self.precision = keras.metrics.Precision(thresholds=threshold)

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.precision.update_state(y_true, y_pred)

    def result(self):
        return self.precision.result()

    def reset_state(self):
        self.precision.reset_state()


class Scaled(keras.metrics.MeanSquaredError):
    def __init__(self, scale=1.0, name="scaled", **kwargs):
        super().__init__(name=name, **kwargs)
        self.scale = scale


class Plain(keras.metrics.Mean):
    """Without `dtype` and options, and with a name of its own for the object."""

    def __init__(me, name="plain"):  # noqa: N805
        super().__init__(name=name)

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_pred)


class Needs(Plain):
    def __init__(self, scale, name="needs"):
        super().__init__(name=name)


class Steps(keras.optimizers.SGD):
    def __init__(self, factor=1.0, **kwargs):
        super().__init__(0.1, **kwargs)
        self.factor = factor

    def get_config(self):
        return {"name": self.name}


def with_metric(metric):
    model = two_outputs(1, "sigmoid")
    model.compile("sgd", loss={"p": "mse", "q": "mse"}, metrics={"p": [metric]})
    return model


def test_what_a_copy_would_lose_is_an_error_or_a_warning():
    with pytest.raises(ValueError, match="`metrics` must have all of their options in `get_config`.*Scaled.*lacks 'scale'"):
        MultiHeadTrainer.from_model(with_metric(Scaled(3.0)))
    with pytest.raises(ValueError, match="`metrics` must take their `get_config`.*Received: Needs"):
        MultiHeadTrainer.from_model(with_metric(Needs(3.0)))
    with pytest.warns(UserWarning, match="OfTwo, whose `get_config` lacks 'threshold': the copy has the defaults"):
        MultiHeadTrainer.from_model(with_metric(OfTwo(threshold=0.4)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trainer = MultiHeadTrainer.from_model(with_metric(Plain()))
    trainer.compile("sgd")
    found = trainer.evaluate(X, {"p": NUMBERS, "q": NUMBERS}, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["p_plain"], trainer.predict(X, verbose=0)["p"].mean(), rtol=1e-5)

    model = two_outputs()
    model.compile(Steps(5.0), loss="mse")
    trainer = MultiHeadTrainer.from_model(model)
    with pytest.raises(ValueError, match="`optimizer` must have.*unless one is passed to `compile`.*Steps.*lacks 'factor'"):
        trainer.compile()
    trainer.compile(Steps(5.0))
    model.compile(Steps(), loss="mse")
    MultiHeadTrainer.from_model(model).compile()


def test_a_wrapped_function_and_parts_of_functions_are_metrics_by_their_names():
    wrapped = keras.metrics.MeanMetricWrapper(
        lambda y_true, y_pred: tf.abs(tf.cast(y_true, tf.float32) - y_pred), name="own"
    )
    part = functools.partial(keras.losses.huber, delta=2.0)
    model = two_outputs()
    model.compile("sgd", loss="mse", metrics={"p": [wrapped, "AUC"]})
    found = trainer_of(model).evaluate(X, {"p": X[:, :1] > 0, "q": NUMBERS}, verbose=0, return_dict=True)
    assert {"p_own", "p_auc" if KERAS_2 else "p_AUC"} <= found.keys()
    trainer = MultiHeadTrainer(layers.Dense(3))
    trainer.add_head("a", layers.Dense(1), "mse", metrics=[part])
    trainer.compile("sgd")
    assert "a_huber" in trainer.fit(X, {"a": X[:, :1]}, verbose=0).history


class Halves(layers.Layer):
    """One layer that returns both outputs."""

    def build(self, shape):
        self.dense = layers.Dense(4)
        self.dense.build(shape)

    def call(self, x):
        return tf.split(self.dense(x), 2, axis=-1)

    def compute_output_shape(self, shape):
        return [(shape[0], 2), (shape[0], 2)]


@pytest.mark.parametrize("name", ["a layer of one's own", "states"])
def test_outputs_of_one_call_of_a_layer(name):
    inputs = keras.Input((5,))
    hidden = layers.Dense(6, "tanh")(inputs)
    if name == "states":
        *_, first, second = layers.LSTM(2, return_state=True)(layers.Reshape((3, 2))(hidden))
    else:
        first, second = Halves()(hidden)
    model = keras.Model(inputs, [first, second])
    model.compile(keras.optimizers.SGD(0.1), loss="mse", jit_compile=False)
    before, labels = model.get_weights(), [X[:, :2], X[:, 2:4]]
    model.fit(X, labels, batch_size=ROWS, shuffle=False, verbose=0)
    expected = model.get_weights()
    model.set_weights(before)
    trainer = trainer_of(model)
    trainer.fit(X, dict(zip(trainer.heads, labels)), batch_size=ROWS, shuffle=False, verbose=0)
    for one, other in zip(model.get_weights(), expected):
        np.testing.assert_allclose(one, other, atol=1e-6)


class OwnMetrics(keras.Model):
    def compute_metrics(self, *args, **kwargs):
        return {**super().compute_metrics(*args, **kwargs), "extra": 1.0}


def test_what_a_model_does_beside_its_layers_is_refused():
    plain = two_outputs()
    with pytest.raises(ValueError, match="OwnMetrics.*which has code of its own"):
        MultiHeadTrainer.from_model(OwnMetrics(plain.input, plain.output))
    if KERAS_2:
        plain.add_loss(lambda: tf.reduce_sum(tf.square(plain.get_layer("hidden").kernel)))
        with pytest.raises(
            ValueError, match="`model` must add its losses and metrics in layers.*a function from `model.add_loss`"
        ):
            MultiHeadTrainer.from_model(plain)
