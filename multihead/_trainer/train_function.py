"""The functions that Keras calls for each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground.tensors import unchecked
from multihead._runs.resuming import Replay, draw
from multihead._update.spec import UpdateSpec


class Assumptions(NamedTuple):
    """What holds for all batches of a call of `fit`, so that its steps need not see to it.

    Attributes:
        labels_are_checked: Whether all labels were checked before the first update.
        complete: The names of heads none of whose targets mark a missing label.
        heads_stay: Whether heads stay awake, with weights above 0.
    """

    labels_are_checked: bool = False
    complete: frozenset[str] = frozenset()
    heads_stay: bool = False

    def hold_under(self, others: Assumptions) -> bool:
        """Whether all of this holds where `others` do."""
        pairs = (self.labels_are_checked, others.labels_are_checked), (self.heads_stay, others.heads_stay)
        return self.complete <= others.complete and all(other or not own for own, other in pairs)


class StepFunction:
    """A step of Keras that remembers for data of which ranks, and under which assumptions, it was traced.

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
        self._assumed = Assumptions()
        self._is_running = False

    @property
    def assumed(self) -> Assumptions:
        """What the step that is traced now may assume: nothing unless this function runs it."""
        return self._assumed if self._is_running else Assumptions()

    def __call__(self, iterator: Any) -> Any:
        if self._replay() is not None:
            return draw(iterator, self._at_once())
        return self._run(iterator)

    def _run(self, iterator: Any) -> Any:
        before, self._is_running = self._is_running, True
        try:
            with unchecked(in_functions=True):  # values of nothing are NaN
                return self._function(iterator)
        finally:
            self._is_running = before

    def trace_for(self, specs: Any, allowed: Assumptions = Assumptions()) -> None:  # noqa: B008 - immutable
        """Drops the traced function if it was traced for data of another structure or of other ranks, or assumes too much.

        Args:
            specs: The specs of a batch; None if they are not known.
            allowed: What the steps may assume.
        """
        ranks = repr(tf.nest.map_structure(lambda spec: None if spec is None else spec.shape.rank, specs))
        if self._ranks is None:
            self._assumed = allowed
        elif self._ranks != ranks or not self._assumed.hold_under(allowed):
            self._function, self._assumed = self._make(), allowed
        self._ranks = ranks

    def trace_without_assumptions(self) -> None:
        """Drops the traced function if it assumes anything."""
        if self._assumed != Assumptions():
            self._function, self._assumed = self._make(), Assumptions()

    def trace_for_idle_heads(self) -> None:
        """Drops the traced function if it assumes that heads stay awake."""
        if self._assumed.heads_stay:
            self._function, self._assumed = self._make(), self._assumed._replace(heads_stay=False)


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
        in_session: Returns whether the trainer is being fitted.
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
        in_session: Callable[[], bool],
    ) -> None:
        super().__init__(make, at_once=at_once, replay=replay)
        self._in_session = in_session
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
        if not self._in_session():  # of what is called by hand, `fit` has seen no labels
            self.trace_without_assumptions()
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
