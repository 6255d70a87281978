"""What is built, and what exists during a `fit`, without a trainer."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from types import SimpleNamespace

import pytest
import tensorflow as tf

from multihead._trainer.built import Built
from multihead._trainer.options import Setup
from multihead._trainer.session import FitSession
from multihead._update.spec import Plan
from multihead.heads._named import NamedHead


@dataclass(frozen=True)
class Spec:
    """The fields of an `UpdateSpec` that are asked for here."""

    periods: tuple
    network: object = None
    layers_every: int = 100
    period: int = -1

    def under(self, plan, period):
        assert plan == Plan()
        return Spec(self.periods, self.network, self.layers_every, period)


def built(*starts, **logs):
    heads = [NamedHead(name, tf.identity, "mse") for name in "ab"]
    spec = Spec(tuple(SimpleNamespace(start=start) for start in starts), SimpleNamespace(heads=heads, measured=()))
    return Built(spec, SimpleNamespace(**logs))


def test_a_custom_loop_is_traced_for_one_period():
    found = built(0, 3)
    spec, checks = found.in_custom_loop(0, tf.constant(5, tf.int64))
    assert (spec.period, spec.layers_every, checks) == (0, 0, [])  # run eagerly, nothing is traced

    def step(period, number):
        spec, checks = found.in_custom_loop(period, number)
        with tf.control_dependencies(checks):
            return tf.constant(spec.period)

    traced = tf.function(step, autograph=False)
    assert traced(0, tf.constant(2, tf.int64)) == 0 and traced(1, tf.constant(9, tf.int64)) == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="traced for the updates from 0 to 2"):
        traced(0, tf.constant(3, tf.int64))


def test_an_evaluation_has_the_heads_that_its_logs_name():
    asked = []

    def evaluation_logs(weights, present, step):
        asked.append((weights.numpy().tolist(), present, step))
        return {"loss": tf.constant(2.0), "b_loss": tf.constant(4.0)}

    found = built(0, evaluation_logs=evaluation_logs)
    assert found.evaluation_logs({"loss": 9.0, "b_loss": 9.0}, 7) == {"loss": 2.0, "b_loss": 4.0}
    assert asked == [([1.0, 1.0], ["b"], 7)]


def test_a_session_without_a_checkpoint_replays_nothing():
    assert FitSession().replay is None


@pytest.mark.parametrize("value", [built(0), FitSession(), Setup()], ids=lambda value: type(value).__name__)
def test_values_do_not_change(value):
    with pytest.raises(FrozenInstanceError):
        value.spec = None
