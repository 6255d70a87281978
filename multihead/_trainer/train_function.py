"""The functions that Keras calls for each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf

from multihead._ground.keras import steps_at_once
from multihead._ground.numerics import results_unchecked
from multihead._runs.resuming import Replay, draw
from multihead._update.spec import Plan

Step = Callable[[Any], Any]
"""From an iterator of batches to logs."""


class StepFunction:
    """A step of Keras, one function for each plan.

    Keras would trace it for tensors of unknown rank if it were called with data of other ranks, so these drop the functions.
    In a resumed run, the steps before the checkpoint only draw their batches.

    Args:
        trainer: The trainer.
        make: Makes the function for a plan, which is not traced yet.
        replay: Returns the resumed run before the place of its checkpoint, where steps only draw batches; else None.

    Attributes:
        plan: What the next steps can rely on.
    """

    def __init__(self, trainer: Any, make: Callable[[Plan], Step], replay: Callable[[], Replay | None]) -> None:
        self._trainer, self._make, self._replay = trainer, make, replay
        self.plan = Plan()
        self._functions: dict[Plan, Step] = {}
        self._ranks: str | None = None

    def __call__(self, iterator: Any) -> Any:
        if self._replay() is not None:
            return draw(iterator, steps_at_once(self._trainer))
        return self._run(iterator)

    def _run(self, iterator: Any, period: int | None = None) -> Any:
        plan = replace(self.plan, period=period)
        if plan not in self._functions:
            self._functions[plan] = self._make(plan)
        with results_unchecked():  # values of nothing are NaN
            return self._functions[plan](iterator)

    def take(self, specs: Any) -> None:
        """Prepares for other data: drops the functions if they were traced for another structure or other ranks.

        Args:
            specs: The specs of a batch; None if they are not known.
        """
        ranks = repr(tf.nest.map_structure(lambda spec: None if spec is None else spec.shape.rank, specs))
        if self._ranks not in (None, ranks):
            self._functions.clear()
        self._ranks = ranks


class TrainFunction(StepFunction):
    """A training step, which is traced once for each period between changes of what is frozen.

    An error of an update that is not finite says where it comes from.
    """

    _period: int | None = None  # the number of the present period, where there are several
    _calls_left: int | None = 0  # before the number of updates must be read again; None: never

    def take(self, specs: Any) -> None:
        super().take(specs)
        self._calls_left = 0

    def __call__(self, iterator: Any) -> Any:
        run = self._replay()
        if run is not None:
            return run.pass_over(iterator, steps_at_once(self._trainer))
        self._enter_period()
        logs, failure = None, None
        try:
            logs = self._run(iterator, self._period)
        except tf.errors.InvalidArgumentError as error:
            failure = error
        trainer = self._trainer
        in_xla = bool(trainer.jit_compile) and not trainer.run_eagerly  # which raises no errors
        if trainer.update_spec is not None and (failure is not None or in_xla):
            trainer.update_spec.faults.stop()
        if failure is not None:
            raise failure
        return logs

    def _enter_period(self) -> None:
        """Finds the present period. To read the number of updates waits for the device, so that is done rarely."""
        if self._calls_left is None or self._calls_left > 0:
            self._calls_left = None if self._calls_left is None else self._calls_left - 1
            return
        spec = self._trainer.update_spec
        if spec is None:
            return  # this call builds; the next one looks again
        if len(spec.periods) == 1:
            self._calls_left = None
            return
        step = self._trainer.num_updates
        period = spec.period_at(step)
        following = spec.periods[period + 1 :]
        if self._period not in (None, period):
            self._functions.clear()  # no period comes again
        self._period = period
        if not following:
            self._calls_left = None
        elif self._trainer.options.steps_per_execution != "auto":
            self._calls_left = -(-(following[0].start - step) // steps_at_once(self._trainer)) - 1
