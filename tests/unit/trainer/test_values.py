"""What is built, without a trainer."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from types import SimpleNamespace

import pytest
import tensorflow as tf

from multihead._trainer.building import Built
from multihead._trainer.options import Setup
from multihead.heads._named import new_head


def built(**logs):
    heads = [new_head(name, tf.identity, "mse") for name in "ab"]
    spec = SimpleNamespace(network=SimpleNamespace(heads=heads, measured=()))
    return Built(spec, SimpleNamespace(**logs))


def test_an_evaluation_has_the_heads_that_its_logs_name():
    asked = []

    def evaluation_logs(weights, present, step):
        asked.append((weights.numpy().tolist(), present, step))
        return {"loss": tf.constant(2.0), "b_loss": tf.constant(4.0)}

    found = built(evaluation_logs=evaluation_logs)
    assert found.evaluation_logs({"loss": 9.0, "b_loss": 9.0}, 7) == {"loss": 2.0, "b_loss": 4.0}
    assert asked == [([1.0, 1.0], ["b"], 7)]


@pytest.mark.parametrize("value", [built(), Setup()], ids=lambda value: type(value).__name__)
def test_values_do_not_change(value):
    with pytest.raises(FrozenInstanceError):
        value.spec = None
