"""Every weighting keeps the contract, is documented, found by name, and says what it cannot take."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import tensorflow as tf

from multihead import testing, weighting

METHODS = [
    value
    for value in (getattr(weighting, name) for name in weighting.__all__)
    if isinstance(value, type) and value is not weighting.Weighting
]
OPTIONS = {
    weighting.FAMO: {"learning_rate": 0.1, "least_losses": {"head_0": -1.0}},
    weighting.SmoothTchebycheff: {"mu": 0.3, "least_losses": {"head_0": 0.1}},
    weighting.DWA: {"temperature": 1.0, "updates_per_epoch": 2},
    weighting.GradNorm: {"alpha": 0.5},
    weighting.RandomLossWeighting: {"seed": 5},
    weighting.GO4Align: {"num_groups": 3, "step_size": 0.1},
    weighting.UWSO: {"temperature": 0.2},
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("method", METHODS)
def test_contract(method):
    order_matters = method is weighting.RandomLossWeighting  # the draws go by position
    testing.check_weighting(method(), order_matters=order_matters)
    if method in OPTIONS:
        with_options = method(**OPTIONS[method])
        with_options.bind(["size", "head_0"])
        testing.check_weighting(with_options, order_matters=True, xla=False)


@pytest.mark.mathematics
@pytest.mark.parametrize("method", METHODS)
def test_docstrings_have_a_formula_a_golden_value_and_a_source(method):
    text = inspect.getdoc(method)
    for part in ("Formula: ", "What it fixes: ", "Source: ", ">>> "):
        assert part in text, part
    assert method.create_state is weighting.Weighting.create_state or "State: " in text
    assert len(inspect.getsource(inspect.getmodule(method)).splitlines()) <= 350


@pytest.mark.mathematics
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: weighting.DWA(temperature=0), r"`temperature` must be a finite number above 0\. Received: temperature=0"),
        (lambda: weighting.DWA(updates_per_epoch=0.5), "`updates_per_epoch` must be a whole number of at least 1"),
        (lambda: weighting.GradNorm(alpha=-1), "`alpha` must be a finite number at least 0"),
        (lambda: weighting.FAMO(learning_rate=0), "`learning_rate` must be a finite number above 0"),
        (lambda: weighting.FAMO(weight_decay=-1), "`weight_decay` must be a finite number at least 0"),
        (lambda: weighting.FAMO(least_losses={"a": "b"}), "`least_losses` must map head names to finite numbers"),
        (lambda: weighting.SmoothTchebycheff(mu=-1), "`mu` must be a finite number above 0"),
        (lambda: weighting.RandomLossWeighting(seed=0.5), "`seed` must be a whole number"),
        (
            lambda: weighting.SmoothTchebycheff(least_losses={"a": 1}).bind(["b"]),
            "`least_losses` must name only heads: 'a' is not a head",
        ),
        (lambda: weighting.LogLoss()([[1.0]]), r"`losses` must have the shape \[num_heads\]"),
    ],
)
def test_options_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_weighting_belongs_to_its_heads():
    made = weighting.Uncertainty()
    made([1.0, 2.0])
    with pytest.raises(ValueError, match="one loss for each of the heads '0', '1'. Received: 3"):
        made([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="`weighting` has state for the heads '0', '1'. Received: the heads 'a', 'b'"):
        made.bind(["a", "b"])
    with pytest.raises(NotImplementedError, match=r"must implement `total\(losses, active\)`"):
        weighting.Weighting()([1.0])


class Squares(weighting.Weighting):
    def total(self, losses, active):
        return tf.reduce_sum(losses**2)


def test_a_method_of_ones_own():
    np.testing.assert_allclose(Squares()([1.0, 3.0]), [2.0, 6.0])
    testing.check_weighting(Squares(), num_heads=(1, 3))


class Faulty(Squares):
    def __init__(self, fault, *, name=None):
        super().__init__(name=name)
        self.fault = fault
        self.uses = () if fault == "claim" else ("losses",)

    def create_state(self, num_heads):
        self.noted = self.add_state("noted", ())
        self.common = self.add_weight(name="common", shape=(), initializer="ones")

    def total(self, losses, active):
        if self.fault == "mean":
            return tf.reduce_mean(losses**2)
        if self.fault == "order":
            return tf.reduce_sum(losses**2 * tf.range(1.0, len(losses) + 1.0))
        if self.fault == "sign":
            return -tf.reduce_sum(losses)
        if self.fault == "shape":
            return losses**2
        if self.fault == "infinite":
            return tf.reduce_sum(losses / 0.0)
        if self.fault == "gradient":
            return tf.stop_gradient(tf.reduce_sum(losses**2))
        if self.fault == "graph":
            return tf.reduce_sum(losses * (1.0 if tf.executing_eagerly() else 2.0))
        return tf.reduce_sum(losses**2)

    def observe(self, update, applied):
        self.noted.assign_add(1.0 if self.fault == "skipped" else tf.cast(applied, tf.float32))

    def reset(self):
        if self.fault != "reset":
            super().reset()

    def get_config(self):
        return {**super().get_config(), "fault": self.fault + "!" * self.fault.startswith("config")}


@pytest.mark.first_cases(1)
@pytest.mark.mathematics
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("mean", "give the same weights when a head without labels is added"),
        ("order", "not depend on the heads' order"),
        ("sign", "have finite weights of at least 0"),
        ("gradient", "have a weight above 0: does `total` have gradients for the losses"),
        ("infinite", "return a finite scalar as `total`"),
        ("graph", "be the same in a graph as in eager mode"),
        ("claim", "have weights that do not depend on the losses, or name 'losses' in `uses`"),
        ("reset", r"have its initial state after `reset\(\)`"),
        ("skipped", "not change its state if an update was not applied"),
        ("config", "return all its arguments from `get_config`"),
    ],
)
def test_checks_find_faults(fault, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_weighting(Faulty(fault), num_heads=(3,), xla=False)


def test_totals_that_are_no_scalar_and_unknown_needs():
    with pytest.raises(ValueError, match=r"`total` of Faulty must return .* scalar\. Received: float32 of shape \(3,\)"):
        Faulty("shape")([1.0, 2.0, 3.0])
    needy = Squares()
    needy.uses = ("losses", "time")
    with pytest.raises(
        ValueError, match="`uses` of Squares may contain 'losses', 'norms', 'losses_after', 'step'. Received: 'time'"
    ):
        needy.bind(["a"])
