"""The contract of schedules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from multihead._method import Observation
from multihead.schedules import Schedule
from multihead.testing._report import Case, Report, state_of, traced


def check_schedule(
    schedule: Schedule,
    *,
    num_heads: Sequence[int] = (1, 2, 3, 5),
    num_steps: int = 100,
    xla: bool = True,
) -> Report:
    """Checks a schedule against the contract of `multihead.schedules.Schedule`.

    For the first `num_steps` steps, and again after updates that it has observed (with gradients that agree, conflict or
    vanish, and with idle heads), it checks that `active`

    - returns one boolean per head;
    - trains at least one head at every step: a step counts applied updates, and without a head no update is applied, so the
      schedule would never leave that step;
    - trains every head at some step, and all of them at every step if `always_all` is set;
    - is a function of the step and the schedule's state: the same in any order of the steps, in eager mode, in a graph and
      compiled by XLA;

    and that a copy created from `get_config` is equivalent, an update that was not applied does not change the state, and
    `reset` resets it.

    The schedule itself is not called: the checks run on copies created from its configuration.

    Args:
        schedule: The schedule. If its options name heads, tell it the heads' names first, with `bind`.
        num_heads: The numbers of heads to check; ignored for a schedule that is bound to head names.
        num_steps: The number of steps to check: enough for every head to train.
        xla: Pass False to skip compilation.

    Returns:
        A report of the checks.

    Raises:
        AssertionError: A check failed; the message names the check and the updates before it.

    Example:
        >>> from multihead import schedules
        >>> schedule = schedules.Alternate({"price": 1, "reply": 9})
        >>> schedule.bind(["reply", "price"])
        >>> check_schedule(schedule)
        Alternate: 10 checks, 2 heads
    """
    report = Report(schedule, "the steps")
    for count in num_heads if schedule.head_names is None else (len(schedule.head_names),):
        report.tried(count)
        _Case(schedule, report, count, num_steps).check(xla)
    return report


class _Case(Case):
    """One schedule with a number of heads."""

    def __init__(self, schedule: Schedule, report: Report, num_heads: int, num_steps: int) -> None:
        super().__init__(schedule, report, f"before any update, with {num_heads} heads", num_heads)
        self._num_steps = num_steps
        self._some_steps = [step for step in (0, 1, 2, 3, 5, 10, num_steps - 1) if step < num_steps]

    def check(self, xla: bool) -> None:
        fresh = self.built()
        self.check_config(fresh)
        start, table = state_of(fresh), self._check_table(fresh)
        never = [name for name, trains in zip(fresh.head_names or (), table.any(axis=0)) if not trains]
        self.require(not never, "have every head train at some step", f", but {never} never do")
        self.require(np.array_equal(self._table(self.built()), table), "give the same from equal configurations")
        for label, shown in self._observations().items():
            given = f"after {label}, with {self._num_heads} heads"
            self.check_skipped(fresh, shown, given)
            if np.isfinite(shown.gramian).all():  # else the update is not applied
                fresh.observe(shown, tf.constant(True))
                self._check_table(fresh, given)
        if xla:
            table, active = self._table(fresh), traced(fresh.active, tf.constant(0, tf.int64), xla=True)
            for step in self._some_steps:
                same = np.array_equal(active(tf.constant(step, tf.int64)).numpy(), table[step])
                self.require(same, "be the same compiled by XLA as in a graph")
        self.check_reset(fresh, start)

    def _check_table(self, schedule: Schedule, given: str = "") -> np.ndarray:
        """As `_table`, checked."""
        answer = schedule.active(tf.constant(0, tf.int64))
        is_right = tf.is_tensor(answer) and answer.dtype == tf.bool and answer.shape == (self._num_heads,)
        self.require(is_right, "return booleans of shape [num_heads] from `active`", f", not {answer}", given)
        table = self._table(schedule)
        first = int(np.argmin(table.any(axis=1)))
        at_every_step = "have at least one head train at every step"
        self.require(table.any(axis=1).all(), at_every_step, f", but none does at step {first}", given)
        if schedule.always_all:
            self.require(table.all(), "have every head train at every step, or not set `always_all`", given=given)
        for step in reversed(self._some_steps):
            same = np.array_equal(schedule.active(tf.constant(step, tf.int64)).numpy(), table[step])
            self.require(same, "be the same in a graph and in eager mode, in any order of the steps", f" ({step})", given)
        return table

    def _observations(self) -> dict[str, Observation]:
        """Updates to observe, by a label."""
        count = self._num_heads
        rng = np.random.default_rng(0)
        agreeing, conflicting = np.ones([count, count]), np.full([count, count], -1.0 / max(count - 1, 1))
        np.fill_diagonal(conflicting, 1.0)
        first_alone = np.zeros([count, count])
        first_alone[0, 0] = 1.0
        gramians = {
            "an update with agreeing gradients": agreeing,
            "an update with conflicting gradients": conflicting,
            "an update of one head": first_alone,
            "an update without gradients": np.zeros([count, count]),
            "an update that is not finite": np.full([count, count], np.nan),
            "another update with conflicting gradients": conflicting,
        }
        return {
            label: Observation(
                tf.constant(step, tf.int64),
                tf.constant(np.diag(gramian) != 0),
                losses=tf.constant(rng.uniform(0.2, 3.0, count), tf.float32),
                norms=tf.constant(np.sqrt(np.diag(gramian)), tf.float32),
                gramian=tf.constant(gramian),
                losses_after=tf.constant(rng.uniform(0.2, 3.0, count), tf.float32),
            )
            for step, (label, gramian) in enumerate(gramians.items())
        }

    def _table(self, schedule: Schedule) -> np.ndarray:
        """`[num_steps, num_heads]`: which heads are active at each step."""
        steps = tf.range(self._num_steps, dtype=tf.int64)
        return traced(lambda steps: tf.map_fn(schedule.active, steps, fn_output_signature=tf.bool), steps)(steps).numpy()
