"""The functions that Keras calls for each step, without a trainer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tensorflow as tf

from multihead._ground.keras import KERAS_3
from multihead._trainer.fitting import StepFunction, TrainFunction
from multihead._update.spec import Plan


class Keras:
    """A trainer whose functions count the updates that calls of them make."""

    run_eagerly = False

    def __init__(self, starts=(0,), at_once=1, faults=None, in_xla=False):
        self.steps_per_execution = SimpleNamespace(numpy=lambda: at_once) if not KERAS_3 else at_once
        self.options = SimpleNamespace(steps_per_execution=at_once)
        self.at_once, self.updates, self.jit_compile = at_once, 0, in_xla
        self.made, self.ran, self.asked = [], [], 0
        self.failure = None
        self.update_spec = None if starts is None else self.spec_with(starts, faults)

    @staticmethod
    def spec_with(starts, faults=None):
        periods = [SimpleNamespace(start=start) for start in starts]
        return SimpleNamespace(
            periods=periods,
            period_at=lambda step: max(i for i, each in enumerate(periods) if each.start <= step),
            faults=faults or SimpleNamespace(stop=lambda: None),
        )

    def make(self, plan):
        self.made.append(plan)
        number = len(self.made)

        def run(iterator):
            if self.failure is not None:
                raise self.failure
            self.ran.append(number)
            self.updates += self.at_once
            return {"loss": next(iterator)}

        return run

    @property
    def num_updates(self):
        self.asked += 1
        return self.updates

    def function(self, kind=TrainFunction):
        return kind(self, self.make)


def run(function, steps):
    return [function(iter(range(100))) for _ in range(steps)]


def test_data_of_other_ranks_are_traced_anew():
    keras = Keras()
    function = keras.function(StepFunction)
    for rank in (2, 2, 3, 3, 2):
        function.take((tf.TensorSpec([None] * rank), {"a": tf.TensorSpec([None])}))
        run(function, 1)
    assert keras.ran == [1, 1, 2, 2, 3]


def test_each_plan_has_its_own_function_and_an_equal_one_the_same():
    keras = Keras()
    function = keras.function()
    for names in ("ab", "ab", "", "ab"):
        function.plan = Plan(complete=frozenset(names))
        function.take(None)
        run(function, 1)
    assert keras.ran == [1, 1, 2, 1]
    assert keras.made == [Plan(complete=frozenset("ab")), Plan()]


def test_a_plan_is_kept_from_one_period_to_the_next():
    keras = Keras((0, 1))
    function = keras.function()
    function.plan = Plan(heads_stay=True)
    run(function, 2)
    assert keras.made == [Plan(heads_stay=True, period=0), Plan(heads_stay=True, period=1)]
    function.plan = Plan()
    run(function, 1)
    assert keras.made[-1] == Plan(period=1)


def test_one_period_never_asks_for_the_number_of_updates():
    keras = Keras()
    assert run(keras.function(), 3) == [{"loss": 0}] * 3
    assert len(keras.made) == 1 and keras.asked == 0


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
    keras.update_spec = keras.spec_with((0, 1, 3))
    run(function, 3)
    assert keras.ran == [1, 2, 2, 3]


def test_a_skipped_update_does_not_end_a_period():
    keras = Keras((0, 2))
    function = keras.function()
    run(function, 1)
    keras.updates -= 1
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
    in_xla = Keras(faults=SimpleNamespace(stop=stop), in_xla=True)
    with pytest.raises(FloatingPointError, match="head 'a'"):  # XLA raises none
        run(in_xla.function(), 1)


def test_another_error_stays_what_it_is():
    keras = Keras()
    keras.failure = tf.errors.InvalidArgumentError(None, None, "shapes")
    with pytest.raises(tf.errors.InvalidArgumentError, match="shapes"):
        run(keras.function(), 1)
