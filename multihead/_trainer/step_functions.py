"""The functions that Keras calls for the steps of training and evaluation: one trace per plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import tensorflow as tf

from multihead._ground.calls import omit_retracing_warning
from multihead._ground.keras import steps_at_once
from multihead._ground.tensors import unchecked
from multihead._ground.types import Function, Logs, Nested, Trainer
from multihead._trainer.state import TrainerState
from multihead._update.spec import Plan

Step = Callable[[Iterator[Nested]], Logs]
"""A step of Keras, from an iterator of batches."""


class StepFunction:
    """A step of Keras, with one traced function per plan.

    `make` is the method of Keras that makes one and sets it as the `attribute` of the trainer; `plan` is the current plan.
    """

    period: int | None = None  # the number of the present period of training, where there are several
    calls_left: float = 0  # the number of calls before the number of updates must be read again
    until_stop: float = 0  # the number of updates before training may have to stop

    def __init__(self, trainer: Trainer, state: TrainerState, attribute: str, make: Function) -> None:
        self._trainer, self._state, self._attribute, self._make = trainer, state, attribute, make
        self.plan = Plan()
        self.calls = 0  # that have made a step
        self._functions: dict[Plan, Step] = {}

    @contextmanager
    def planned(self, plan: Plan) -> Iterator[None]:
        before, self.plan, self.calls_left, self.until_stop = self.plan, plan, 0, 0
        try:
            yield
        finally:
            self.plan = before

    def __call__(self, iterator: Iterator[Nested]) -> Logs:
        trainer, plan = self._trainer, replace(self.plan, period=self.period)
        if plan not in self._functions:
            before = getattr(trainer, self._attribute)
            self._make(force=True)
            self._functions[plan] = getattr(trainer, self._attribute)
            omit_retracing_warning(self._functions[plan])
            setattr(trainer, self._attribute, before)
        earlier, self._state.plan = self._state.plan, plan
        try:
            with unchecked(in_functions=True):  # means over nothing are NaN
                logs = self._functions[plan](iterator)
            self.calls += 1
            return logs
        finally:
            self._state.plan = earlier


class TrainFunction(StepFunction):
    """A training step, traced once per period between changes of what is frozen.

    An error of an update that is not finite says where it comes from.
    """

    def __call__(self, iterator: Iterator[Nested]) -> Logs:
        self._enter_period()
        logs, failure = None, None
        try:
            logs = super().__call__(iterator)
        except tf.errors.InvalidArgumentError as error:
            failure = error
        trainer = self._trainer
        in_xla = bool(trainer.jit_compile) and not trainer.run_eagerly  # which raises no errors
        self.until_stop -= steps_at_once(trainer) if in_xla else 0
        if trainer.update_spec is not None and (failure is not None or (in_xla and self.until_stop <= 0)):
            self.until_stop = trainer.update_spec.running.faults.stop()  # to read it waits for the device
        if failure is not None:
            raise failure
        return logs

    def _enter_period(self) -> None:
        """Finds the present period. To read the number of updates waits for the device, so that is done rarely."""
        self.calls_left -= 1
        spec = self._trainer.update_spec
        if self.calls_left >= 0 or spec is None:  # a trainer that is not built is looked at again in the next call
            return
        self.calls_left = math.inf
        if len(spec.running.periods) == 1:
            return
        step = self._trainer.num_updates
        self.period = spec.running.period_at(step)
        following = spec.running.periods[self.period + 1 :]
        if following and self._trainer.options.steps_per_execution == "auto":
            self.calls_left = 0
        elif following:
            self.calls_left = -(-(following[0].start - step) // steps_at_once(self._trainer)) - 1
