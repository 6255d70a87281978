"""`balance_every`: coefficients are solved for at every n-th step and reused in between."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import balancing, schedules
from multihead._ground.keras import tensor_variable
from multihead.balancing._kinds import Every
from tests.helpers import tiny
from tests.helpers.cases import quick

pytestmark = pytest.mark.usefixtures("eager_updates")


@keras.saving.register_keras_serializable(package="test_every")
class Counting(balancing.Balancer):
    """Coefficients `[1, 2, ..] * the number of solves`, which is its state."""

    def create_state(self, num_heads):
        self.solves = self.add_state("solves", ())

    def coefficients(self, gramian):
        solves = tensor_variable(self.solves)
        solves.assign_add(1.0)
        active = tf.cast(tf.linalg.diag_part(gramian) > 0, gramian.dtype)
        return active * tf.cast(solves * tf.range(1.0, 1.0 + gramian.shape[0]), gramian.dtype)


def gramian(rows):
    rows = np.array(rows, "float64")
    return tf.constant(rows @ rows.T)


def solves(trainer):
    return float(tiny.values([trainer.balancer.balancer.solves])[0])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "options", quick(3, [{"run_eagerly": False}, {"micro_batches": 3}, {"balance_at": "parameters"}, {"jit_compile": True}])
)
def test_the_trainer_solves_at_every_third_update(options):
    inputs, targets = tiny.data(8, missing=False)
    trainer = tiny.trainer("sgd", ("size", "price"), balancer=Counting(), balance_every=3, **options)
    targets = {name: targets[name] for name in trainer.heads}
    history = trainer.fit(inputs, targets, batch_size=2, epochs=2, shuffle=False, verbose=0).history
    assert solves(trainer) == 3
    assert history["price_coefficient"] == [2 * (1 + 1 + 1 + 2) / 4, 2 * (2 + 2 + 3 + 3) / 4]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("level", ["representation", "parameters"])
def test_replicas_keep_the_same_coefficients(level, two_replicas):
    inputs, targets = tiny.only(tiny.data(12, missing=False), "price", "size")

    def trained():
        chain = balancing.Chain("EqualNorms", Counting())
        trainer = tiny.trainer("sgd", ("price", "size"), balancer=chain, balance_at=level, balance_every=2)
        data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(4)
        trainer.fit(data, epochs=1, verbose=0, shuffle=False)
        return trainer

    alone = trained()
    with two_replicas.scope():
        trainer = trained()
    for one, other in zip(tiny.weights_of(alone), tiny.weights_of(trainer), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    counting = trainer.balancer.balancer.steps[1]
    assert float(tiny.values([counting.solves])[0]) == 2
    for variable in trainer.balancer.variables:
        first, second = two_replicas.experimental_local_results(tiny.tensor_variable(variable))
        np.testing.assert_array_equal(first.numpy(), second.numpy())


def test_a_schedule_that_leaves_heads_out_is_solved_for():
    inputs, targets = tiny.data(8, missing=False)
    turns = schedules.Alternate({"tag": 1, "price": 1, "size": 1})
    trainer = tiny.trainer("sgd", balancer="NashMTL", balance_every=4, head_schedule=turns)
    history = trainer.fit(inputs, targets, batch_size=2, shuffle=False, verbose=0).history
    # Alone, a head's coefficient is one over its norm: it never gets that of another.
    for name in trainer.heads:
        np.testing.assert_allclose(history[f"{name}_share"], 1.0, rtol=1e-5)
    assert history["skipped_updates"] == [0.0]


def test_saved_and_resumed_it_goes_on_from_the_same_coefficients(tmp_path):
    inputs, targets = tiny.data(8, missing=False)
    trainer = tiny.trainer("sgd", balancer=Counting(), balance_every=3)
    trainer.fit(inputs, targets, batch_size=4, shuffle=False, verbose=0)
    trainer.save_weights(str(tmp_path / "it.weights.h5"))
    other = tiny.trainer("sgd", balancer=Counting(), balance_every=3)
    other.compute_gradients((inputs, targets))
    other.load_weights(str(tmp_path / "it.weights.h5"))
    assert tiny.values([other.balancer.cached])[0].tolist() == [1, 2, 3]
    for each in (trainer, other):
        each.fit(inputs, targets, batch_size=4, shuffle=False, verbose=0)
        assert solves(each) == 2
    for a, b in zip(tiny.weights_of(trainer), tiny.weights_of(other), strict=True):
        np.testing.assert_array_equal(a, b)


OPTIONS = [
    {},
    {"run_eagerly": False},
    {"run_eagerly": False, "micro_batches": 2, "telemetry": "full"},
    {"gradient_accumulation_steps": 2},
    {"head_schedule": schedules.Alternate({"tag": 2, "price": 2, "size": 2})},
    {"weighting": "uncertainty"},
    {"balance_at": "representation", "micro_batches": 2},
    {"balance_at": "representation", "gradient_accumulation_steps": 2, "run_eagerly": False},
]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options) or "eager")
def test_the_updates_are_those_without_reuse(options, monkeypatch):
    inputs, targets = tiny.data(24)
    trained = []
    for reuses in (True, False):
        if not reuses:
            monkeypatch.setattr(Every, "known", balancing.Balancer.known)
        options = {"balance_at": "parameters", "balance_every": 3, "balancer": "UPGrad", **options}
        trainer = tiny.trainer(keras.optimizers.SGD(0.05, momentum=0.9), **options)
        trainer.fit(inputs, targets, batch_size=4, shuffle=False, verbose=0)
        trained.append(tiny.weights_of(trainer))
    for one, other in zip(*trained, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
