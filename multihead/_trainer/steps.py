"""The steps of training and evaluation, and the functions that Keras calls for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import tensorflow as tf

from multihead._data.windows import batches_of_update
from multihead._ground.keras import steps_at_once
from multihead._ground.optimizers import loss_scale
from multihead._ground.replicas import over_replicas
from multihead._ground.tensors import unchecked
from multihead._ground.types import Dataset, Given, Logs, Nested, Tensor, Trainer
from multihead._trainer.state import TrainerState
from multihead._update.apply import apply_update, clip, observe
from multihead._update.evaluate import evaluate_batch
from multihead._update.labels import read_labels
from multihead._update.pipeline import compute_update
from multihead._update.spec import Plan
from multihead._update.weights import head_weights_at
from multihead.heads._named import weigh_classes
from multihead.heads._value import is_zero

Step = Callable[[Iterator[Nested]], Logs]
"""From an iterator of batches to logs."""


class SteppedTrainer(TrainerState):
    """What Keras calls for each step of training and evaluation."""

    @property
    def _steps_are_ours(self) -> bool:
        """Whether training steps are known: another `train_step` may change labels, or log by itself."""
        return type(self).train_step is SteppedTrainer.train_step

    def train_step(self, data: Dataset) -> dict[str, Tensor]:
        """One update, from one batch or from a window of batches; called by Keras."""
        every_head, plan = self._phase is not None, self._plan.value
        found = batches_of_update(data, self._assert_ready("fit").gradient_accumulation_steps)
        batches = [self._unpack(batch, every_head=every_head) for batch in found]
        built = self._require_built()
        spec, logs = built.trainable().under(plan, self.stage if plan.period is None else plan.period), built.logs
        update = clip(spec, compute_update(spec, batches, self.update_count, loss_scale(self.optimizer)))
        applied = apply_update(spec, self.optimizer, update, logs.count_batches(len(batches)))
        observe(spec, update, applied)
        logs.update(update, applied)
        return over_replicas(logs.training_logs)

    def test_step(self, data: Dataset) -> dict[str, Tensor]:
        """Adds one batch to the evaluation; called by Keras."""
        batch = self._unpack(data)
        built = self._require_built()
        spec, logs = built.spec, built.logs
        labels = read_labels(spec.network, spec.predictions, batch, check=spec.check_labels)
        step = self.update_count
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

    def _heads_stay(self) -> bool:
        """Whether all heads are awake, with weights above 0, and remain so unless `set_weight` or `set_idle` is called."""
        weights = [head.weight for head in self._setup.trained]
        return self._idle.never and not any(map(is_zero, weights))

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
        if self._phase == "fit":
            return self._built.training_logs(logs)
        return self._built.evaluation_logs(logs, self.update_count)


class StepFunction:
    """A step of Keras, one function for each plan.

    Keras would trace it for tensors of unknown rank if it were called with data of other ranks, so these drop the functions.

    Args:
        trainer: The trainer.
        make: Makes the function for a plan, which is not traced yet.

    Attributes:
        plan: What the next steps can rely on.
    """

    def __init__(self, trainer: Trainer, make: Callable[[Plan], Step]) -> None:
        self._trainer, self._make = trainer, make
        self.plan = Plan()
        self._functions: dict[Plan, Step] = {}
        self._ranks: str | None = None

    def __call__(self, iterator: Iterator[Nested]) -> Logs:
        return self._run(iterator)

    def _run(self, iterator: Iterator[Nested], period: int | None = None) -> Logs:
        plan = replace(self.plan, period=period)
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

    _period: int | None = None  # the number of the present period, where there are several
    _calls_left: int | None = 0  # before the number of updates must be read again; None: never

    def take(self, specs: Nested) -> None:
        super().take(specs)
        self._calls_left = 0

    def __call__(self, iterator: Iterator[Nested]) -> Logs:
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
