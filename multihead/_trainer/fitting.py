"""`fit` as a pipeline: a call is read, built for, checked, resumed, grouped into updates and run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace

import keras
import tensorflow as tf

from multihead._data.arguments import Call, read_call
from multihead._data.arrays import read_arrays
from multihead._data.data import Data
from multihead._ground.keras import ProgressLine, callbacks_of
from multihead._ground.types import Callback, Config, Dataset, Given, Nested, Tensor
from multihead._runs.callbacks import RunCallbacks
from multihead._runs.run import Run
from multihead._trainer.scaling import fit_scalings, unknown
from multihead._trainer.state import check_every_head
from multihead._trainer.steps import SteppedTrainer
from multihead._update.batch import unpack
from multihead._update.spec import Plan
from multihead.heads._directions import tell_directions
from multihead.heads._labels import check_arrays, checked
from multihead.telemetry._epoch_end import with_epoch_end
from multihead.telemetry._logs import LogMetrics


def arguments_of(given: Config) -> Config:
    """The arguments of a method by name, from its `locals()`; those of its `**kwargs` by their own names."""
    named = {name: value for name, value in given.items() if name not in ("self", "__class__", "kwargs")}
    return {**named, **given.get("kwargs", {})}


class FittedTrainer(SteppedTrainer):
    """How a trainer is fitted."""

    def _fit(self, arguments: Config, run: Run | None) -> Callback:
        """A call of `fit`; without a checkpoint, `run` is None."""
        steps = self._assert_ready("fit").gradient_accumulation_steps
        class_weight = arguments.pop("class_weight")
        read = read_call(arguments, self._setup.all_names)
        read = read if run is None else read.drawing_from(run.stream)
        self._build_for(read.data)
        checked = self._checked(read)
        unscaled = unknown(self._setup.heads)
        resumed = checked if run is None else run.begin(checked, steps)
        names, spec, strategy = self._setup.all_names, self.update_spec, self.distribute_strategy
        fit_scalings(unscaled, checked, names, spec, strategy, eagerly=self._runs_eagerly)
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

    def _with_checked_labels(self, data: Data, *, shuffle: Given = False, argument: str = "x") -> Data:
        """The data, with arrays of labels checked at once, and other batches checked outside of what XLA compiles."""
        if not self._assert_ready("fit").check_labels:
            return data
        predictions = self._shapes.predictions
        masked = {name for name, each in predictions.items() if each.masked}  # only a batch can tell which labels count
        complete = set(self._setup.all_names) - masked

        def check(data: Dataset) -> None:
            batch = unpack(data, self._setup.all_names)
            for name in batch.targets.keys() - masked:
                weights, spec = batch.sample_weights.get(name), predictions[name].spec
                _, weights = self._setup.head(name).mask_missing(batch.targets[name], weights, spec, None)
                if tf.executing_eagerly() and not bool(tf.reduce_all(weights > 0)):
                    complete.discard(name)

        if data.is_arrays:
            try:
                are_checked = check_arrays(check, data.y, data.sample_weight)
            except ValueError as error:
                if argument == "x":
                    raise
                raise ValueError(f"In `{argument}`: {error}") from error
            found = frozenset(complete if are_checked else ())
            return data._replace(labels_are_checked=are_checked and not masked, complete=found)
        if self.jit_compile and (data.batches is not None or isinstance(data.x, tf.data.Dataset)):
            dataset = data.as_dataset(None, None, shuffle, "`jit_compile`")
            # What Python makes is lost if it is read and not used, and may draw random numbers.
            return data._replace(x=checked(check, dataset, ahead=data.batches is None), batches=None)
        return data

    def _checked_batch(self, x: Dataset, y: Nested, sample_weight: Nested) -> Data:
        """A batch as arrays, with labels checked if it goes to a step that XLA compiles, which has no errors."""
        data = read_arrays(x, y, sample_weight, self._setup.all_names)
        if not self.jit_compile:
            return data
        self._build(data.specs, data)
        return self._with_checked_labels(data)

    def _shown(self, call: Call) -> Call:
        """The call with callbacks that report skipped updates and print progress."""
        callbacks = call.others["callbacks"]
        given = callbacks_of(callbacks)
        tell_directions(given, self._setup.heads)
        for callback in given:
            if hasattr(callback, "check_fit"):
                callback.check_fit(given, validates=call.validation is not None)
        callbacks = with_epoch_end(self, callbacks, counts=self._steps_are_ours)
        return self._with_progress(call.with_others(callbacks=callbacks))

    def _with_progress(self, call: Call) -> Call:
        """The call with a progress line that can be read.

        Nothing changes if nothing is printed, or if the call has a progress line or a `CallbackList` of its own.
        """
        callbacks = call.others["callbacks"]
        given = callbacks_of(callbacks)
        has_own = any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in given)
        if call.others["verbose"] == 0 or has_own or isinstance(callbacks, keras.callbacks.CallbackList):
            return call
        return call.with_others(callbacks=[*given, ProgressLine(lambda logs: shown(logs, self.log_metrics))])

    def _run(self, call: Call, class_weight: Given, *, labels_are_checked: bool) -> Callback:
        """Runs Keras's loop."""
        plan = Plan(
            labels_are_checked and class_weight is None,
            may_be_idle=self._idle.may_change,
            class_weight=self._frozen(class_weight),
        )
        if self._steps_are_ours:
            plan = replace(plan, complete=call.data.complete, heads_stay=not self.jit_compile and self._heads_stay())
        self._idle.set([], self._setup.names)  # until a run reaches its checkpoint
        run = call.others["callbacks"]
        with self._in_phase("fit", plan), run.running() if isinstance(run, RunCallbacks) else nullcontext():
            self.train_function.take(call.data.specs)
            return super().fit(**call.for_keras())


def shown(logs: Mapping[str, Tensor], metrics: LogMetrics | None) -> dict[str, Tensor]:
    """The part of the logs that the progress line shows.

    That is each head's loss and first metric, in training and in validation; `skipped_updates` if there are any; and
    everything that callbacks have added to the logs.
    """
    if metrics is None:
        return dict(logs)
    first = metrics.main_names
    wanted = [*first, *(f"val_{name}" for name in first)]
    hidden = set(metrics.names()) - set(first)
    hidden |= {f"val_{name}" for name in hidden}
    if "skipped_updates" in logs and float(logs["skipped_updates"]) > 0:
        hidden.remove("skipped_updates")
    names = [name for name in wanted if name in logs]
    return {name: logs[name] for name in [*names, *(name for name in logs if name not in hidden and name not in names)]}
