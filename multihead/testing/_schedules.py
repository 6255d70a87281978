"""The contract of schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from multihead._ground.types import Function
from multihead._method import Observation
from multihead.schedules import Schedule
from multihead.testing._report import Case, Report, traced


def check_schedule(
    schedule: Schedule, *, num_heads: Sequence[int] = (1, 2, 3, 5), num_steps: int = 100, xla: bool = True
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
    counts = num_heads if schedule.head_names is None else (len(schedule.head_names),)
    report = Report(type(schedule).__name__, counts)
    for count in counts:
        _check_steps(Case(schedule, report, f"the steps before any update, with {count} heads", (count,)), num_steps, xla)
    return report


def _check_steps(case: Case, num_steps: int, xla: bool) -> None:
    fresh, steps = case.built(), tf.range(num_steps, dtype=tf.int64)
    some = [step for step in reversed((0, 1, 2, 3, 5, 10, num_steps - 1)) if step < num_steps]
    compute_table = _table_of(fresh, steps)
    compiled = traced(fresh.active, steps[0], xla=True) if xla else None

    def check_table() -> np.ndarray:
        """The table, checked, and compared with eager mode at some of the steps."""
        answer = fresh.active(steps[0])
        is_right = tf.is_tensor(answer) and answer.dtype == tf.bool and answer.shape == case.shape
        case.require(is_right, "return booleans of shape [num_heads] from `active`", f", not {answer}")
        table = compute_table(steps).numpy()
        at_step = f", but none does at step {int(np.argmin(table.any(axis=1)))}"
        case.require(table.any(axis=1).all(), "have at least one head train at every step", at_step)
        if fresh.always_all:
            case.require(table.all(), "have every head train at every step, or not set `always_all`")
        for step in some:
            is_same = np.array_equal(fresh.active(steps[step]).numpy(), table[step])
            case.require(is_same, "be the same in a graph and in eager mode, in any order of the steps", f" ({step})")
            if compiled is not None:
                is_same = np.array_equal(compiled(steps[step]).numpy(), table[step])
                case.require(is_same, "be the same compiled by XLA as in a graph")
        return table

    def apply(shown: Observation) -> None:
        if np.isfinite(shown.gramian).all():  # else the update is not applied
            fresh.observe(shown, tf.constant(True))
            check_table()

    table = check_table()
    never = [name for name, trains in zip(fresh.head_names or (), table.any(axis=0)) if not trains]
    case.require(not never, "have every head train at some step", f", but {never} never do")
    is_same = np.array_equal(_table_of(case.built(), steps)(steps).numpy(), table)
    case.require(is_same, "give the same from equal configurations")
    case.check_state(fresh, _observations(case.shape[0]), apply)


def _table_of(schedule: Schedule, steps: tf.Tensor) -> Function:
    """A graph that computes `[num_steps, num_heads]`: which heads are active at which step."""
    return traced(lambda steps: tf.map_fn(schedule.active, steps, fn_output_signature=tf.bool), steps)


def _observations(count: int) -> Iterator[tuple[str, Observation]]:
    """Updates to observe, with descriptions of the steps after them."""
    rng = np.random.default_rng(0)
    agreeing, conflicting = np.ones([count, count]), np.full([count, count], -1.0 / max(count - 1, 1))
    np.fill_diagonal(conflicting, 1.0)
    gramians = {
        "an update with agreeing gradients": agreeing,
        "an update with conflicting gradients": conflicting,
        "an update of one head": np.diag(np.arange(count) == 0).astype(np.float64),
        "an update without gradients": np.zeros([count, count]),
        "an update that is not finite": np.full([count, count], np.nan),
        "another update with conflicting gradients": conflicting,
    }
    for step, (label, gramian) in enumerate(gramians.items()):
        losses, losses_after = rng.uniform(0.2, 3.0, [2, count]).astype(np.float32)
        yield (
            f"the steps after {label}, with {count} heads",
            Observation(
                tf.constant(step, tf.int64),
                tf.constant(np.diag(gramian) != 0),
                losses=tf.constant(losses),
                norms=tf.constant(np.sqrt(np.diag(gramian)), tf.float32),
                gramian=tf.constant(gramian),
                losses_after=tf.constant(losses_after),
            ),
        )
