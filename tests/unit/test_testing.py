"""`check_schedule` passes what is right and names what is not; every check says what it has checked."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead import balancing, schedules, weighting
from multihead.testing import check_balancer, check_schedule, check_weighting

NAMES = ["price", "reply"]
OF_THE_LIBRARY = {
    "Alternate": lambda: schedules.Alternate({"price": 1, "reply": 9}),
    "Sample": lambda: schedules.Sample({"price": 1, "reply": 3}, seed=2),
    "Together": schedules.Together,
    "WhileConflicting": lambda: schedules.WhileConflicting(0.5, momentum=0.5, probe_every=3, turns={"price": 1, "reply": 2}),
}


def test_every_schedule_of_the_library_is_checked():
    assert set(OF_THE_LIBRARY) == set(schedules.__all__) - {"Schedule"}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", OF_THE_LIBRARY)
def test_schedules_of_the_library_pass(name):
    schedule = OF_THE_LIBRARY[name]()
    schedule.bind(NAMES)
    assert check_schedule(schedule).num_heads == [2]


class Turns(schedules.Schedule):
    """The head that has trained least so far; or something that is wrong."""

    def __init__(self, fault="none"):
        super().__init__()
        self.fault = fault
        self.always_all = fault == "claim"
        self.asked = 0

    def create_state(self, num_heads):
        self.trained = self.add_state("trained", (num_heads,), dtype="int64")

    def active(self, step):
        self.asked += 1
        trained = tf.convert_to_tensor(self.trained)
        one = tf.one_hot(
            tf.argmin(trained + (step + tf.range(self.num_heads, dtype=tf.int64)) % self.num_heads), self.num_heads
        )
        return {
            "dtype": lambda: one,
            "shape": lambda: one[:, None] > 0,
            "nobody": lambda: (one > 0) & (step != 7),
            "never": lambda: tf.range(self.num_heads) == 0,
            "asked": lambda: (one > 0) | (self.asked % 3 == 0),
            "drawn": lambda: (one > 0) | (np.random.rand() < 0.5),
        }.get(self.fault, lambda: one > 0)()

    def observe(self, update, applied):
        counts = update.active if self.fault == "skipped" else update.active & applied
        self.trained.assign_add(tf.cast(counts, tf.int64))

    def reset(self):
        if self.fault != "reset":
            super().reset()

    def get_config(self):
        return {"fault": self.fault + "!" * self.fault.startswith("config")}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "dtype",
            r"`active` of Turns must return one boolean per head, a tensor of shape \[num_heads\]\. Received: float32",
        ),
        ("shape", r"`active` of Turns must return one boolean per head.* Received: bool of shape \(3, 1\)"),
        ("nobody", r"must have at least one head train at every step, but none does at step 7\. Received: the steps before"),
        ("never", r"must have every head train at some step, but \['head_1', 'head_2'\] never do"),
        ("claim", "must have every head train at every step, or not set `always_all`"),
        ("asked", "must be the same in a graph and in eager mode, in any order of the steps"),
        ("drawn", "must be the same in a graph and in eager mode, in any order of the steps"),
        ("skipped", "must not change its state if an update was not applied.* the steps after an update with agreeing"),
        ("reset", r"must have its initial state after `reset\(\)`"),
        ("config", "must return all arguments of the constructor, and only these, from `get_config`"),
    ],
)
def test_faults_of_schedules_are_named(fault, message):
    with pytest.raises(ValueError if fault in ("dtype", "shape") else AssertionError, match=message):
        check_schedule(Turns(fault), num_heads=(3,), xla=False)


def test_checks_say_what_they_checked():
    of_schedule = check_schedule(Turns(), num_heads=(1, 3))
    assert repr(of_schedule) == f"Turns: {len(of_schedule.checks)} checks, 1 to 3 heads"
    assert "have at least one head train at every step" in of_schedule.checks
    assert len(set(of_schedule.checks)) == len(of_schedule.checks) == 10
    of_balancer = check_balancer(balancing.Sum(), num_heads=(1,), xla=False)
    assert repr(of_balancer) == f"Sum: {len(of_balancer.checks)} checks, 1 head"
    with_xla = set(check_balancer(balancing.Sum(), num_heads=(1,)).checks)
    assert with_xla - set(of_balancer.checks) == {"be the same compiled by XLA as in eager mode"}
    of_weighting = check_weighting(weighting.GeometricMean(), num_heads=(2,), xla=False)
    assert repr(of_weighting) == f"GeometricMean: {len(of_weighting.checks)} checks, 2 heads"


def test_a_schedule_with_a_state_belongs_to_its_heads():
    schedule = Turns()
    schedule.bind(["a", "b"])
    assert schedule.head_names == ("a", "b")
    schedule.build((2,))
    schedule.bind(["a", "b"])
    with pytest.raises(ValueError, match="`head_schedule` has state for the heads 'a', 'b'. Received: the heads 'a', 'c'"):
        schedule.bind(["a", "c"])
