"""Python's control flow over tensors in what users write: AutoGraph converts it, and nothing of this package."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api

from multihead import (
    MultiHeadTrainer,
    accumulation,
    balancing,
    clipping,
    losses,
    mix_datasets,
    models,
    rates,
    schedules,
    weighting,
)

KERAS_2 = keras.__version__ < "3"
RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 3)).astype("float32")
Y = {"a": X[:, :1], "b": X[:, 1:2] ** 2}


def by_python(x):
    """A function of a tensor with a conditional, a loop over a range and a loop with a condition."""
    factor = tf.constant(1.0, x.dtype)
    for i in tf.range(3):
        if tf.reduce_sum(tf.abs(x)) > tf.cast(i, x.dtype):
            factor += 0.5
    while factor > 2.0:
        factor *= 0.75
    return x * factor


def by_tensorflow(x):
    """The same in TensorFlow's operations."""
    exceeds = tf.reduce_sum(tf.abs(x)) > tf.cast(tf.range(3), x.dtype)
    factor = 1.0 + 0.5 * tf.reduce_sum(tf.cast(exceeds, x.dtype))
    return x * tf.while_loop(lambda factor: factor > 2.0, lambda factor: [0.75 * factor], [factor])[0]


def changed(rule, x):
    """A helper of the user's code, which treats rows independently."""
    return x * rule(tf.constant(3.0, x.dtype)) / 3.0


def scaled(rule, losses):
    """Losses times what the rule makes of a constant: each row's is independent of the others."""
    return losses * changed(rule, tf.ones([], losses.dtype))


class Layer(keras.layers.Layer):
    def __init__(self, rule):
        super().__init__()
        self.rule, self.dense = rule, keras.layers.Dense(1)

    def call(self, x):
        return self.dense(changed(self.rule, x))


class Module(tf.Module):
    def __init__(self, rule):
        super().__init__()
        self.rule, self.kernel = rule, tf.Variable([[0.5], [-0.25], [0.75]])

    def __call__(self, x):
        return changed(self.rule, x) @ self.kernel


class Loss(keras.losses.Loss):
    def __init__(self, rule):
        super().__init__()
        self.rule = rule

    def call(self, targets, predictions):
        return scaled(self.rule, tf.reduce_mean((targets - predictions) ** 2, axis=-1))


class Metric(keras.metrics.Metric):
    def __init__(self, rule):
        super().__init__(name="metric")
        self.rule, self.total = rule, self.add_weight(name="total", initializer="zeros")

    def update_state(self, targets, predictions, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(changed(self.rule, predictions)))

    def result(self):
        return changed(self.rule, tf.convert_to_tensor(self.total))


class Method:
    """What the methods have in common; not a method itself."""

    def __init__(self, rule):
        super().__init__()
        self.rule = rule


class Coefficients(Method, balancing.Balancer):
    def coefficients(self, gramian):
        return changed(self.rule, 1.0 + tf.linalg.diag_part(gramian))


class Combine(Method, balancing.Balancer):
    uses = ("gradients",)

    def combine(self, gradients):
        return [changed(self.rule, tf.reduce_sum(rows, axis=0)) for rows in gradients]


class Observe(Coefficients):
    uses = ("step",)

    def create_state(self, num_heads):
        self.seen = self.add_state("seen", (num_heads,))

    def coefficients(self, gramian, step):
        return tf.cast(1.0 + tf.convert_to_tensor(self.seen), gramian.dtype)

    def observe(self, update, applied):
        seen = changed(self.rule, tf.cast(tf.linalg.diag_part(update.gramian), tf.float32))
        self.seen.assign(tf.where(applied, seen, tf.convert_to_tensor(self.seen)))


class Total(Method, weighting.Weighting):
    def total(self, losses, active):
        return tf.reduce_sum(changed(self.rule, losses**2))


class Learned(Method, weighting.Weighting):
    def create_state(self, num_heads):
        self.scales = self.add_learned("scale", num_heads)

    def total(self, losses, active):
        return tf.reduce_sum(losses) + self.regularizer(active)

    def regularizer(self, active):
        return changed(self.rule, 0.1 + tf.add_n([tf.convert_to_tensor(scale) for scale in self.scales]))

    def objective(self, losses, norms, active):
        return changed(self.rule, self.total(losses, active) ** 2)


class Active(Method, schedules.Schedule):
    def active(self, step):
        return changed(self.rule, tf.stack([1.0, tf.cast(step, tf.float32)])) > 0.0


class Clipping(clipping.Clipping):
    def __init__(self, rule):
        super().__init__(1.0)
        self.rule = rule

    def _clip(self, gradients):
        return [0.1 * changed(self.rule, gradient) for gradient in gradients]


def of_step(rule):
    return lambda step: changed(rule, 0.1 + tf.cast(step, tf.float32))


def function_of(rule, columns=None):
    def call(x):
        return changed(rule, x[:, :columns])

    return call


def loss_function(rule):
    def squares(targets, predictions):
        return scaled(rule, (targets - predictions) ** 2)

    return squares


TOGETHER = [
    lambda rule: {
        **{"encoder": Layer(rule), "module": Layer(rule), "metrics": [Metric(rule)], "loss": Loss(rule)},
        **{"weight": of_step(rule), "learning_rate_multiplier": of_step(rule), "balancer": Coefficients(rule)},
        **{"weighting": Total(rule), "head_schedule": Active(rule)},
    },
    lambda rule: {
        **{"encoder": function_of(rule), "module": function_of(rule, 1)},
        **{"metrics": [loss_function(rule)], "loss": loss_function(rule), "balancer": Combine(rule)},
    },
    lambda rule: {
        **{"encoder": keras.layers.Dense(3), "module": Module(rule)},
        **{"weighting": Learned(rule), "clip": Clipping(rule)},
    },
    lambda rule: {
        **{"encoder": Module(rule), "balancer": Observe(rule)},
        "learning_rate_multiplier": rates.LayerwiseDecay(0.5, top=of_step(rule)),
    },
]
"""Everything of a user's that runs in a step, as functions of the control flow that it has."""
OF_HEAD = ("module", "loss", "metrics", "weight", "learning_rate_multiplier")


def trainer_of(parts, **options):
    """A compiled trainer with some of the user's parts."""
    keras.utils.set_random_seed(0)
    of_head = {"module": keras.layers.Dense(1), "loss": "mse", **{k: v for k, v in parts.items() if k in OF_HEAD}}
    trainer = MultiHeadTrainer(parts.get("encoder") or keras.layers.Dense(3, activation="tanh"))
    trainer.add_head("a", of_head.pop("module"), of_head.pop("loss"), couples_rows=False, **of_head)
    trainer.add_head("b", keras.layers.Dense(1), "mse")
    of_compile = {name: part for name, part in parts.items() if name not in (*OF_HEAD, "encoder")}
    trainer.compile(keras.optimizers.SGD(0.1), **of_compile, **options)
    return trainer


def trained(parts, **options):
    """The statistics of two steps, and the variables after them."""
    trainer = trainer_of(parts, **options)
    history = trainer.fit(X, Y, batch_size=4, shuffle=False, verbose=0).history
    return {name: values[-1] for name, values in history.items()}, [np.array(each) for each in trainer.get_weights()]


def assert_same(found, wanted):
    assert found[0] == pytest.approx(wanted[0], rel=1e-4, abs=1e-6, nan_ok=True)
    for one, other in zip(found[1], wanted[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.fixture
def converted(monkeypatch):
    """The functions that AutoGraph converts."""
    names, convert = [], api._convert_actual

    def recorded(function, context):
        names.append(f"{function.__module__}.{function.__qualname__}")
        return convert(function, context)

    monkeypatch.setattr(api, "_convert_actual", recorded)
    return names


@pytest.fixture(autouse=True)
def _no_warnings(caplog):
    """No test here may log a warning of AutoGraph's."""
    logger = tf.get_logger()
    logger.addHandler(caplog.handler)
    yield
    logger.removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records if "AutoGraph" in record.getMessage()] == []


def of_ours(names):
    return [name for name in names if name.startswith("multihead.")]


@pytest.mark.skipif(not KERAS_2, reason="Keras 3 converts nothing in `fit`")
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("parts", TOGETHER)
def test_users_control_flow_over_tensors_works_in_fit(parts, converted):
    found = trained(parts(by_python))
    assert any(name.endswith("by_python") for name in converted)
    assert of_ours(converted) == []
    assert_same(found, trained(parts(by_tensorflow), run_eagerly=True))


def test_in_a_function_of_the_users_own_it_works_on_both_stacks(converted):
    def trained(rule, compile):
        parts = {"balancer": Coefficients(rule), "weighting": Total(rule), "clip": Clipping(rule), "weight": of_step(rule)}
        trainer = trainer_of({**parts, **({"loss": loss_function(rule)} if KERAS_2 else {})})
        trainer.compute_gradients((X, Y))

        @compile
        def step(x, y):
            for _ in tf.range(2):
                trainer.apply_gradients(trainer.compute_gradients((x, y)))

        step(X, Y)
        return {}, [np.array(each) for each in trainer.get_weights()]

    found = trained(by_python, tf.function)
    assert any(name.endswith("by_python") for name in converted)
    assert of_ours(converted) == []
    assert_same(found, trained(by_tensorflow, lambda step: step))


@pytest.mark.skipif(KERAS_2, reason="Keras 2 converts")
@pytest.mark.parametrize(
    "part", [("module", Layer), ("loss", loss_function), ("balancer", Coefficients)], ids=lambda part: part[0]
)
def test_on_keras_3_fit_converts_nothing_as_keras_does(part, converted):
    model = keras.Sequential([Layer(by_python)])
    model.compile("sgd", "mse")
    for fit in (lambda: model.fit(X, Y["a"], verbose=0), lambda: trained({part[0]: part[1](by_python)})):
        with pytest.raises((TypeError, ValueError, UserWarning), match="symbolic"):
            fit()
    assert not any("by_python" in name for name in converted)


def test_nothing_of_the_package_is_converted(converted):
    """By any option that adds code to a step."""
    trainer = trainer_of(
        {"metrics": ["mae"]},
        balancer="UPGrad",
        weighting="DWA",
        head_schedule=schedules.Alternate({"a": 1, "b": 1}),
        clip=clipping.ByGlobalNorm(1.0),
        encoder_learning_rate_multiplier=rates.LayerwiseDecay(0.5),
        micro_batches=2,
    )
    trainer.fit(X, Y, batch_size=4, validation_data=(X, Y), verbose=0)
    trainer.predict(X, verbose=0)
    trainer.diagnose(X, Y)
    assert of_ours(converted) == []


@pytest.mark.thorough
def test_nothing_of_the_package_is_converted_in_a_function_of_the_users_own(converted):
    trainer = trainer_of({}, balancer="UPGrad", balance_every=2, clip=clipping.ByGlobalNorm(1.0), micro_batches=2)
    trainer.compute_gradients((X, Y))
    balancer, weights, clip, loss = balancing.MGDA(), weighting.LogLoss(), clipping.ByNorm(1.0), losses.get("mse")
    accumulator = accumulation.GradientAccumulator([tf.Variable([1.0, 2.0])])
    classifier = models.Classifier(2)
    for call in (balancer, weights):
        call([[1.0, 2.0]] if call is balancer else [1.0, 2.0])
    classifier({"final": X})

    @tf.function
    def step(x, y):
        trainer.apply_gradients(trainer.compute_gradients((x, y)))
        rows = tf.transpose(x[:, :2])
        accumulator.add(clip([balancer(rows)[:2]]))
        balanced = balancing.balance([[rows[0]], [rows[1]]], "PCGrad")
        return trainer(x), balanced, weights(x[0, :2] ** 2), loss.values(y["a"], x[:, :1]), classifier({"final": x})

    step(tf.constant(X), {name: tf.constant(y) for name, y in Y.items()})
    assert of_ours(converted) == [] and converted[0].endswith("step")


@pytest.mark.thorough
def test_nothing_of_the_package_is_converted_where_data_are_read(converted):
    data = tf.data.Dataset.from_tensors((X, Y["a"])).repeat(4)
    mixed = mix_datasets({"a": data, "b": data}, weights={"a": 1, "b": 1})
    trainer = trainer_of({}, gradient_accumulation_steps=2)
    trainer.fit(mixed, verbose=0)
    trainer.fit(X, Y, batch_size=2, shuffle="batch", verbose=0)
    assert of_ours(converted) == []


NO_SOURCE = """
def squares(targets, predictions):
    with tf.name_scope("squares"):
        # a comment
        return (targets - predictions) ** 2
"""


def from_string():
    """A function without a source."""
    names = {"tf": tf}
    exec(NO_SOURCE, names)
    return names["squares"]


# fmt: off
TWO_IN_A_LINE = (lambda targets, predictions: (targets - predictions) ** 2), (lambda targets, predictions: predictions)
# fmt: on


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("loss", [from_string, TWO_IN_A_LINE[0], "mse"], ids=["no source", "lambdas", "Keras"])
def test_a_function_that_cannot_be_read_runs_as_it_is_without_a_warning(loss):
    loss = loss() if loss is from_string else loss

    class Unreadable(balancing.Balancer):
        def coefficients(self, gramian):
            return tf.ones_like(gramian[0]) if isinstance(loss, str) else tf.ones_like(loss(gramian[0], 0.0))

    trainer = trainer_of({"loss": loss, "weight": lambda step: 1.0}, balancer=Unreadable())
    trainer.fit(X, Y, batch_size=4, verbose=0)
    assert int(trainer.update_count) == 2
