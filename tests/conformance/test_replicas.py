"""Promise 4 under `tf.distribute`: two replicas make the update of one device, and stay alike."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer
from tests.helpers import tiny
from tests.helpers.cases import quick
from tests.helpers.gathering import (
    BALANCINGS,
    OPTIMIZERS,
    assert_alike,
    batches_of_updates,
    expected,
    trained,
)


@pytest.fixture
def strategy(two_replicas):
    return two_replicas


def assert_replicas_alike(trainer, strategy):
    state = [trainer.update_count, *trainer.optimizer.variables, *trainer.weights]
    for variable in state:
        copies = strategy.experimental_local_results(tiny.tensor_variable(variable))
        first, *others = [copy.numpy() for copy in copies]
        for other in others:
            np.testing.assert_array_equal(first, other, err_msg=variable.name)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("gathering", "balanced", "clip", "missing", "optimizer"),
    quick(
        2,
        [
            ("whole", "representation", 0.3, True, "adam"),
            ("both", "parameters", None, True, "momentum"),
            ("both", "known before", None, True, "momentum"),
        ],
    ),
)
def test_two_replicas_make_the_update_of_a_tape_by_hand(strategy, gathering, balanced, clip, missing, optimizer):
    balancer, level = BALANCINGS[balanced]
    updates = batches_of_updates(missing)
    wanted = expected(updates, OPTIMIZERS[optimizer], balancer, level, clip)
    actual, trainer = trained(updates, OPTIMIZERS[optimizer], gathering, balancer, level, clip, strategy)
    assert_alike(actual, wanted)
    assert_replicas_alike(trainer, strategy)


@pytest.mark.parametrize("trainer_inside", [True, False])
def test_a_model_made_outside_of_the_scope_is_refused(strategy, trainer_inside):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(3)(inputs)
    model = keras.Model(inputs, [keras.layers.Dense(1, name=name)(hidden) for name in "ab"])
    model.compile("sgd", "mse")
    made = None if trainer_inside else MultiHeadTrainer.from_model(model)
    with (
        strategy.scope(),
        pytest.raises(ValueError, match="needs variables that were made in the scope of MirroredStrategy"),
    ):
        (made or MultiHeadTrainer.from_model(model)).compile("sgd")
