"""Mixtures of experts: the formula, what is balanced and where, what stays of an idle head, saving, and errors."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing, schedules
from multihead.models import CGC, ExpertHead, MMoE
from tests.helpers import tiny

HEADS = ("a", "b")
X = np.random.default_rng(0).normal(size=(6, 5)).astype("float32")
Y = {"a": X[:, :1] * X[:, 1:2], "b": np.abs(X[:, 2:3]) - X[:, :1]}
ENCODERS = {
    "MMoE": lambda **options: MMoE(HEADS, 3, 4, activation="tanh", **options),
    "CGC": lambda **options: CGC(HEADS, 2, 2, (6, 4), activation="tanh", **options),
}
pytestmark = pytest.mark.filterwarnings("error:Some heads read no common tensor")


@keras.saving.register_keras_serializable(package="tests")
class OnLayer(keras.layers.Layer):
    """Experts on a trained layer."""

    def __init__(self, experts, **options):
        super().__init__(**options)
        self.experts, self.below = experts, keras.layers.Dense(3, activation="tanh", name="below")

    def call(self, inputs):
        return self.experts(self.below(inputs))


def trainer(kind, below=False, optimizer="sgd", **compiled):
    keras.utils.set_random_seed(0)
    experts = ENCODERS[kind](trains_below=below)
    made = MultiHeadTrainer(OnLayer(experts) if below else experts)
    for name in HEADS:
        made.add_head(name, experts.head(keras.layers.Dense(1)), "mse", reads=name)
    made.compile(optimizer, run_eagerly=True, **compiled)
    made.compute_gradients((X, Y))
    return made


def dense(bank, x):
    """An `ExpertBank` in NumPy."""
    outputs = [x] * bank.number
    for kernel, bias in zip(bank.kernels, bank.biases):
        outputs = [np.tanh(z @ k + b) for z, k, b in zip(outputs, kernel.numpy(), bias.numpy())]
    return np.stack(outputs, axis=1)


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_head_mixes_its_experts_by_its_gate(kind):
    made = trainer(kind)
    representation, predictions = made.encoder(X), made(X)
    assert list(representation) == list(HEADS) and representation["a"]["experts"] is representation["b"]["experts"]
    for name in HEADS:
        head = made.heads[name].module
        experts = dense(made.encoder.experts, X)
        np.testing.assert_allclose(representation[name]["experts"], experts, atol=1e-6)
        if kind == "CGC":
            experts = np.concatenate([experts, dense(head.own, X)], axis=1)
        scores = np.exp(X @ head.kernel.numpy())
        mixture = sum(
            (scores / scores.sum(axis=1, keepdims=True))[:, i, None] * experts[:, i] for i in range(len(experts[0]))
        )
        kernel, bias = (weight.numpy() for weight in head.tower.weights)
        np.testing.assert_allclose(predictions[name], mixture @ kernel + bias, atol=1e-5)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(("kind", "below"), [("MMoE", True), ("CGC", False), ("MMoE", False), ("CGC", True)])
def test_the_plain_sum_is_the_gradient_of_the_whole_model(kind, below):
    made = trainer(kind, below)
    variables = made.trainable_variables
    with tf.GradientTape() as tape:
        predictions = made(X)
        loss = sum(tf.reduce_mean((predictions[name] - Y[name]) ** 2) for name in HEADS)
    expected = tape.gradient(loss, [tiny.tensor_variable(variable) for variable in variables])
    found = {id(tiny.tensor_variable(v)): gradient for gradient, v in made.compute_gradients((X, Y))}
    assert len(found) == len(variables)
    for variable, gradient in zip(variables, expected):
        np.testing.assert_allclose(found[id(tiny.tensor_variable(variable))], gradient, atol=1e-6)


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(
    ("kind", "below", "balancer"),
    [
        ("MMoE", False, balancing.EqualNorms()),
        ("CGC", False, balancing.UPGrad()),
        ("MMoE", True, balancing.EqualNorms()),
        ("MMoE", False, balancing.UPGrad()),
        ("CGC", True, balancing.EqualNorms()),
    ],
)
def test_balanced_are_the_gradients_at_the_experts_outputs(kind, below, balancer):
    made = trainer(kind, below, balancer=balancer)
    variables = [tiny.tensor_variable(variable) for variable in made.encoder.trainable_variables]
    with tf.GradientTape(persistent=True) as tape:
        inputs = made.encoder.below(X) if below else tf.constant(X)
        experts = (made.encoder.experts if below else made.encoder).experts(inputs)
        cut = [experts, inputs] if below else [experts]
        tape.watch(cut)
        detached = [tf.identity(tensor) for tensor in cut]
        entry = {"experts": detached[0], "inputs": detached[1] if below else inputs}
        losses = [tf.reduce_mean((made.heads[name].module(entry) - Y[name]) ** 2) for name in HEADS]
    by_head = [tape.gradient(loss, detached) for loss in losses]
    rows = np.array([np.concatenate([np.ravel(gradient) for gradient in gradients]) for gradients in by_head])
    combined = np.split(balancer(rows).numpy(), [tf.size(experts)])
    if type(balancer) is balancing.EqualNorms:
        assert not np.allclose(combined[0], rows.sum(axis=0)[: len(combined[0])])
    shaped = [tf.reshape(gradient, tf.shape(tensor)) for gradient, tensor in zip(combined, cut)]
    expected = tape.gradient(cut, variables, output_gradients=shaped)
    found = {id(tiny.tensor_variable(v)): gradient for gradient, v in made.compute_gradients((X, Y))}
    for variable, gradient in zip(variables, expected):
        np.testing.assert_allclose(found[id(variable)], gradient, rtol=1e-3, atol=1e-6)


def test_the_gate_and_the_experts_of_an_idle_head_stay():
    made = trainer("CGC", optimizer=keras.optimizers.Adam(0.1), head_schedule=schedules.Alternate({"a": 1, "b": 1}))
    for _ in range(3):  # of `a`, of `b`, which both have moments then, and of `a`
        before = {name: tiny.values(made.heads[name].module.weights) for name in HEADS}
        made.apply_gradients(made.compute_gradients((X, Y)))
    for name, changes in (("a", True), ("b", False)):
        after = tiny.values(made.heads[name].module.weights)
        assert [bool(np.any(old != new)) for old, new in zip(before[name], after)] == [changes] * len(after)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("kind", ["CGC", "MMoE"])
def test_a_trainer_is_saved_with_them(kind, tmp_path):
    made = trainer(kind, optimizer="adam", balancer="UPGrad")
    made.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for name, predicted in made(X).items():
        np.testing.assert_array_equal(loaded(X)[name], predicted)
    for one, other in ((made.encoder, loaded.encoder), (made.heads["a"].module, loaded.heads["a"].module)):
        assert type(one) is type(other) and one.get_config() == other.get_config()


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: MMoE("ab", 2, 3), r"`heads` must be a list of different names\. Received: heads='ab'\. Pass, for example"),
        (lambda: MMoE(["a", "a"], 2, 3), r"`heads` must be a list of different names\. Received: heads=\['a', 'a'\]\."),
        (lambda: MMoE(HEADS, 0, 3), r"`num_experts` must be an integer of at least 1\. Received: num_experts=0\."),
        (lambda: CGC(HEADS, 1, 0, 3), r"`own_experts` must be an integer of at least 1\. Received: own_experts=0\."),
        (lambda: MMoE(HEADS, 2, ()), r"`units` must have at least one size\. Received: units=\(\)\. Pass units=16\."),
        (lambda: MMoE(HEADS, 2, (4, 0)), r"`units` must be an integer of at least 1\. Received: units=0\."),
        (lambda: MMoE(HEADS, 2, 3)(np.ones([2, 3, 4], "float32")), r"`inputs` must be numbers of shape \[batch, features\]"),
        (lambda: ExpertHead(keras.layers.Dense(1))({"inputs": X}), r"`representation` must hold .* without \['experts'\]\. Pass what `MMoE` or `CGC`"),
        (
            lambda: ExpertHead(keras.layers.Dense(1), own_experts=1, units=3)(MMoE(HEADS, 2, 4)(X)["a"]),
            r"`units` must end with the size of the encoder's experts\. Received: units=\(3,\), and experts of size 4\.",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(create, message):
    with pytest.raises(ValueError, match=message):
        create()
