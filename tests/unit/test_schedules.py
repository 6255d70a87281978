"""Schedules: closed forms, draws that repeat, turns while heads conflict."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, schedules
from multihead._method import Observation
from tests.helpers import tiny
from tests.helpers.draws import at_steps


def drawn(schedule, count, names=("price", "reply")):
    schedule.bind(list(names))
    return at_steps(schedule.active, count, tf.bool)


@pytest.mark.mathematics
def test_alternate_gives_each_head_its_turns():
    active = drawn(schedules.Alternate({"price": 1, "reply": 9}), 30)
    np.testing.assert_array_equal(active[:, 0], [u % 10 == 0 for u in range(30)])
    np.testing.assert_array_equal(active[:, 1], ~active[:, 0])


@pytest.mark.mathematics
def test_sample_repeats_by_seed_and_keeps_its_turns():
    active = drawn(schedules.Sample({"price": 1, "reply": 3}, seed=5), 2000)
    np.testing.assert_array_equal(active, drawn(schedules.Sample({"price": 1, "reply": 3}, seed=5), 2000))
    assert (active.sum(1) == 1).all()
    assert abs(active[:, 0].mean() - 0.25) < 0.04  # over four standard deviations
    assert (active != drawn(schedules.Sample({"price": 1, "reply": 3}, seed=6), 2000)).any()


NAMES = ("a", "b", "c")
TURNS = {"b": 2, "a": 1, "c": 3}


def masks(number=3):
    return [np.array(mask) for mask in itertools.product([False, True], repeat=number)]


def trained(schedule, mask, steps):
    return at_steps(lambda step: schedule.among(tf.constant(mask), step), steps, tf.bool)


@pytest.mark.mathematics
@pytest.mark.parametrize("mask", masks(), ids=str)
def test_the_turn_of_a_head_that_cannot_train_passes_on_to_the_next_one_that_can(mask):
    order = [name for name, number in TURNS.items() for _ in range(number)]  # b b a c c c
    schedule = schedules.Alternate(TURNS)
    schedule.bind(NAMES)
    for step, found in enumerate(trained(schedule, mask, 13)):
        able = [name for name, is_able in zip(NAMES, mask) if is_able]
        following = [name for name in [*order, *order][step % 6 :] if name in able]
        assert [name for name, trains in zip(NAMES, found) if trains] == following[:1]


@pytest.mark.first_cases(1)
@pytest.mark.mathematics
@pytest.mark.parametrize("mask", masks()[1:], ids=str)
def test_another_head_is_sampled_for_one_that_cannot_train(mask):
    schedule = schedules.Sample(TURNS, seed=3)
    schedule.bind(NAMES)
    found, alone = trained(schedule, mask, 500), at_steps(schedule.active, 500, tf.bool)
    assert (found.sum(1) == 1).all() and not found[:, ~mask].any()
    np.testing.assert_array_equal(found[(alone & mask).any(1)], alone[(alone & mask).any(1)])
    turns = np.array([TURNS[name] for name in NAMES]) * mask
    np.testing.assert_allclose(found.mean(0), turns / turns.sum(), atol=0.09)  # four standard deviations


class OwnTurns(schedules.Alternate):
    """A subclass with an `active` of its own."""

    def active(self, step):
        return tf.constant([False, False, True])


def test_what_a_subclass_calls_active_holds_and_other_schedules_pass_on_to_all():
    own, conflicting = OwnTurns(TURNS), schedules.WhileConflicting()
    for schedule in (own, conflicting):
        schedule.bind(NAMES)
        schedule.build((3,))
    able, step = tf.constant([True, True, False]), tf.constant(4, tf.int64)
    assert own.among(tf.ones([3], tf.bool), step).numpy().tolist() == [False, False, True]
    assert own.among(able, step).numpy().tolist() == [False, True, False]
    assert conflicting.among(able, step).numpy().tolist() == [True, True, False]
    assert schedules.Schedule.passed_on(own, able, step) is able


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("options", [{"gradient_accumulation_steps": 2}, {"run_eagerly": True, "micro_batches": 2}, {}])
@pytest.mark.parametrize("schedule", [schedules.Sample({"a": 1, "b": 9}, seed=1), schedules.Alternate({"a": 1, "b": 2})])
def test_every_update_with_a_label_trains_a_head_and_so_training_goes_on(schedule, options):
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    a, b = x[:, :1].copy(), x[:, 1:2].copy()
    b[: 40 - 4], a[:4] = np.nan, np.nan  # `b` has labels in the last batch, `a` in all but the first
    size = 4 // options.get("gradient_accumulation_steps", 1)
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    for name in ("a", "b"):
        trainer.add_head(name, keras.layers.Dense(1), "mse")
    trainer.compile("sgd", head_schedule=schedule.copy(), **options)
    with pytest.warns(RuntimeWarning, match="1 of the epoch's updates was skipped because no head had labels"):
        logs = trainer.fit(x, {"a": a, "b": b}, batch_size=size, epochs=2, shuffle=False, verbose=0).history
    assert logs["skipped_updates"] == [1, 1]
    assert [one + other for one, other in zip(logs["a_updates"], logs["b_updates"])] == [9, 9]
    assert min(logs["a_updates"]) >= 8


def seen(gramian):
    return Observation(tf.constant(0, tf.int64), tf.constant([True, True]), gramian=tf.constant(gramian))


@pytest.mark.mathematics
def test_heads_take_turns_only_while_their_running_cosine_is_low():
    schedule = schedules.WhileConflicting(0.0, momentum=0.5, probe_every=4)
    schedule.bind(["a", "b"])
    schedule.build((2,))
    active = lambda u: schedule.active(tf.constant(u, tf.int64)).numpy().tolist()  # noqa: E731
    assert active(1) == [True, True]  # nothing observed yet
    mean, power = 0.0, 1.0
    for cosine in (-0.8, 0.4, 0.9, 0.9):
        norms = np.array([1e-3, 50.0])
        gramian = np.outer(norms, norms) * np.array([[1, cosine], [cosine, 1]])
        schedule.observe(seen(gramian), tf.constant(True))
        mean, power = 0.5 * mean + 0.5 * cosine, power * 0.5
        average = mean / (1 - power)
        np.testing.assert_allclose(schedule.average_cosine(), average, rtol=1e-5)
        together = average >= 0
        assert active(1) == ([True, True] if together else [False, True])
        assert active(2) == ([True, True] if together else [True, False])
        assert active(4) == [True, True]  # a probe
    before = float(schedule.average_cosine())
    schedule.observe(seen([[1.0, 0.0], [0.0, 0.0]]), tf.constant(True))  # one head alone shows nothing
    schedule.observe(seen([[1.0, -1.0], [-1.0, 1.0]]), tf.constant(False))  # a skipped update neither
    assert float(schedule.average_cosine()) == before


def test_conflicting_heads_take_turns_in_fit_and_agreeing_ones_do_not():
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")

    def updates(sign):
        keras.utils.set_random_seed(0)
        head = keras.layers.Dense(1, kernel_initializer="ones", trainable=False)
        other = keras.layers.Dense(1, kernel_initializer="ones", trainable=False)
        trainer = MultiHeadTrainer(keras.layers.Dense(2, kernel_initializer="zeros"))
        trainer.add_head("a", head, "mse")
        trainer.add_head("b", other, "mse")
        trainer.compile(keras.optimizers.SGD(1e-3), head_schedule=schedules.WhileConflicting(probe_every=5))
        y = {"a": np.ones((40, 1), "float32"), "b": sign * np.ones((40, 1), "float32")}
        history = trainer.fit(x, y, batch_size=2, verbose=0, shuffle=False).history
        return history["a_updates"][0], history["b_updates"][0]

    assert updates(1) == (20, 20)
    a, b = updates(-1)
    assert a + b == 20 + 4  # four probes train both


ERRORS = {
    "sample": (lambda: schedules.Sample({}), r"`turns` must be a mapping"),
    "zero": (lambda: schedules.Sample({"a": 0}), r"`turns\['a'\]` must be a finite number above 0"),
    "seed": (lambda: schedules.Sample({"a": 1}, seed=0.5), r"`seed` must be a whole number. Received: seed=0.5"),
    "threshold": (lambda: schedules.WhileConflicting(2), r"`threshold` must be a finite number at least -1 and at most 1"),
    "momentum": (
        lambda: schedules.WhileConflicting(momentum=1),
        r"`momentum` must be a finite number at least 0 and below 1",
    ),
    "probe": (lambda: schedules.WhileConflicting(probe_every=1), r"`probe_every` must be a whole number of at least 2"),
    "never": (lambda: schedules.Sample({"a": 1}).bind(["a", "b"]), r"the head 'b' is missing"),
}


@pytest.mark.mathematics
@pytest.mark.parametrize("case", ERRORS)
def test_errors(case):
    action, message = ERRORS[case]
    with pytest.raises(ValueError, match=message):
        action()


class Watching(schedules.Schedule):
    """All heads, and everything that an update shows."""

    always_all = True
    uses = ("gramian", "losses", "losses_after")

    def active(self, step):
        return tf.ones([self.num_heads], tf.bool)

    def observe(self, update, applied):
        self.seen = (update, applied)


def test_methods_are_told_the_step_the_losses_before_and_after_and_the_inner_products():
    inputs, targets = tiny.data(8, missing=False)
    schedule = Watching()
    trainer = tiny.trainer(keras.optimizers.SGD(0.1), head_schedule=schedule, run_eagerly=True)
    for step in range(2):
        before = [
            trainer.evaluate(inputs, targets, batch_size=8, verbose=0, return_dict=True)[f"{k}_loss"] for k in trainer.heads
        ]
        trainer.fit(inputs, targets, batch_size=8, verbose=0, shuffle=False)
        after = [
            trainer.evaluate(inputs, targets, batch_size=8, verbose=0, return_dict=True)[f"{k}_loss"] for k in trainer.heads
        ]
        update, applied = schedule.seen
        assert bool(applied) and int(update.step) == step and update.active.numpy().all()
        weights = np.array(list(tiny.WEIGHTS.values()))
        np.testing.assert_allclose(update.losses, weights * before, rtol=1e-5)
        np.testing.assert_allclose(update.losses_after, weights * after, rtol=1e-5)
        assert update.gramian.shape == (3, 3) and (np.diag(update.gramian) > 0).all()
        np.testing.assert_allclose(update.norms, np.sqrt(np.diag(update.gramian)), rtol=1e-6)
