"""Promise 4 under `tf.distribute`: two replicas make the update of one device, and stay alike."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import schedules
from multihead._ground import replicas
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
            ("whole", "parameters", None, True, "momentum"),
            ("micro-batches", "representation", None, True, "momentum"),
            ("batches", "sum", 0.3, True, "adam"),
            ("both", "parameters", 0.3, False, "adam"),
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


@pytest.mark.thorough
def test_logs_and_evaluation_are_over_all_replicas(strategy):
    data = tf.data.Dataset.from_tensor_slices(tiny.data(14)).batch(7)
    statistics = []
    for scope in (None, strategy):
        if scope is None:
            trainer = tiny.trainer("sgd", metrics=True, run_eagerly=True)
        else:
            with scope.scope():
                trainer = tiny.trainer("sgd", metrics=True)
        history = trainer.fit(data, epochs=1, verbose=0, shuffle=False).history
        statistics.append((history, trainer.evaluate(data, verbose=0, return_dict=True)))
    for alone, both in zip(*statistics):
        assert alone.keys() == both.keys()
        for name in alone:
            np.testing.assert_allclose(alone[name], both[name], rtol=2e-5, atol=1e-6, err_msg=name)


def test_representation_balancing_exchanges_the_gramian_and_nothing_else(strategy, monkeypatch):
    """Beside the counts and the usual sum of gradients, one [heads, heads] matrix crosses between replicas.

    So do flags, two per head, of what is not finite.
    """
    crossed, flags = [], []
    real, any_replica = replicas.all_reduce_sum, replicas.on_any_replica

    def recording(value):
        crossed.append(
            [g.shape.as_list() for g in value if g is not None] if isinstance(value, list) else value.shape.as_list()
        )
        return real(value)

    def recording_flags(value):
        flags.extend((each.dtype, each.shape.as_list()) for each in value)
        found = any_replica(value)
        assert crossed.pop() == [2, *value[0].shape.as_list()]  # which crosses as a sum
        return found

    monkeypatch.setattr(replicas, "all_reduce_sum", recording)
    monkeypatch.setattr(replicas, "on_any_replica", recording_flags)
    with strategy.scope():
        trainer = tiny.trainer("sgd", balancer="UPGrad", run_eagerly=True)
    trainer.fit(tf.data.Dataset.from_tensor_slices(tiny.data(8)).batch(8), epochs=1, verbose=0, shuffle=False)
    num_heads = len(trainer.heads)
    encoder = [
        v.shape.as_list() if hasattr(v.shape, "as_list") else list(v.shape) for v in trainer.encoder.trainable_variables
    ]
    single = [shape for shape in crossed if shape and not isinstance(shape[0], list)]
    assert {tuple(shape) for shape in single} == {(num_heads + 1,), (num_heads, num_heads)}
    lists = [shapes for shapes in crossed if shapes and isinstance(shapes[0], list)]
    # One list for the encoder, one for the heads' own variables, per replica (an embedding's rows are sparse).
    assert {len(shapes) for shapes in lists} == {len(encoder), 6}
    assert flags and all(each == (tf.bool, [num_heads]) for each in flags)


@pytest.mark.thorough
def test_schedule_state_and_balancer_state_are_alike_on_replicas(strategy):
    with strategy.scope():
        trainer = tiny.trainer(
            keras.optimizers.SGD(0.01, momentum=0.9),
            head_schedule=schedules.WhileConflicting(0.99, probe_every=2),
            balancer="EqualNorms",
            balance_every=2,
        )
    trainer.fit(tf.data.Dataset.from_tensor_slices(tiny.data(16)).batch(4), epochs=1, verbose=0, shuffle=False)
    assert_replicas_alike(trainer, strategy)
    assert tiny.values([trainer.head_schedule.observations])[0] >= 2
