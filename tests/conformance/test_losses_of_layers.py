"""Losses that layers add count as in one `keras.Model` with the same layers, however parts share these layers."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead._ground.keras import KERAS_3
from tests.helpers import tiny
from tests.helpers.cases import pairwise

pytestmark = [pytest.mark.usefixtures("eager_updates"), pytest.mark.first_cases(2)]  # the other cases are thorough

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 6)).astype("float32")
Y = {name: RNG.normal(size=(12, 1)).astype("float32") for name in "ab"}


def l2():
    return keras.regularizers.L2(0.1)


class Adding(keras.layers.Layer):
    """A layer that adds losses itself."""

    def __init__(self, of_inputs=True, of_weights=False):
        super().__init__()
        self.of_inputs, self.of_weights, self.dense = of_inputs, of_weights, keras.layers.Dense(6)

    def build(self, shape):
        self.dense.build(shape)
        if self.of_weights:
            self.add_loss(lambda: tf.reduce_sum(self.dense.kernel**2) / 10)
        self.built = True

    def call(self, inputs):
        outputs = self.dense(inputs)
        if self.of_inputs:
            self.add_loss(tf.reduce_mean(outputs**2))
            self.add_loss(tf.reduce_mean(tf.abs(inputs)))
        return outputs


class Embedded(keras.layers.Layer):
    """Inputs, and the embeddings of their signs."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(2, 1, embeddings_regularizer=l2())

    def build(self, shape):
        self.embedding.build(shape)
        self.built = True

    def call(self, inputs):
        return inputs + self.embedding(tf.cast(inputs > 0, "int64"))[..., 0]


def recurrent():
    cells = [keras.layers.SimpleRNNCell(6, recurrent_regularizer=l2()), keras.layers.GRUCell(6, kernel_regularizer=l2())]
    return keras.Sequential([keras.layers.Reshape((6, 1)), keras.layers.RNN(cells)])


def nested():
    inputs = keras.Input((6,))
    hidden = keras.Sequential([keras.layers.Dense(6, bias_regularizer="l1", bias_initializer="ones"), Adding()])(inputs)
    return keras.Model(inputs, keras.layers.Dense(6, kernel_regularizer=l2())(hidden))


def frozen():
    layer = keras.layers.Dense(6, kernel_regularizer=l2())
    layer.trainable = False
    return layer


OF_WEIGHTS = {
    "kernel": lambda: keras.layers.Dense(6, kernel_regularizer=l2()),
    "embedding": Embedded,
    "recurrent cells": recurrent,
    "frozen": frozen,
}
MEANS = {"add_loss": Adding, "nested": nested}
if not KERAS_3:  # which takes no functions
    OF_WEIGHTS["add_loss of a function"] = lambda: Adding(of_inputs=False, of_weights=True)
    MEANS["add_loss of both"] = lambda: Adding(of_weights=True)
OF_CALLS = {
    "activity": lambda: keras.layers.Dense(6, activity_regularizer=l2()),
}
KINDS = {**OF_WEIGHTS, **MEANS, **OF_CALLS}


def dense(units=6):
    return keras.layers.Dense(units, activation="tanh" if units > 1 else None)


def apart(make):
    return [keras.Sequential([dense(), make()]), *(keras.Sequential([make(), dense(1)]) for _ in Y)]


def layer_of_both_heads(make):
    layer = make()
    return [dense(), *(keras.Sequential([layer, dense(1)]) for _ in Y)]


def one_module(make):
    module = keras.Sequential([make(), dense(1)])
    return [dense(), module, module]


def layer_of_encoder_and_head(make):
    layer = make()
    return [keras.Sequential([dense(), layer]), keras.Sequential([layer, dense(1)]), dense(1)]


def encoder_in_head(make):
    encoder = keras.Sequential([dense(), make()])
    return [encoder, keras.Sequential([encoder, dense(1)]), dense(1)]


def everywhere(make):
    layer = make()
    return [keras.Sequential([dense(), layer]), *(keras.Sequential([layer, dense(1)]) for _ in Y)]


WAYS = [apart, layer_of_both_heads, one_module, layer_of_encoder_and_head, encoder_in_head, everywhere]


def whole(encoder, *heads):
    """One Keras model of an encoder and heads, all built."""
    inputs = keras.Input((6,))
    hidden = encoder(inputs)
    return keras.Model(inputs, {name: module(hidden) for name, module in zip("ab", heads)})


def loss_of(model, labels, training):
    outputs = model(X, training=training)
    errors = [tf.reduce_mean((outputs[name] - labels[name]) ** 2) for name in labels]
    return tf.add_n([*errors, *model.losses])


def as_in_keras(model, labels, rate=0.1):
    """The evaluated loss, the training loss and, after one step of gradient descent, the weights; the model is as before."""
    before = tiny.values(model.variables)
    evaluated = loss_of(model, labels, training=False)
    with tf.GradientTape() as tape:
        loss = loss_of(model, labels, training=True)
    variables = model.trainable_variables
    for variable, gradient in zip(variables, tape.gradient(loss, [v.value if KERAS_3 else v for v in variables])):
        if gradient is not None:
            variable.assign_sub(rate * tf.convert_to_tensor(gradient))
    after = tiny.values(model.variables)
    for variable, value in zip(model.variables, before):
        variable.assign(value)
    return float(evaluated), float(loss), after


def trainer_of(encoder, *heads, weights=(1.0, 1.0), **options):
    trainer = MultiHeadTrainer(encoder)
    for name, module, weight in zip("ab", heads, weights):
        trainer.add_head(name, module, "mse", weight=weight)
    trainer.compile(keras.optimizers.SGD(0.1), **options)
    return trainer


def check(trainer, model, labels=Y, *, expected=None, batch_size=12):
    """Compares losses and weights with those of Keras."""
    evaluated, loss, weights = expected or as_in_keras(model, labels)
    found = trainer.evaluate(X, labels, batch_size=batch_size, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["loss"], evaluated, rtol=1e-5)
    logs = trainer.fit(X, labels, batch_size=batch_size, shuffle=False, verbose=0).history
    np.testing.assert_allclose(logs["loss"], [loss], rtol=1e-5)
    for one, other in zip(tiny.values(model.variables), weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(("way", "kind"), list(zip(itertools.cycle(WAYS), [*KINDS, *reversed(KINDS)])))
def test_it_is_that_of_one_keras_model(kind, way):
    modules = way(KINDS[kind])
    check(trainer_of(*modules), whole(*modules))


OPTIONS = {
    "in a graph": {"run_eagerly": False},
    "a balancer": {"balancer": "Sum"},
    "a balancer at the parameters": {"balancer": "Sum", "balance_at": "parameters"},
    "micro-batches": {"micro_batches": 3},
    "accumulated": {"gradient_accumulation_steps": 3},
    "two passes": {"balancer": "Sum", "micro_batches": 2, "run_eagerly": False},
    "by parts": {
        "balancer": "Sum",
        "balance_at": "parameters",
        "gradient_accumulation_steps": 2,
        "micro_batches": 2,
        "telemetry": "full",
    },
}
CASES = zip(OPTIONS, itertools.cycle(WAYS), ["kernel", "add_loss", "embedding", "nested", "frozen", "kernel", "add_loss"])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("option", "way", "kind"), list(CASES))
def test_however_an_update_is_computed(option, way, kind):
    modules, given = way(KINDS[kind]), OPTIONS[option]
    check(trainer_of(*modules, **given), whole(*modules), batch_size=12 // given.get("gradient_accumulation_steps", 1))


TOTALS = {
    None: tf.reduce_sum,
    "LogLoss": lambda losses: tf.reduce_sum(tf.math.log(losses)),
    "GeometricMean": lambda losses: tf.sqrt(tf.reduce_prod(losses)),
    "Uncertainty": lambda losses: tf.reduce_sum(losses) / 2,  # before its variables have changed
}
WEIGHTS = {"numbers": (0.5, 3.0), "a function": (lambda step: 3.0 / (1.0 + tf.cast(step, tf.float32)), 0.5)}
BALANCED = {
    "one batch": {},
    "micro-batches": {"micro_batches": 2},
    "accumulated": {"gradient_accumulation_steps": 3},
    "balanced": {"balancer": "EqualNorms"},
    "balanced micro-batches": {"balancer": "EqualNorms", "micro_batches": 3},
    "balanced in a graph": {"balancer": "EqualNorms", "micro_batches": 2, "run_eagerly": False},
    "balanced at the parameters": {"balancer": "EqualNorms", "balance_at": "parameters", "gradient_accumulation_steps": 2},
}


def by_hand(encoder, heads, weights, total, balance_at):
    """A Keras model of the modules; its evaluated loss, its training loss and, after one step, its weights.

    With `balance_at`, the gradients of the encoder's variables are brought to the mean of the heads' norms there.
    """
    inputs = keras.Input((6,))
    hidden = encoder(inputs)
    model = keras.Model(inputs, [hidden, *(module(hidden) for module in heads)])
    variables = [tiny.tensor_variable(variable) for variable in model.trainable_variables]
    encoder_variables = [tiny.tensor_variable(variable) for variable in encoder.trainable_variables]
    with tf.GradientTape(persistent=True) as tape:
        hidden, *outputs = model(X, training=True)
        means = [tf.reduce_mean((p - y) ** 2) for p, y in zip(outputs, Y.values())]
        losses = [mean * (weight(0) if callable(weight) else weight) for mean, weight in zip(means, weights)]
        loss, added = total(tf.stack(losses)), tf.add_n(model.losses)

    def gradients(value, sources):
        computed = tape.gradient(value, sources, unconnected_gradients="zero")
        return [np.asarray(tf.convert_to_tensor(gradient), "float64") for gradient in computed]

    factors = np.array([float(factor) for factor in tape.gradient(loss, losses)])
    by_head, added_gradients = [gradients(value, variables) for value in losses], gradients(added, variables)
    coefficients = np.ones(2)
    if balance_at:
        compared = [hidden] if balance_at == "representation" else encoder_variables
        squares = [sum((gradient**2).sum() for gradient in gradients(value, compared)) for value in losses]
        norms = factors * np.sqrt(squares)
        coefficients = norms.mean() / norms
    after = {}
    for i, variable in enumerate(variables):
        balanced = coefficients if any(variable is other for other in encoder_variables) else np.ones(2)
        gradient = sum(factors[k] * balanced[k] * by_head[k][i] for k in range(2)) + added_gradients[i]
        after[id(variable)] = np.asarray(variable) - 0.1 * gradient
    values = [after.get(id(tiny.tensor_variable(v)), tiny.values([v])[0]) for v in model.variables]
    evaluated = sum(mean * (1 if callable(weight) else weight) for mean, weight in zip(means, weights))
    return model, (float(evaluated + added), float(loss + added), values)


# Where no pair asks for another value, a row has the first one: losses of calls, and weights that depend on losses.
GRID = pairwise(
    ["LogLoss", "GeometricMean", "Uncertainty", None],
    ["add_loss", "nested", "kernel", "embedding"],
    WAYS,
    [*BALANCED],
    [*WEIGHTS],
)


@pytest.mark.first_cases(8)
@pytest.mark.parametrize(("weighting", "kind", "way", "option", "weight"), GRID)
def test_no_weight_and_no_method_changes_them(weighting, kind, way, option, weight):
    (encoder, *heads), options, weights = way(KINDS[kind]), BALANCED[option], WEIGHTS[weight]
    balance_at = options.get("balance_at", "representation") if "balancer" in options else None
    trainer = trainer_of(encoder, *heads, weights=weights, weighting=weighting, **options)
    model, expected = by_hand(encoder, heads, weights, TOTALS[weighting], balance_at)
    check(trainer, model, expected=expected, batch_size=12 // options.get("gradient_accumulation_steps", 1))


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("way", "kind", "idle"), list(zip(WAYS, itertools.cycle(["kernel", "add_loss"]), ["weight", "labels", "labels"] * 2))
)
def test_those_of_idle_heads_do_not_count(way, kind, idle):
    modules = way(KINDS[kind])
    model, inputs = whole(*modules), keras.Input((6,))
    encoder, head, _ = modules
    of_a = as_in_keras(keras.Model(inputs, {"a": head(encoder(inputs))}), {"a": Y["a"]})
    labels = {**Y, "b": np.full([12, 1], np.nan)} if idle == "labels" else Y
    trainer = trainer_of(*modules, weights=(1.0, 0.0 if idle == "weight" else 1.0))
    of_b = tiny.values(model.layers[-1].variables)
    evaluated, loss, _ = of_a
    found = trainer.evaluate(X, labels, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["loss"], evaluated, rtol=1e-5)
    logs = trainer.fit(X, labels, batch_size=12, verbose=0).history
    np.testing.assert_allclose(logs["loss"], [loss], rtol=1e-5)
    found = keras.Model(inputs, {"a": head(encoder(inputs))})
    for one, other in zip(tiny.values(found.variables), of_a[2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    if way not in (one_module, layer_of_both_heads, everywhere):
        for one, other in zip(tiny.values(model.layers[-1].variables), of_b, strict=True):
            np.testing.assert_array_equal(one, other)


class InTrainingOnly(keras.layers.Layer):
    """A layer that adds a loss in training mode alone."""

    def call(self, inputs, training=None):
        if training:
            self.add_loss(tf.reduce_mean(inputs**2))
        return inputs


ADDING = {"kernel": KINDS["kernel"], "add_loss": Adding, "activity": KINDS["activity"], "training": InTrainingOnly}
LOGGED = [
    ("kernel", {}),
    ("add_loss", {"run_eagerly": False}),
    ("activity", {"balancer": "UPGrad", "micro_batches": 2}),
    ("training", {"telemetry": None}),
    ("add_loss", {"gradient_accumulation_steps": 2, "run_eagerly": False}),
    ("kernel", {"telemetry": "full", "balancer": "UPGrad", "balance_at": "parameters"}),
]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("kind", "options"), LOGGED)
def test_the_losses_in_the_logs_add_up(kind, options):
    factors = (0.5, 2.0)
    trainer = trainer_of(*layer_of_encoder_and_head(ADDING[kind]), weights=factors, **options)
    logs = trainer.fit(X, Y, batch_size=5, epochs=2, validation_data=(X, Y), verbose=0).history
    evaluated = trainer.evaluate(X, Y, batch_size=5, verbose=0, return_dict=True)
    assert {name: values[-1] for name, values in logs.items() if name.startswith("val_")} == pytest.approx(
        {f"val_{name}": value for name, value in evaluated.items()}
    )
    assert trainer.metrics_names == ["loss", "a_loss", "b_loss", "added_loss"]
    for start, found in (("", logs), ("val_", logs), ("", {name: [value] for name, value in evaluated.items()})):
        a, b, added, loss = (np.array(found[f"{start}{name}"]) for name in ("a_loss", "b_loss", "added_loss", "loss"))
        np.testing.assert_allclose(factors[0] * a + factors[1] * b + added, loss, rtol=1e-5)
        assert (added > 0).all() or kind == "training"


def test_a_head_of_that_name_is_refused():
    trainer = MultiHeadTrainer(dense())
    with pytest.raises(ValueError, match="'added_loss' would stand for"):
        trainer.add_head("added", dense(1), "mse")


class PerExample(keras.layers.Layer):
    """A layer that adds one loss for each example."""

    def call(self, inputs):
        self.add_loss(tf.reduce_sum(inputs**2, axis=-1))
        return inputs


REFUSED = {
    "per example": lambda: PerExample(name="kl"),
    "in a model": lambda: keras.Sequential([dense(), PerExample(name="kl")]),
    "regularizer": lambda: keras.layers.Dense(6, kernel_regularizer=lambda kernel: 0.1 * kernel**2, name="kl"),
}


NO_SCALAR = [
    ("per example", False, "eagerly", "fit"),
    ("in a model", True, "in a graph", "evaluate"),
    ("regularizer", False, "two passes", "fit"),
    ("regularizer", True, "eagerly", "evaluate"),
]


@pytest.mark.first_cases(4)
@pytest.mark.parametrize(("kind", "in_head", "option", "method"), NO_SCALAR)
def test_one_that_is_no_scalar_is_refused(kind, in_head, option, method):
    adding, options = REFUSED[kind](), OPTIONS.get(option, {})
    trainer = trainer_of(
        dense() if in_head else adding, keras.Sequential([adding, dense(1)]) if in_head else dense(1), dense(1), **options
    )
    with pytest.raises(
        ValueError, match=r"(?s)`add_loss`.*one number.*Received: a loss of shape .* from '.*kl.*tf.reduce_mean"
    ):
        getattr(trainer, method)(X, Y, batch_size=12, verbose=0)
