"""What `MultiHeadTrainer` knows from data: built on the first batch, and built again when heads or options change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from multihead._data.arrays import as_arrays
from multihead._data.data import Data
from multihead._ground.keras import (
    KerasHooks,
    Untracked,
    add_state,
    first_replica_variable,
    tensor_variable,
    unlock,
)
from multihead._ground.validation import quoted
from multihead._runs.resuming import is_over, make_run
from multihead._trainer.guarded import GuardedFunction
from multihead._trainer.options import CompileOptions
from multihead._trainer.spec import build_spec
from multihead._trainer.stages import StagedFunction
from multihead._trainer.trace import trace_predictions
from multihead._update.batch import Batch, as_tensors, check_rows, open_batch_size, sample_of, unpack, widened
from multihead._update.spec import UpdateSpec
from multihead._update.weights import head_weights_at
from multihead.heads._head import Head, weigh_classes
from multihead.heads._labels.data import check_arrays, checked
from multihead.rates import starts_of
from multihead.telemetry import LogMetrics


class BuiltFromData(KerasHooks, keras.Model):
    """The heads, options and state of a trainer, and what is created from them and from a batch's specs.

    Args:
        encoder: The encoder.
        name: Name of the model.
    """

    train_function: Any

    def __init__(self, encoder: Callable[[Any], Any], *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.encoder = encoder
        # The optimizer counts the updates itself; a second count of all of them would differ from its own where Keras
        # restores the weights of an earlier epoch.
        self.updates_before = add_state(self, "updates_before", (), dtype="int64")
        self.weighting: Any = None
        self.balancer: Any = None
        self.schedule: Any = None
        self.head_weights: Any = None
        self._heads = Untracked([])
        self._options: CompileOptions | None = None
        self._options_of_keras = Untracked({})
        # Known from data: the specs of a batch, the predictions of each built head, the leaves of the representation.
        self._specs = Untracked(None)
        self._predictions = Untracked({})
        self._num_leaves = 0
        # Built from both; None before, and again after `add_head`, `drop_head` and `compile`.
        self._spec: UpdateSpec | None = None
        self._fit_spec: UpdateSpec | None = None  # the same with other weights of classes, during a `fit` that has some
        self._logs: LogMetrics | None = None
        # 1 for each head that may be trained, 0 for idle ones; None before the trainer is built.
        self._awake = Untracked(None)
        self._idle_heads: list[str] = []
        self._may_be_idle = False
        self._steps_at_once = 1
        self._stage = 0  # the position of the stage in which training steps are traced
        self._wants_every_head = False
        self._is_in_fit = False
        self._run = Untracked(None)  # the run of a `fit` with a `Checkpoint`
        self._traced_for = Untracked({})  # by the name of a function that Keras traces: the structure and ranks of its data

    @property
    def heads(self) -> dict[str, Head]:
        """The registered heads by name, in the order in which they were added."""
        return {head.name: head for head in self._heads.value}

    @property
    def update_count(self) -> Any:
        """The number of updates applied so far, with this optimizer and those before it, an int64 scalar."""
        earlier = tf.identity(tensor_variable(self.updates_before).read_value())
        return earlier if self._options is None else earlier + tf.cast(tensor_variable(self.optimizer.iterations), tf.int64)

    @property
    def metrics(self) -> list[Any]:
        """All metrics: losses, figures of updates, and those of the heads; Keras resets them in every epoch."""
        return [] if self._logs is None else self._logs.all

    def _wake_all_but(self, idle: Sequence[str]) -> None:
        self._idle_heads = list(idle)
        if self._awake.value is not None:
            self._awake.value.assign(self._awake_heads())

    def _awake_heads(self) -> list[float]:
        return [float(name not in self._idle_heads) for name in self.heads]

    def _assert_ready(self, method: str) -> CompileOptions:
        if self._options is None:
            raise ValueError(
                f"`{method}` requires a compiled trainer. Received: a trainer that was not compiled since the last "
                "`add_head` or `drop_head`. Call `compile(optimizer, ...)` first."
            )
        return self._options

    def _built(self) -> tuple[UpdateSpec, LogMetrics]:
        if self._spec is None or self._logs is None:
            raise ValueError("The trainer is not built. Received: no data yet. Call `compute_gradients(batch)` first.")
        return self._spec, self._logs

    def _forget(self) -> None:
        """Drops everything that depends on the heads and on `compile`, except the heads' variables."""
        self.updates_before.assign(self.update_count)
        self._options, self._spec, self._logs = None, None, None
        self._awake.value, self._idle_heads = None, []

    def _num_updates(self) -> int:
        """The number of updates applied so far, as known to Python."""
        with tf.init_scope():
            return int(self.distribute_strategy.experimental_local_results(self.update_count)[0].numpy())

    @property
    def stage(self) -> int:
        """The number of the present period of training, from 0, if learning rates have `Stages`; otherwise 0.

        A `tf.function` of a custom training loop is traced for one period. Pass this number to it as a Python argument, so
        that it is traced again for the next.
        """
        return 0 if self._spec is None else self._spec.period_at(self._num_updates())

    def _spec_at_step(self) -> tuple[UpdateSpec, list[Any]]:
        """The specification of the next update in a custom training loop, and what must hold before it in a graph."""
        spec, stage = replace(self._built()[0], layers_every=0), self.stage
        following = spec.periods[stage + 1 :]
        if not following or tf.executing_eagerly():
            return spec.in_period(stage), []
        start, end = spec.periods[stage].start, following[0].start
        message = (
            f"This function was traced for the updates from {start} to {end - 1}, because learning rates have `Stages`. "
            "Pass `trainer.stage` to it as an argument, so that it is traced again for each stage"
        )
        check = tf.debugging.assert_less(self.update_count, tf.constant(end, tf.int64), message=message)
        return spec.in_period(stage), [check]

    def make_train_function(self, force: bool = False) -> Any:
        """Makes the function that Keras calls for each step; if there are several stages, one for each."""
        if self.train_function is not None and not force:
            return self.train_function
        options = self._assert_ready("fit")
        rates = [rate for head in self._heads.value for rate in (head.learning_rate, head.weight_decay)]
        has_stages = len(starts_of([options.encoder_learning_rate, options.encoder_weight_decay, *rates])) > 1
        if has_stages:
            self._stage = self.stage
        super().make_train_function(force=True)
        self.train_function = GuardedFunction(
            self.train_function,
            lambda: None if self._spec is None else self._spec.faults,
            lambda: bool(self.jit_compile) and not self.run_eagerly,
            self._pass_over,
        )
        if has_stages:
            make_next = partial(self.make_train_function, force=True)
            self.train_function = StagedFunction(self.train_function, self._updates_left, make_next, self._steps_at_once)
        return self.train_function

    def _with_run(self, checkpoint: Any, snapshot: Any, start: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a `fit` that is saved, and that goes on from a checkpoint if there is one."""
        self._run.value = make_run(self, checkpoint, arguments["callbacks"], snapshot, start, arguments)
        if snapshot is not None and is_over(snapshot, arguments.get("epochs", 1)):
            arguments = {**arguments, "initial_epoch": arguments.get("epochs", 1)}
        return {**arguments, "callbacks": self._run.value}

    def _pass_over(self, iterator: Any) -> Any:
        """In a run that goes on, draws the batches before its place; None from there on."""
        run = self._run.value
        return run.pass_over(iterator, self._steps_at_once) if run is not None and run.is_replaying else None

    @property
    def own_state(self) -> list[tf.Variable]:
        """The variables of a built, compiled trainer that belong to none of its parts, for `callbacks.Checkpoint`."""
        spec, logs = self._built()
        own = [tensor_variable(self.updates_before), self._awake.value, spec.faults.state, logs.broken.batches.value]
        return [*own, *(metric.number_variable for metric in logs.figures.metrics)]

    @property
    def compile_options(self) -> dict[str, Any]:
        """The arguments of `compile` by name, checked; empty if the trainer is not compiled."""
        return {} if self._options is None else self._options.by_name()

    @property
    def names_of_logs(self) -> list[str]:
        """The names of the figures that a step of training logs; none before the trainer is built."""
        return [] if self._logs is None else self._logs.names()

    def _updates_left(self) -> int | None:
        """The number of updates before the next stage begins; None if no stage follows."""
        if self._spec is None:
            return 1  # the first call builds
        following = self._spec.periods[self._stage + 1 :]
        return following[0].start - self._num_updates() if following else None

    @contextmanager
    def _requiring_every_head(self, required: bool) -> Iterator[None]:
        """A context in which every batch must, or need not, have targets for all heads."""
        before, self._wants_every_head = self._wants_every_head, required
        try:
            yield
        finally:
            self._wants_every_head = before

    def _check_every_head(self, targets: Mapping[str, Any]) -> None:
        absent = [name for name in self.heads if name not in targets]
        if self._wants_every_head and absent:
            raise ValueError(
                f"The targets must have a key for every head, but the head {quoted(absent)} has none in the data and would "
                f"never be trained. Received: targets for {quoted(targets)}; the heads are {quoted(self.heads)}. "
                "Correct the key, or add targets that are `ignore_label` or NaN where the label is missing."
            )

    def _prepared(self, batch: Any) -> Batch:
        """A batch of a custom training loop, as tensors. Unlike in `fit`, heads may be without targets."""
        with self._requiring_every_head(False):  # a callback may call this during `fit`
            return self._unpack(as_tensors(unpack(as_arrays("batch", tuple(batch)), list(self.heads))))

    def _unpack(self, data: Any) -> Batch:
        """Unpacks a batch, checks its keys, and builds for it whatever is not built yet."""
        batch = unpack(data, list(self.heads))
        batch = Batch(*as_tensors(tuple(batch)))  # Keras 3 passes the arrays of `train_on_batch` on if it runs eagerly
        self._check_every_head(batch.targets)
        check_rows(batch)
        specs = Batch(*open_batch_size(tuple(batch)))
        if self._runs_eagerly and tf.executing_eagerly():
            self._build_unless_built(specs, lambda: batch)
        else:
            with tf.init_scope():
                self._build_unless_built(specs)
        return batch

    def _build_unless_built(self, specs: Batch, sample: Callable[[], Batch | None] = lambda: None) -> None:
        """Builds what batches of some specs require, or looks at the modules again if sizes differ from those so far."""
        if self._lacks(specs.targets):
            self._build(specs, sample())
            return
        built = Batch(*self._specs.value)
        wider = widened(built, specs)
        if wider != built:
            self._build(specs, sample())  # an error, if the modules cannot take these sizes
            if wider != specs:
                with suppress(ValueError):  # they need known sizes
                    self._build(wider, sample())

    def _lacks(self, targets: Mapping[str, Any]) -> bool:
        """Whether a batch with these targets requires something that is not built yet."""
        built = [head.name for head in self._heads.value if head.name in self._predictions.value and head.is_built]
        return self._spec is None or any(name not in built for name in targets)

    def _renew(self, function: str, specs: Any) -> None:
        """Drops what Keras has traced for data of other ranks: it would trace it again for tensors of unknown rank."""
        key = repr(tf.nest.map_structure(lambda spec: None if spec is None else spec.shape.rank, specs))
        if self._traced_for.value.setdefault(function, key) != key:
            setattr(self, function, None)
        self._traced_for.value[function] = key

    def _build_for(self, data: Data) -> None:
        if data.specs is None:
            return  # known only from the first batch
        batch = unpack(data.specs, list(self.heads))
        self._check_every_head(batch.targets)

        def sample() -> Batch | None:
            found = data.sample() if self._runs_eagerly else None
            return None if found is None else Batch(*as_tensors(tuple(unpack(found, list(self.heads)))))

        self._build_unless_built(Batch(*open_batch_size(tuple(batch))), sample)

    @property
    def _runs_eagerly(self) -> bool:
        """Whether modules are never traced, so that their Python may depend on values."""
        return bool(self.run_eagerly) or tf.config.functions_run_eagerly()

    def _checked_for_xla(self, data: Data) -> Data:
        """A batch as arrays, with labels checked if it goes to a step that XLA compiles, which has no errors."""
        if self.jit_compile:
            self._build_for(data)
            return self._with_checked_labels(data)
        return data

    def _with_checked_labels(self, data: Data, shuffle: Any = False, *, of: str | None = None) -> Data:
        """The data, with arrays of labels checked at once, and what yields batches checked outside of what XLA compiles.

        Args:
            data: The data.
            shuffle: Whether to shuffle a `PyDataset`.
            of: The argument that the data are, if it is not `x`.
        """

        def check(data: Any) -> None:
            batch = unpack(data, list(self.heads))
            for name, targets in batch.targets.items():
                predictions = self._predictions.value[name]
                if not predictions.masked:  # else only a batch can tell which labels count
                    self.heads[name].mask_missing(targets, batch.sample_weights.get(name), predictions.spec, None)

        if self._options is None or not self._options.check_labels:
            return data
        if data.is_arrays:
            try:
                check_arrays(check, data.y, data.sample_weight)
            except ValueError as error:
                if of is None:
                    raise
                raise ValueError(f"In `{of}`: {error}") from error
        elif self.jit_compile and (data.batches is not None or isinstance(data.x, tf.data.Dataset)):
            dataset = data.as_dataset(None, None, shuffle, "`jit_compile`")
            return data._replace(x=checked(check, dataset), batches=None)
        return data

    def _build(self, specs: Any, sample: Batch | None = None) -> None:
        """Creates all variables for a batch's specs: of modules, metrics and, if compiled, methods and the optimizer.

        Args:
            specs: The specs of a batch, with open batch size.
            sample: Some examples, for modules that are not traced; None makes some of ones and zeros.
        """
        unlock(self)
        batch, heads = Batch(*specs), self._heads.value
        if self._runs_eagerly and sample is None:
            sample = sample_of(batch)
        with self.distribute_strategy.scope():
            traced = trace_predictions(self.encoder, heads, batch, self._predictions.value, sample)
            self._specs.value, self._num_leaves = tuple(batch), traced.num_leaves
            self._predictions.value.update(traced.predictions)
            for head in heads:
                head.loss.runs_eagerly = self._runs_eagerly
                if head.name in traced.predictions and head.name in batch.targets:
                    head.build(batch.targets[head.name], traced.predictions[head.name].spec)
            if self._options is not None:
                if self._logs is None:
                    self._awake.value = first_replica_variable(tf.constant(self._awake_heads()))
                self._spec = self._spec_of(heads, self._options)
                self._stage = self._spec.period_at(self._num_updates())
                if self._logs is None:
                    self._logs = LogMetrics(self._spec, self._options.telemetry, self._steps_at_once)
        self.built = True

    def _spec_of(self, heads: Sequence[Head], options: CompileOptions) -> UpdateSpec:
        """How updates of built heads are computed."""
        return build_spec(
            encoder=self.encoder,
            heads=heads,
            predictions=self._predictions.value,
            num_leaves=self._num_leaves,
            options=options,
            balancer=self.balancer,
            optimizer=self.optimizer,
            ownership=None if self._spec is None else self._spec.ownership,
            awake=self._awake.value,
            may_be_idle=self._may_be_idle,
            faults=None if self._spec is None else self._spec.faults,
        )

    @contextmanager
    def _weighing_classes(self, class_weight: Any, options: CompileOptions) -> Iterator[None]:
        """A context in which the labels of training also count by these weights of their classes, by head name."""
        if class_weight is None:
            yield
            return
        self._built()
        with self.distribute_strategy.scope():
            self._fit_spec = self._spec_of(weigh_classes(self._heads.value, class_weight), options)
        self.train_function = None  # what was traced before does not know of these weights, and nothing later may
        try:
            yield
        finally:
            self._fit_spec, self.train_function = None, None

    def _latest_logs(self, logs: Any) -> Any:
        """The logs of a step, read again from the metrics, because Keras would add up those of several workers."""
        if self._logs is None or not isinstance(logs, dict):
            return logs
        results = self._logs.training_logs()
        if set(results) != set(logs):
            present, step = [name for name in self.heads if f"{name}_loss" in logs], self.update_count
            results = self._logs.evaluation_logs(head_weights_at(self._heads.value, step), present, step)
        if set(results) != set(logs):
            return logs
        return {name: value.numpy() if hasattr(value, "numpy") else value for name, value in results.items()}
