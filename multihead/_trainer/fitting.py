"""`fit` as a pipeline: a call is read, built for, checked, resumed, grouped and run; and the steps that Keras calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import keras
import tensorflow as tf

from multihead._data.arguments import Call, read_call
from multihead._data.arrays import read_arrays
from multihead._data.batch import unpack
from multihead._data.data import Data, num_examples
from multihead._data.windows import batches_of_update
from multihead._ground.keras import ProgressLine, callbacks_of, steps_at_once
from multihead._ground.optimizers import loss_scale
from multihead._ground.replicas import over_replicas
from multihead._ground.tensors import unchecked
from multihead._ground.types import Callback, Config, Dataset, Given, Logs, Nested, Tensor, Trainer
from multihead._ground.validation import as_python
from multihead._runs.run import Run, RunCallbacks
from multihead._trainer.state import TrainerState, check_every_head
from multihead._update.apply import apply_update, clip, observe
from multihead._update.evaluate import evaluate_batch
from multihead._update.labels import read_labels
from multihead._update.pipeline import compute_update
from multihead._update.scaling import fit_scalings, unknown
from multihead._update.spec import Plan
from multihead._update.weights import head_weights_at
from multihead.heads._directions import tell_directions
from multihead.heads._labels import check_arrays, checked
from multihead.heads._named import weigh_classes
from multihead.heads._value import is_zero
from multihead.telemetry._epoch_end import EpochEnd

Step = Callable[[Iterator[Nested]], Logs]  # from an iterator of batches


class FittedTrainer(TrainerState):
    """How a trainer is fitted, and what Keras calls for each step of training and evaluation."""

    def _fit(self, arguments: Config, run: Run | None) -> Callback:
        """A call of `fit`; without a checkpoint, `run` is None."""
        steps = self._assert_ready("fit").gradient_accumulation_steps
        class_weight = arguments.pop("class_weight")
        read = read_call(arguments, self._setup.all_names)
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
        size = num_examples(data.x) if data.is_arrays else data.length
        if isinstance(data.x, tf.data.Dataset):
            size = int(data.x.cardinality())
        if size == 0:
            raise ValueError(
                f"`x` must yield at least one batch. Received: x of type {type(data.x).__name__} without examples. Check "
                "its source: a file, a filter or a split may be empty."
            )
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
                if argument != "x":  # sequences may be longer there, or shorter
                    inner = range(1, len(spec.shape) - 1)
                    spec = tf.TensorSpec([None if i in inner else n for i, n in enumerate(spec.shape)], spec.dtype)
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
        first = EpochEnd(list(given), self._steps_are_ours)  # so that a checkpoint then holds what it changes
        first.set_model(self)  # as a `CallbackList` does not
        given.insert(0, first)
        is_list = isinstance(callbacks, keras.callbacks.CallbackList)
        return self._with_progress(call.with_others(callbacks=callbacks if is_list else given))

    def _with_progress(self, call: Call) -> Call:
        """The call with a progress line that can be read.

        Nothing changes if nothing is printed, or if the call has a progress line or a `CallbackList` of its own.
        """
        callbacks = call.others["callbacks"]
        given = callbacks_of(callbacks)
        has_own = any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in given)
        if call.others["verbose"] == 0 or has_own or isinstance(callbacks, keras.callbacks.CallbackList):
            return call

        def shown(logs: dict[str, Tensor]) -> dict[str, Tensor]:
            return dict(logs) if self.log_metrics is None else self.log_metrics.shown(logs)

        return call.with_others(callbacks=[*given, ProgressLine(shown)])

    def _run(self, call: Call, class_weight: Given, *, labels_are_checked: bool) -> Callback:
        """Runs Keras's loop."""
        classes, idle = self._frozen(class_weight), self._may_be_idle
        plan = Plan(labels_are_checked and class_weight is None, may_be_idle=idle, class_weight=classes)
        if self._steps_are_ours:
            weigh = not any(is_zero(head.weight) for head in self._setup.trained)
            awake = self._built is None or bool(tf.reduce_all(tf.convert_to_tensor(self._built.spec.awake) > 0))
            stay = weigh and awake and not idle and not self.jit_compile  # unless `set_weight` or `set_idle` is called
            plan = replace(plan, complete=call.data.complete, heads_stay=stay)
        self._set_idle([])  # until a run reaches its checkpoint
        run = call.others["callbacks"]
        with self._in_phase("fit", plan), run.running() if isinstance(run, RunCallbacks) else nullcontext():
            self.train_function.take(call.data.specs)
            return super().fit(**call.for_keras())

    # ------------------------------------------------------------------------------------------- steps

    @property
    def _steps_are_ours(self) -> bool:
        """Whether training steps are known: another `train_step` may change labels, or log by itself."""
        return type(self).train_step is FittedTrainer.train_step

    def train_step(self, data: Dataset) -> dict[str, Tensor]:
        """One update, from one batch or from a window of batches; called by Keras."""
        every_head, plan = self._phase is not None, self._plan.value
        found = batches_of_update(data, self._assert_ready("fit").gradient_accumulation_steps)
        batches = [self._unpack(batch, every_head=every_head) for batch in found]
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
        spec, logs, step = built.spec, built.logs, self.update_count
        labels = read_labels(spec.network, spec.predictions, batch, check=spec.check_labels)
        weights = head_weights_at(self._setup.trained, step)
        logs.add_evaluated(**evaluate_batch(spec.network, batch.inputs, labels, weights, spec.labels_measured(batch)))
        return over_replicas(lambda: logs.evaluation_logs(weights, list(batch.targets), step))

    def make_train_function(self, force: bool = False) -> Given:
        """Makes the function that Keras calls for each step."""
        if self.train_function is None or force:
            self._assert_ready("fit")
            self.train_function = TrainFunction(self, partial(self._made_by_keras, "train_function"))
        return self.train_function

    def make_test_function(self, force: bool = False) -> Given:
        """Makes the function that Keras calls for each step of an evaluation."""
        if self.test_function is None or force:
            self.test_function = StepFunction(self, partial(self._made_by_keras, "test_function"))
        return self.test_function

    def _replan(self, **changes: Given) -> None:
        """Changes the plan of the next steps of `fit`."""
        if isinstance(self.train_function, TrainFunction):
            self.train_function.plan = replace(self.train_function.plan, **changes)

    @contextmanager
    def _in_phase(self, phase: str | None, plan: Plan | None = None) -> Iterator[None]:
        """A context of a phase, whose training steps, if there are any, are made with a plan."""
        before, self._phase = self._phase, phase
        function = None if plan is None else self.make_train_function()
        if function is not None:
            function.plan, plan = plan, function.plan
        try:
            yield
        finally:
            self._phase = before
            if function is not None:
                function.plan = plan

    def _frozen(self, class_weight: Given) -> tuple[tuple[str, tuple[tuple[int, float], ...]], ...]:
        """Weights of classes by head name, checked, as a plan has them."""
        if class_weight is None:
            return ()
        heads = self._setup.trained
        weighed = [(head.name, head.label_spec.class_weight) for head in weigh_classes(heads, class_weight)]
        return tuple((name, tuple(weights.items())) for name, weights in weighed if weights is not None)

    def _made_by_keras(self, name: str, plan: Plan) -> Step:
        """Makes the train or test function of Keras with a plan, and leaves the attribute as it was."""
        before = getattr(self, name)
        getattr(super(), f"make_{name}")(force=True)
        made = getattr(self, name)
        setattr(self, name, before)

        def step(iterator: Iterator[Nested]) -> Logs:
            before, self._plan.value = self._plan.value, plan
            try:
                return made(iterator)
            finally:
                self._plan.value = before

        return step

    def _latest_logs(self, logs: Logs) -> Logs:
        """The logs of a step, read again from the metrics, because Keras would add up those of several workers."""
        if self._built is None or not isinstance(logs, dict):
            return logs
        metrics, network = self._built.logs, self._built.spec.network
        if self._phase == "fit":  # where no update was counted, a `train_step` of the user's own logs by itself
            read = metrics.training_logs() if int(metrics.batches) else {}
        else:
            step, present = self.update_count, [head for head in network.heads if f"{head.name}_loss" in logs]
            present += [each for each in network.measured if any(f"{each.name}_{name}" in logs for name in each.results())]
            names = [head.name for head in present]
            read = metrics.evaluation_logs(head_weights_at(network.heads, step), names, step)
        found: Config = {name: read.get(name, value) for name, value in logs.items()}
        # Numbers are Python's, as in the logs of Keras.
        return {name: as_python(value.numpy() if hasattr(value, "numpy") else value) for name, value in found.items()}


class StepFunction:
    """A step of Keras, one function for each plan, which `make` makes, not traced yet; `plan` is that of the next steps.

    Keras would trace it for tensors of unknown rank if it were called with data of other ranks, so these drop the functions.
    """

    _period: int | None = None  # the number of the present period of training, where there are several

    def __init__(self, trainer: Trainer, make: Callable[[Plan], Step]) -> None:
        self._trainer, self._make = trainer, make
        self.plan = Plan()
        self._functions: dict[Plan, Step] = {}
        self._ranks: str | None = None

    def __call__(self, iterator: Iterator[Nested]) -> Logs:
        plan = replace(self.plan, period=self._period)
        if plan not in self._functions:
            self._functions[plan] = self._make(plan)
        with unchecked(in_functions=True):  # values of nothing are NaN
            return self._functions[plan](iterator)

    def take(self, specs: Nested) -> None:
        """Prepares for other data: drops the functions if they were traced for another structure or other ranks."""
        ranks = repr(tf.nest.map_structure(lambda spec: None if spec is None else spec.shape.rank, specs))
        if self._ranks not in (None, ranks):
            self._functions.clear()
        self._ranks = ranks


class TrainFunction(StepFunction):
    """A training step, which is traced once for each period between changes of what is frozen.

    An error of an update that is not finite says where it comes from.
    """

    _calls_left: int | None = 0  # before the number of updates must be read again; None: never

    def take(self, specs: Nested) -> None:
        super().take(specs)
        self._calls_left = 0

    def __call__(self, iterator: Iterator[Nested]) -> Logs:
        self._enter_period()
        logs, failure = None, None
        try:
            logs = super().__call__(iterator)
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
