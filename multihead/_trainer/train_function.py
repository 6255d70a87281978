"""The functions that Keras calls for each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multihead._ground.numerics import results_unchecked
from multihead._runs.resuming import Replay, draw
from multihead._update.spec import UpdateSpec


class StepFunction:
    """A step of Keras that remembers for data of which ranks it was traced.

    Keras would trace it again for tensors of unknown rank if it were called with data of other ranks.

    In a resumed run, the steps before the checkpoint only draw their batches.

    Args:
        make: Makes the function, which is not traced yet.
        at_once: Returns how many batches the next call takes at most.
        replay: Returns the resumed run before the place of its checkpoint, where steps only draw batches; else None.
    """

    def __init__(
        self, make: Callable[[], Callable[[Any], Any]], *, at_once: Callable[[], int], replay: Callable[[], Replay | None]
    ) -> None:
        self._make = make
        self._at_once = at_once
        self._replay = replay
        self._function = make()
        self._ranks: str | None = None
        self._checks_labels = True

    def __call__(self, iterator: Any) -> Any:
        if self._replay() is not None:
            return draw(iterator, self._at_once())
        return self._run(iterator)

    def _run(self, iterator: Any) -> Any:
        with results_unchecked():  # figures of nothing are NaN
            return self._function(iterator)

    def trace_for(self, specs: Any, *, check_labels: bool = True) -> None:
        """Drops the traced function if it was traced for data of another structure or of other ranks, or without checks.

        Args:
            specs: The specs of a batch; None if they are not known.
            check_labels: Whether the steps must check labels. False allows a function that does not.
        """
        ranks = repr(tf.nest.map_structure(lambda spec: None if spec is None else spec.shape.rank, specs))
        if self._ranks is None:
            self._checks_labels = check_labels
        elif self._ranks != ranks or (check_labels and not self._checks_labels):
            self._function, self._checks_labels = self._make(), check_labels
        self._ranks = ranks

    def trace_with_checks(self) -> None:
        """Drops the traced function if it does not check labels."""
        if not self._checks_labels:
            self._function, self._checks_labels = self._make(), True


class TrainFunction(StepFunction):
    """A training step, which is traced once for each period between changes of what is frozen.

    An error of an update that is not finite says where it comes from.

    Args:
        make: Makes the function, which is not traced yet.
        spec: Returns how updates are computed; None before the first call.
        num_updates: Returns the number of updates so far, which waits for the device.
        at_once: Returns how many updates the next call makes at most.
        is_constant: Whether that number is the same for all calls.
        asks_for_faults: Returns whether to look for errors after each call, as XLA needs, which raises none.
        replay: Returns the resumed run before the place of its checkpoint, where steps only draw batches; else None.
    """

    def __init__(
        self,
        make: Callable[[], Callable[[Any], Any]],
        *,
        spec: Callable[[], UpdateSpec | None],
        num_updates: Callable[[], int],
        at_once: Callable[[], int],
        is_constant: bool,
        asks_for_faults: Callable[[], bool],
        replay: Callable[[], Replay | None],
    ) -> None:
        super().__init__(make, at_once=at_once, replay=replay)
        self._spec = spec
        self._num_updates = num_updates
        self._is_constant = is_constant
        self._asks_for_faults = asks_for_faults
        self._traced_at: int | None = None  # the number of updates when the present function was first called
        self._calls_left: int | None = 0  # before the number of updates must be read again; None: never

    def __call__(self, iterator: Any) -> Any:
        run = self._replay()
        if run is not None:
            return run.pass_over(iterator, self._at_once())
        self._enter_period()
        logs, failure = None, None
        try:
            logs = self._run(iterator)
        except tf.errors.InvalidArgumentError as error:
            failure = error
        spec = self._spec()
        if spec is not None and (failure is not None or self._asks_for_faults()):
            spec.faults.stop()
        if failure is not None:
            raise failure
        return logs

    def _enter_period(self) -> None:
        """Makes the function again if the period that it was traced for has ended."""
        if self._calls_left is None or self._calls_left > 0:
            self._calls_left = None if self._calls_left is None else self._calls_left - 1
            return
        spec = self._spec()
        if spec is not None and len(spec.periods) == 1:
            self._calls_left = None
            return
        step = self._num_updates()
        if self._traced_at is None:
            self._traced_at = step
        if spec is None:
            return  # this call builds; the next one looks again
        period = spec.period_at(step)
        if period != spec.period_at(self._traced_at):
            self._function, self._traced_at = self._make(), step
        following = spec.periods[period + 1 :]
        if following and self._is_constant:
            self._calls_left = -(-(following[0].start - step) // self._at_once()) - 1
        elif not following:
            self._calls_left = None
