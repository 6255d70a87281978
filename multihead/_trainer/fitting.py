"""`fit` as a pipeline: a call is read, built for, checked, resumed, grouped and run; and the steps that Keras calls."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from multihead._data.batch import unpack
from multihead._data.call import FitCall, Source, as_batches, read_call
from multihead._data.data import Data, batches_of_update, in_windows
from multihead._data.reading import read_arrays
from multihead._ground.calls import omit_retracing_warning
from multihead._ground.keras import (
    ProgressLine,
    callbacks_of,
    forget_validation_data,
    runs_code_of_users,
    tensor_variable,
)
from multihead._ground.optimizers import loss_scale
from multihead._ground.replicas import over_replicas
from multihead._ground.types import (
    Callback,
    Callbacks,
    ClassWeight,
    Config,
    Dataset,
    Function,
    Logs,
    Nested,
    Tensor,
)
from multihead._ground.validation import as_python
from multihead._runs.run import SavedRun
from multihead._trainer.state import Checked, TrainerState
from multihead._trainer.steps import StepFunction, TrainFunction
from multihead._update.apply import apply_update, clip, observe
from multihead._update.evaluate import evaluate_batch
from multihead._update.pipeline import compute_update
from multihead._update.scaling import fit_scalings, unfitted_heads
from multihead._update.spec import Idle, Plan
from multihead._update.update import RollBack
from multihead.heads._directions import resolve_monitor_modes
from multihead.heads._labels import check_arrays, checked
from multihead.heads._named import NamedHead, weigh_classes
from multihead.heads._value import is_zero
from multihead.telemetry._epoch_end import EpochEnd


class FittedTrainer(TrainerState):
    """How a trainer is fitted, and what Keras calls for each step of training and evaluation."""

    def _fit(self, call: FitCall, run: SavedRun | None) -> Callback:
        """Runs a call of `fit`; without a checkpoint, `run` is None."""
        source, validation, plan = self._prepared_fit(call, run)
        with self._in_phase("fit", plan), ExitStack() as stack:
            callbacks = self._shown(call.callbacks, call.verbose, stack, validates=validation is not None)
            self._require_built().logs.take_weights(self._setup.trained)
            self._set_idle([])  # until a run reaches its checkpoint
            self._validation.value = validation
            stack.callback(setattr, self._validation, "value", None)
            stack.callback(forget_validation_data, self)
            loop = replace(source.call, callbacks=callbacks)
            if run is not None:
                loop, callbacks = run.around(loop, source.data.x)
                stack.enter_context(callbacks.running())
            return super().fit(**loop.for_keras(source.data, None if validation is None else validation.for_loop(run)))

    def _prepared_fit(self, call: FitCall, run: SavedRun | None) -> tuple[Source, Checked | None, Plan]:
        """What a `fit` trains on, its validation data, and what its steps can rely on; each stage makes a new value."""
        data, validation = read_call(call, self._setup.all_names)
        absent = self._setup.without_targets(data.specs)
        self._build(data.specs, data)
        training = self._with_checked_labels(data, shuffle=call.shuffle)
        held_out = None if validation is None else self._with_checked_labels(validation, argument="validation_data")
        unfitted = unfitted_heads(self._setup.heads)  # before a checkpoint is loaded
        seed = None if run is None else run.begin(training.data, None if held_out is None else held_out.data, call)
        self._fit_scalings(unfitted, training.data, call)
        source = self._batched(training.data, call, run, seed)
        plan = self._planned(call.class_weight, training.plan, callbacks_of(call.callbacks))
        return source, held_out, replace(plan, absent=absent)

    def _fit_scalings(self, heads: list[NamedHead], data: Data, call: FitCall) -> None:
        """Learns the scalings of some heads from the data of a `fit`."""
        names, strategy = self._setup.all_names, self.distribute_strategy
        fit_scalings(heads, data, call.steps_per_epoch, names, self.update_spec, strategy, eagerly=self._runs_eagerly)

    def _batched(self, data: Data, call: FitCall, run: SavedRun | None, seed: int | None) -> Source:
        """The data as Keras's loop reads them: in windows where an update takes several batches, in order in a run."""
        size = self._assert_ready("fit").gradient_accumulation_steps
        is_python = data.batches is not None
        if size == 1 and (run is None or not (data.is_arrays or is_python)):
            return Source(data._replace(first=None), call)
        argument = "`gradient_accumulation_steps`" if size > 1 else "`Checkpoint`"
        batches = as_batches(data, call, size, argument, seed)
        if size == 1:
            return batches
        ahead = 0 if run is not None and is_python else 1  # what Python draws, a run draws in time
        windows, steps = in_windows(batches.data.x, size, ahead, self.distribute_strategy, call.steps_per_epoch)
        return Source(batches.data._replace(x=windows), replace(batches.call, steps_per_epoch=steps))

    def _with_checked_labels(self, data: Data, *, shuffle: bool | str = False, argument: str = "x") -> Checked:
        """Checks arrays of labels at once, and other batches outside of what XLA compiles."""
        ranks = repr(tf.nest.map_structure(lambda spec: None if spec is None else spec.shape.rank, data.specs))
        if not self._assert_ready("fit").check_labels:
            return Checked(data, Plan(ranks))
        predictions = self._shapes.predictions
        masked = {name for name, shown in predictions.items() if shown.masked}  # only a batch can tell which labels count
        complete = set(self._setup.all_names) - masked

        def check(parts: Dataset) -> None:
            batch = unpack(parts, self._setup.all_names)
            for name in batch.targets.keys() - masked:
                weights, spec = batch.sample_weights.get(name), predictions[name].spec
                if argument != "x":  # sequences may be longer there, or shorter
                    inner = range(1, len(spec.shape) - 1)
                    spec = tf.TensorSpec([None if i in inner else n for i, n in enumerate(spec.shape)], spec.dtype)
                _, weights = self._setup.head(name).mask_missing(batch.targets[name], weights, spec, None)
                if tf.executing_eagerly() and not bool(tf.reduce_all(weights > 0)):
                    complete.discard(name)

        if data.is_arrays:
            try:
                is_checked = check_arrays(check, data.y, data.sample_weight)
            except ValueError as error:
                if argument == "x":
                    raise
                raise ValueError(f"In `{argument}`: {error}") from error
            known = frozenset(complete if is_checked else ())
            return Checked(data, Plan(ranks, is_checked and not masked, known))
        if self.jit_compile and (data.batches is not None or isinstance(data.x, tf.data.Dataset)):
            dataset = data.as_dataset(None, None, shuffle, "`jit_compile`")
            # What Python makes is lost if it is read and not used, and may draw random numbers.
            dataset = checked(check, dataset, ahead=data.batches is None)
            return Checked(data._replace(x=dataset, batches=None), Plan(ranks))
        return Checked(data, Plan(ranks))

    def _checked_for_evaluation(self, data: Data) -> Checked:
        """As `_with_checked_labels`; of arrays that are the validation data of a `fit`, the labels were checked before."""
        earlier = self._validation.value
        if data.is_arrays and earlier is not None:
            before, now = (tf.nest.flatten((labels.y, labels.sample_weight)) for labels in (earlier.data, data))
            if len(before) == len(now) and all(map(operator.is_, before, now)):
                return Checked(data, earlier.plan)
        return self._with_checked_labels(data)

    def _checked_batch(self, x: Dataset, y: Nested, sample_weight: Nested) -> Data:
        """A batch as arrays, with labels checked if it goes to a step that XLA compiles, which has no errors."""
        data = read_arrays(x, y, sample_weight, self._setup.all_names)
        if self.jit_compile:
            self._build(data.specs, data)
            self._with_checked_labels(data)
        return data

    def _shown(
        self, callbacks: Callbacks, verbose: int | str, stack: ExitStack | None = None, *, validates: bool = False
    ) -> Callbacks:
        """Callbacks with a progress line that can be read; those of `fit` also with one that reports skipped updates.

        A progress line of the user's own stays what it is, and so does a `CallbackList` after the `stack` of `fit`.
        """
        listed = callbacks_of(callbacks)
        if stack is not None:
            resolve_monitor_modes(listed, self._setup.heads)
            for callback in listed:
                if hasattr(callback, "check_fit"):
                    callback.check_fit(listed, validates=validates)
            first = EpochEnd(list(listed))  # so that a checkpoint then holds what it changes
            first.set_model(self)  # as a `CallbackList` does not
            listed.insert(0, first)
            if isinstance(callbacks, keras.callbacks.CallbackList):  # which another `fit` may share
                stack.callback(listed.remove, first)
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        if verbose == 0 or any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in listed):
            return listed

        def shown(logs: Logs) -> dict[str, Tensor]:
            return dict(logs or {}) if self.log_metrics is None else self.log_metrics.shown(logs or {})

        return [*listed, ProgressLine(shown)]

    def _planned(
        self,
        class_weight: ClassWeight | None,
        checked: Plan | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Plan:
        """What steps can rely on; `checked` is what the data of a `fit` have shown."""
        heads = [] if class_weight is None else weigh_classes(self._setup.trained, class_weight)
        by_head = {head.name: head.label_spec.class_weight for head in heads}
        frozen = tuple((name, tuple(weights.items())) for name, weights in by_head.items() if weights is not None)
        some = bool(self._idle) or any(is_zero(head.weight) for head in self._setup.trained)
        plan = Plan(idle=Idle.EXPECTED if some else Idle.POSSIBLE, class_weight=frozen)
        if checked is None:
            return plan
        is_checked = checked.labels_are_checked and class_weight is None
        plan = replace(plan, ranks=checked.ranks, labels_are_checked=is_checked)
        if not self._steps_are_ours:
            return plan
        # What users have written may change anything between two updates; the trainer's own methods change the plan.
        never = not some and not any(map(runs_code_of_users, callbacks))
        return replace(plan, fully_labelled=checked.fully_labelled, idle=Idle.NEVER if never else plan.idle)

    # ------------------------------------------------------------------------------------------- steps

    @property
    def _steps_are_ours(self) -> bool:
        """Whether training steps are known: another `train_step` may change labels, or log by itself."""
        return type(self).train_step is FittedTrainer.train_step

    def train_step(self, data: Dataset) -> dict[str, Tensor]:
        """One update, from one batch or from a window of batches; called by Keras."""
        parts, plan = batches_of_update(data, self._assert_ready("fit").gradient_accumulation_steps), self._plan.value
        batches = [self._unpack(batch) for batch in parts]
        built = self._require_built(trains=True)
        spec, logs = built.spec.under(plan, self.stage if plan.period is None else plan.period), built.logs
        update = clip(spec, compute_update(spec, batches, self.update_count, loss_scale(self.optimizer)))
        applied = apply_update(spec, self.optimizer, update, logs.count_batches(len(batches)))
        observe(spec, update, applied)
        logs.update(update, applied)
        return over_replicas(logs.training_logs)

    def test_step(self, data: Dataset) -> dict[str, Tensor]:
        """Adds one batch to the evaluation; called by Keras."""
        batch = self._unpack(data)
        built = self._require_built()
        running, logs = built.spec.running, built.logs
        checks = running.check_labels and not self._plan.value.labels_are_checked
        spec = replace(built.spec, running=replace(running, check_labels=checks))
        logs.add_evaluated(**evaluate_batch(spec, batch, logs.weights.read_value()))
        return over_replicas(lambda: logs.evaluation_logs(list(batch.targets)))

    def make_train_function(self, force: bool = False) -> TrainFunction:
        """Makes the function that Keras calls for each step."""
        if self.train_function is None or force:
            self._assert_ready("fit")
            self.train_function = TrainFunction(self, "train_function", super().make_train_function)
        function: TrainFunction = self.train_function
        return function

    def make_test_function(self, force: bool = False) -> StepFunction:
        """Makes the function that Keras calls for each step of an evaluation."""
        if self.test_function is None or force:
            self.test_function = StepFunction(self, "test_function", super().make_test_function)
        function: StepFunction = self.test_function
        return function

    def make_predict_function(self, force: bool = False) -> Function:
        """Makes the function that Keras calls for each step of `predict`."""
        if self.predict_function is None or force:
            super().make_predict_function(force)
            omit_retracing_warning(self.predict_function)
        function: Function = self.predict_function
        return function

    def _replan(self, **changes: Any) -> None:
        """Changes the plan of the next steps of `fit`."""
        if isinstance(self.train_function, TrainFunction):
            self.train_function.plan = replace(self.train_function.plan, **changes)

    @contextmanager
    def _in_phase(self, phase: str | None, plan: Plan | None = None) -> Iterator[None]:
        """A context of a phase, whose training steps, if there are any, are made with a plan."""
        before, self._phase = self._phase, phase
        try:
            with nullcontext() if plan is None else self.make_train_function().planned(plan):
                yield
        finally:
            self._phase = before

    @contextmanager
    def _evaluating(self, *, validates: bool = False) -> Iterator[None]:
        """A context of an evaluation, after which, while `fit` runs, the metrics of the epoch are as before.

        A callback may evaluate at any batch, with the current weights of heads. Training and evaluation share the metrics,
        which an evaluation resets. With `validates`, `fit` evaluates, with the weights of its beginning.
        """
        built = self._built
        if self._phase is None or built is None:
            if built is not None:
                built.logs.take_weights(self._setup.trained)
            yield
            return
        variables = [tensor_variable(variable) for metric in self.metrics for variable in metric.variables]
        variables += [*built.logs.counters, *built.spec.running.faults.state]
        copies = self.distribute_strategy.experimental_local_results
        before = RollBack([copy for variable in variables for copy in copies(variable)])
        self.reset_metrics()
        if not validates:
            built.logs.take_weights(self._setup.trained)
        try:
            with self._in_phase("validation"):
                yield
        finally:
            before.restore()

    def _latest_logs(self, logs: Logs) -> Logs:
        """The logs of a step, read again from the metrics, because Keras would add up those of several workers."""
        if self._built is None or not isinstance(logs, dict):
            return logs
        metrics, network = self._built.logs, self._built.spec.network
        if self._phase == "fit":  # where no update was counted, a `train_step` of the user's own logs by itself
            read = metrics.training_logs(at_end=True) if int(tf.convert_to_tensor(metrics.batches)) else {}
        else:
            present = [head for head in network.heads if f"{head.name}_loss" in logs]
            present += [head for head in network.measured if any(f"{head.name}_{name}" in logs for name in head.results())]
            names = [head.name for head in present]
            read = metrics.evaluation_logs(names)
        latest: Config = {name: read.get(name, value) for name, value in logs.items()}
        # Numbers are Python's, as in the logs of Keras.
        return {name: as_python(value.numpy() if hasattr(value, "numpy") else value) for name, value in latest.items()}
