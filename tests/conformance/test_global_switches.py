"""TensorFlow's and Keras's global switches: training goes on as without them."""

from __future__ import annotations

import functools
import itertools
from contextlib import contextmanager

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import debug_mode
from tensorflow.python.framework import config

from multihead import MultiHeadTrainer, schedules, weighting
from tests.helpers.balancers import ALL, make
from tests.helpers.cases import quick
from tests.helpers.tiny import weights_of

# TensorFlow says so of every dataset while functions run eagerly; and in turns, a batch has no label for the head of a turn.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run_functions_eagerly`:UserWarning"),
    pytest.mark.filterwarnings("ignore:Epoch 1:RuntimeWarning"),
]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 5)).astype("float32")
Y = {
    "size": RNG.normal(size=10).astype("float32"),
    "kind": RNG.integers(0, 3, 10),
    "rate": RNG.uniform(0.5, 2, size=(10, 2)).astype("float32"),
}
# The first batch has no label of one head, and none has a label of an element of another.
Y["size"][:6], Y["kind"][2:9], Y["rate"][[0, 3, 9]] = -9, -1, -9


def relative(targets, predictions):
    """Infinite where a target is 0."""
    return tf.square(predictions / targets - 1)


@contextmanager
def functions_eager():
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@contextmanager
def checked_numerics():
    tf.debugging.enable_check_numerics()
    yield
    tf.debugging.disable_check_numerics()


@contextmanager
def determinism():
    tf.config.experimental.enable_op_determinism()
    yield
    config.disable_op_determinism()


@contextmanager
def debugged_data():
    tf.data.experimental.enable_debug_mode()
    yield
    debug_mode.toggle_debug_mode(False)


SWITCHES = (checked_numerics, functions_eager, determinism, debugged_data)
OPTIONS = {
    "plain": {"telemetry": None},
    "balanced": {"balancer": "UPGrad", "telemetry": "full"},
    "micro-batches": {"balancer": "CAGrad", "micro_batches": 2},
    "at the parameters": {"balancer": "GradVac", "balance_at": "parameters", "balance_every": 2},
    "weighted": {"weighting": "Uncertainty"},
    "in turns": {"head_schedule": {"size": 1, "kind": 1, "rate": 2}},
    "gathered": {"gradient_accumulation_steps": 2},
}


@pytest.fixture(autouse=True)
def _off_again():
    yield
    tf.config.run_functions_eagerly(False)
    tf.debugging.disable_check_numerics()
    config.disable_op_determinism()
    debug_mode.toggle_debug_mode(False)


def trained(options, *, eagerly, labels=Y):
    """The logs and the weights of a short `fit`."""
    keras.utils.set_random_seed(1)
    options = dict(OPTIONS[options])
    if "head_schedule" in options:
        options["head_schedule"] = schedules.Alternate(options["head_schedule"])
    trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh", kernel_regularizer="l2"))
    trainer.add_head("size", keras.layers.Dense(1), "mse", ignore_label=-9, metrics=["mae"])
    kind = keras.layers.Dense(3, activation="softmax")
    trainer.add_head("kind", kind, "sparse_categorical_crossentropy", ignore_label=-1, metrics=["accuracy"])
    rate = keras.layers.Dense(2, activation="softplus")
    trainer.add_head("rate", rate, relative, ignore_label=-9, weight=0.1, couples_rows=False)
    trainer.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), run_eagerly=eagerly, **options)
    history = trainer.fit(X, labels, batch_size=6, epochs=1, verbose=0, shuffle=False, validation_data=(X, labels)).history
    return history, weights_of(trainer)


@functools.cache
def trained_without(options, eagerly):
    return trained(options, eagerly=eagerly)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("switch", "options", "eagerly"),
    quick(
        2,
        [
            *((switch, "balanced" if switch is checked_numerics else "plain", True) for switch in SWITCHES),
            *((switch, option, False) for switch, option in zip(itertools.cycle(SWITCHES), OPTIONS)),
        ],
    ),
)
def test_training_goes_on_as_without(switch, options, eagerly):
    wanted, weights = trained_without(options, eagerly)
    with switch():
        found, others = trained(options, eagerly=eagerly)
    assert set(found) == set(wanted)
    for name, statistics in wanted.items():
        np.testing.assert_allclose(found[name], statistics, rtol=1e-4, atol=1e-5, err_msg=name)
    for one, other in zip(weights, others):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_what_is_really_infinite_stops():
    with checked_numerics(), pytest.raises(tf.errors.InvalidArgumentError, match="Infinity or NaN"):
        trained("plain", eagerly=True, labels={**Y, "rate": np.zeros_like(Y["rate"])})


ROWS = np.array([[-4.0, 1.0, 1.0, 0.3], [6.0, 1.0, 1.0, -2.0], [0.0, 0.0, 0.0, 0.0]], np.float32)

SLOW = ("CAGrad", "FairGrad", "NashMTL")
"""Solvers that take about a second outside of a graph."""


@pytest.mark.first_cases(2)
@pytest.mark.mathematics
@pytest.mark.parametrize("name", sorted(ALL, key=lambda name: (name in SLOW, name != "ConicGrad")))
def test_balancers_compute_nothing_infinite(name):
    """First the one that divides by the norm of a combination, which may be nothing."""
    with checked_numerics():
        for rows in (ROWS, ROWS[:2] * [[1e-6], [1e6]], 0 * ROWS):
            make(name)(rows.astype("float32"))


WEIGHTINGS = [name for name in weighting.__all__ if isinstance(getattr(weighting, name), type)]


@pytest.mark.first_cases(6)
@pytest.mark.mathematics
@pytest.mark.parametrize("name", [name for name in WEIGHTINGS if name != "Weighting"])
def test_weightings_compute_nothing_infinite(name):
    method = getattr(weighting, name)()
    method.bind(["a", "b", "c"])
    method.build((3,))
    with checked_numerics():
        for losses, active in (([4.0, 0.5, 0.0], [True, True, False]), ([1e-3, 1e3, 0.0], [True, False, False])):
            losses = np.where(active, losses, 0).astype("float32")
            method.weigh(tf.constant(losses), tf.constant(active), **method.used(step=tf.constant(0, tf.int64)))
