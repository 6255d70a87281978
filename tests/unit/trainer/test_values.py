"""What is built, and what exists during a `fit`, without a trainer."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from types import SimpleNamespace

import pytest
import tensorflow as tf

from multihead._trainer.built import Built
from multihead._trainer.options import Setup
from multihead._trainer.session import FitSession
from multihead.heads._named import NamedHead


@dataclass(frozen=True)
class Spec:
    """The fields of an `UpdateSpec` that are asked for here."""

    periods: tuple
    network: object = None
    may_be_idle: bool = False
    layers_every: int = 100
    period: int = -1

    def in_period(self, period):
        return Spec(self.periods, self.network, self.may_be_idle, self.layers_every, period)


def built(*starts, **logs):
    heads = [NamedHead(name, tf.identity, "mse") for name in "ab"]
    spec = Spec(tuple(SimpleNamespace(start=start) for start in starts), SimpleNamespace(heads=heads, measured=()))
    return Built(spec, SimpleNamespace(**logs))


def test_idle_heads_change_how_updates_are_computed():
    found = built(0)
    assert found.with_idle_heads().spec.may_be_idle and not found.spec.may_be_idle
    again = found.with_idle_heads()
    assert again.with_idle_heads() is again and again.logs is found.logs


def test_an_evaluation_has_the_heads_that_its_logs_name():
    asked = []

    def evaluation_logs(weights, present, step):
        asked.append((weights.numpy().tolist(), present, step))
        return {"loss": tf.constant(2.0), "b_loss": tf.constant(4.0)}

    found = built(0, evaluation_logs=evaluation_logs)
    assert found.evaluation_logs({"loss": 9.0, "b_loss": 9.0}, 7) == {"loss": 2.0, "b_loss": 4.0}
    assert asked == [([1.0, 1.0], ["b"], 7)]


@pytest.mark.parametrize("value", [built(0), FitSession(), Setup()], ids=lambda value: type(value).__name__)
def test_values_do_not_change(value):
    with pytest.raises(FrozenInstanceError):
        value.spec = None
