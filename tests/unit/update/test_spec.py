"""The specification of updates: which methods there are, what they need, and what a skipped update puts back."""

from __future__ import annotations

import keras
import pytest

from multihead.balancing import CAGrad
from multihead.schedules import Together
from multihead.weighting import DWA
from tests.helpers import tiny


class Averaged(keras.layers.Layer):
    """An encoder with a moving average."""

    def __init__(self):
        super().__init__()
        self.inner, self.average = tiny.Encoder(), keras.layers.BatchNormalization()

    def call(self, tokens, training=False):
        found = self.inner(tokens)
        return {**found, "mean": self.average(found["mean"], training=training)}


@pytest.fixture
def spec():
    trainer = tiny.trainer(metrics=True, weighting="dwa", balancer="cagrad", balance_every=2)
    trainer.compute_gradients(tiny.data(4))
    return trainer._built.spec


def test_methods_are_those_that_were_chosen(spec):
    weighting, balancer, schedule = spec.methods
    assert isinstance(weighting, DWA) and isinstance(balancer.balancer, CAGrad) and isinstance(schedule, Together)
    assert spec.uses == {"step"}  # which only solving at every second update needs


def test_state_is_that_of_methods_metrics_and_modules():
    trainer = tiny.trainer(heads=("price",), metrics=True, balancer="cagrad", balance_every=2)
    before = trainer.encoder
    trainer.encoder = Averaged()
    assert before is not trainer.encoder
    trainer.compute_gradients(tiny.only(tiny.data(4), "price"))
    spec = trainer._built.spec
    found = {id(variable) for variable in spec.state}
    assert len(found) == len(spec.state)
    wanted = [
        *trainer.balancer.non_trainable_variables,
        *(variable for metric in trainer._setup.head("price").metrics for variable in metric.variables),
        *trainer.encoder.average.non_trainable_variables,
    ]
    assert {id(tiny.tensor_variable(variable)) for variable in wanted} == found


def test_a_spec_does_not_change(spec):
    with pytest.raises(AttributeError):
        spec.num_micro_batches = 2
