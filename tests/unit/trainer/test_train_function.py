"""The functions that Keras calls for each step, without a trainer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tensorflow as tf

from multihead._trainer.train_function import Assumptions, StepFunction, TrainFunction


class Keras:
    """Makes functions, and counts the updates that calls of them make."""

    is_fitting = True

    def __init__(self, starts=(0,), at_once=1, faults=None):
        self.starts, self.at_once, self.num_updates = starts, at_once, 0
        self.made, self.ran, self.asked = 0, [], 0
        self.failure, self.at_trace = None, lambda: None
        self.spec = None if starts is None else self.spec_with(starts, faults)

    @staticmethod
    def spec_with(starts, faults=None):
        periods = [SimpleNamespace(start=start) for start in starts]
        return SimpleNamespace(
            periods=periods,
            period_at=lambda step: max(i for i, each in enumerate(periods) if each.start <= step),
            faults=faults or SimpleNamespace(stop=lambda: None),
        )

    def make(self):
        self.made += 1
        number = self.made

        def run(iterator):
            self.at_trace()
            if self.failure is not None:
                raise self.failure
            self.ran.append(number)
            self.num_updates += self.at_once
            return {"loss": next(iterator)}

        return run

    def count(self):
        self.asked += 1
        return self.num_updates

    def function(self, *, asks=False):
        return TrainFunction(
            self.make,
            spec=lambda: self.spec,
            num_updates=self.count,
            at_once=lambda: self.at_once,
            is_constant=True,
            asks_for_faults=lambda: asks,
            in_session=lambda: self.is_fitting,
        )


def run(function, steps):
    return [function(iter(range(100))) for _ in range(steps)]


def test_data_of_other_ranks_are_traced_anew():
    keras = Keras()
    function = StepFunction(keras.make)
    for rank in (2, 2, 3, 3, 2):
        function.trace_for((tf.TensorSpec([None] * rank), {"a": tf.TensorSpec([None])}))
        run(function, 1)
    assert keras.ran == [1, 1, 2, 2, 3]


def test_a_step_without_checks_is_used_only_where_it_may_be():
    keras = Keras()
    function = StepFunction(keras.make)
    for are_checked in (True, True, False, True, False):
        function.trace_for(None, Assumptions(labels_are_checked=are_checked))
        run(function, 1)
    function.trace_without_assumptions()
    run(function, 1)
    assert keras.ran == [1, 1, 2, 2, 2, 2]
    without = StepFunction(keras.make)
    without.trace_for(None, Assumptions(labels_are_checked=True))
    without.trace_without_assumptions()
    run(without, 1)
    assert keras.ran[-1] == 4


def test_a_step_assumes_only_what_held_when_it_was_made_and_only_while_it_runs():
    keras, seen = Keras(), []
    function = StepFunction(keras.make)
    both, stay = Assumptions(complete=frozenset("ab"), heads_stay=True), Assumptions(heads_stay=True)
    for allowed in (stay, both, both._replace(heads_stay=False), both):
        function.trace_for(None, allowed)
        keras.at_trace = lambda: seen.append(function.assumed)
        run(function, 1)
        assert function.assumed == Assumptions()
    without = both._replace(heads_stay=False)
    assert keras.ran == [1, 1, 2, 2] and seen == [stay, stay, without, without]
    function.trace_for(None, stay)  # without labels that are known to be complete
    function.trace_for_idle_heads()
    function.trace_for_idle_heads()
    run(function, 1)
    assert keras.ran[-1] == 4 and seen[-1] == Assumptions()
    keras.failure = ValueError()
    with pytest.raises(ValueError):
        run(function, 1)
    assert function.assumed == Assumptions()


def test_called_by_hand_a_step_assumes_nothing():
    keras = Keras()
    function = keras.function()
    function.trace_for(None, Assumptions(labels_are_checked=True))
    run(function, 2)
    keras.is_fitting = False
    run(function, 2)
    keras.is_fitting = True
    run(function, 1)
    assert keras.ran == [1, 1, 2, 2, 2]


def test_one_period_never_asks_for_the_number_of_updates():
    keras = Keras()
    assert run(keras.function(), 3) == [{"loss": 0}] * 3
    assert keras.made == 1 and keras.asked == 0


@pytest.mark.parametrize(
    ("at_once", "ran", "asked"),
    [(1, [1, 1, 2, 2, 2, 3, 3], 3), (2, [1, 2, 2, 3, 3, 3, 3], 3)],
    ids=["one update a call", "two"],
)
def test_each_period_has_its_own_function(at_once, ran, asked):
    keras = Keras((0, 2, 5), at_once)
    run(keras.function(), 7)
    assert keras.ran == ran and keras.asked == asked


def test_periods_are_found_by_the_call_that_builds():
    keras = Keras(None)
    function = keras.function()
    run(function, 1)
    keras.spec = keras.spec_with((0, 1, 3))
    run(function, 3)
    assert keras.ran == [1, 2, 2, 3]


def test_a_skipped_update_does_not_end_a_period():
    keras = Keras((0, 2))
    function = keras.function()
    run(function, 1)
    keras.num_updates -= 1
    run(function, 3)
    assert keras.ran == [1, 1, 1, 2]


def test_an_error_of_the_graph_says_where_it_comes_from():
    def stop():
        raise FloatingPointError("head 'a'")

    keras = Keras(faults=SimpleNamespace(stop=stop))
    assert run(keras.function(), 1)
    keras.failure = tf.errors.InvalidArgumentError(None, None, "check")
    with pytest.raises(FloatingPointError, match="head 'a'"):
        run(keras.function(), 1)
    keras.failure = None
    with pytest.raises(FloatingPointError, match="head 'a'"):  # XLA raises none
        run(keras.function(asks=True), 1)


def test_another_error_stays_what_it_is():
    keras = Keras()
    keras.failure = tf.errors.InvalidArgumentError(None, None, "shapes")
    with pytest.raises(tf.errors.InvalidArgumentError, match="shapes"):
        run(keras.function(), 1)
