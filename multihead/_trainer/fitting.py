"""`fit` as a pipeline: a call is read, built for, checked, resumed, grouped into updates and run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from multihead._data.arguments import Call, read_call
from multihead._data.arrays import read_arrays
from multihead._data.data import Data
from multihead._ground.keras import callbacks_of
from multihead._runs.callbacks import RunCallbacks
from multihead._runs.run import Run
from multihead._trainer.data import check_every_head, with_checked_labels
from multihead._trainer.directions import tell_directions
from multihead._trainer.progress import with_progress
from multihead._trainer.scaling import Lesson
from multihead._trainer.session import FitSession
from multihead._trainer.state import TrainerState
from multihead._trainer.train_function import Assumptions
from multihead.telemetry._logs import with_report


def arguments_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a method by name, from its `locals()`; those of its `**kwargs` by their own names."""
    named = {name: value for name, value in given.items() if name not in ("self", "__class__", "kwargs")}
    return {**named, **given.get("kwargs", {})}


class FittedTrainer(TrainerState):
    """How a trainer is fitted."""

    def _fit(self, arguments: dict[str, Any], run: Run | None) -> Any:
        """A call of `fit`; without a checkpoint, `run` is None."""
        steps = self._assert_ready("fit").gradient_accumulation_steps
        class_weight = arguments.pop("class_weight")
        read = read_call(arguments, self._setup.all_names)
        read = read if run is None else read.drawing_from(run.stream)
        self._build_for(read.data)
        checked = self._checked(read)
        lesson = Lesson.of(self._setup.heads, checked)
        resumed = checked if run is None else run.begin(checked, steps)
        lesson.learn(self._setup.all_names, self.update_spec, self.distribute_strategy, eagerly=self._runs_eagerly)
        ahead = 0 if run is not None and read.data.batches is not None else 1  # what Python draws, a run draws in time
        grouped = self._shown(resumed).in_windows(steps, self.distribute_strategy, ahead)
        saved = grouped if run is None else run.with_callbacks(grouped)
        return self._run(saved, class_weight, labels_are_checked=checked.data.labels_are_checked)

    def _build_for(self, data: Data) -> None:
        """Builds what training data require, as far as they are known before the first batch."""
        data.check_any()
        if data.specs is not None:
            check_every_head(data.specs.targets, self._setup.trained)
            self._build(data.specs, data)

    def _checked(self, call: Call) -> Call:
        """The call with labels that are checked as far as they are known."""
        data = self._with_checked_labels(call.data, shuffle=call.others["shuffle"])
        validation = call.validation
        if validation is not None:
            validation = self._with_checked_labels(validation, argument="validation_data")
        return call._replace(data=data, validation=validation)

    def _with_checked_labels(self, data: Data, **options: Any) -> Data:
        """The data, with labels checked that training steps cannot check, or not as early."""
        if not self._assert_ready("fit").check_labels:
            return data
        heads = {head.name: head for head in self._setup.heads}
        return with_checked_labels(data, heads, self._shapes, in_xla=bool(self.jit_compile), **options)

    def _checked_batch(self, x: Any, y: Any, sample_weight: Any) -> Data:
        """A batch as arrays, with labels checked if it goes to a step that XLA compiles, which has no errors."""
        data = read_arrays(x, y, sample_weight, self._setup.all_names)
        if not self.jit_compile:
            return data
        self._build(data.specs, data)
        return self._with_checked_labels(data)

    def _shown(self, call: Call) -> Call:
        """The call with callbacks that report skipped updates and print progress."""
        callbacks = call.others["callbacks"]
        tell_directions(callbacks_of(callbacks), self._setup.heads)
        validates = call.validation is not None
        callbacks = with_report(lambda: self.log_metrics, callbacks, validates=validates, counts=self._steps_are_ours)
        return with_progress(call.with_others(callbacks=callbacks), lambda: self.log_metrics)

    def _run(self, call: Call, class_weight: Any, *, labels_are_checked: bool) -> Any:
        """Runs Keras's loop."""
        self._idle.set([], self._setup.names)
        assumptions = Assumptions(labels_are_checked and class_weight is None)
        if self._steps_are_ours:
            heads_stay = not self.jit_compile and self._heads_stay()
            assumptions = assumptions._replace(complete=call.data.complete, heads_stay=heads_stay)
        run = call.others["callbacks"]
        session = FitSession(spec=self._spec_with(class_weight))
        with self._in_session(session), run.running() if isinstance(run, RunCallbacks) else nullcontext():
            self.make_train_function().trace_for(call.data.specs, assumptions)
            return super().fit(**call.for_keras())
