"""`fit` and evaluations, stage by stage: a call is read and checked, the trainer built, a run resumed, batches grouped."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace

import keras
import tensorflow as tf

from multihead._data.batch import unpack
from multihead._data.call import FitCall, Source, as_batches, read_call
from multihead._data.data import Data, in_windows
from multihead._data.reading import read_arrays
from multihead._ground.keras import ProgressLine, callbacks_of, forget_validation_data, runs_code_of_users
from multihead._ground.types import Callback, Callbacks, ClassWeight, Config, Dataset, Logs, Nested, Tensor
from multihead._ground.validation import quoted
from multihead._runs.run import SavedRun
from multihead._trainer.building import build, check_trained, metrics_of_epoch, runs_eagerly
from multihead._trainer.keras_trainer import KerasTrainer
from multihead._trainer.options import CompileOptions
from multihead._trainer.state import Checked, TrainerState
from multihead._trainer.step_functions import StepFunction
from multihead._update.scaling import fit_scalings, unfitted_heads
from multihead._update.spec import Idle, Plan
from multihead.heads._directions import resolve_monitor_modes
from multihead.heads._labels import check_arrays, checked
from multihead.heads._named import weigh_classes
from multihead.heads._value import is_zero
from multihead.telemetry._epoch_end import EpochEnd


def _prepared(
    trainer: KerasTrainer, state: TrainerState, call: FitCall, run: SavedRun | None
) -> tuple[Source, Checked | None, Plan]:
    """Reads and checks a call of `fit`, and builds for it; each stage makes a new value.

    Returns what is trained on, with the call for Keras's loop; the validation data; and what steps can rely on.
    """
    data, validation = read_call(call, state.setup.all_names)
    absent = None if data.specs is None else state.setup.without_targets(data.specs)
    build(trainer, state, data.specs, data)
    check_trained(trainer, state)
    training = _with_checked_labels(state, data, in_xla=trainer.jit_compile, shuffle=call.shuffle)
    held_out = None
    if validation is not None:
        held_out = _with_checked_labels(state, validation, in_xla=trainer.jit_compile, argument="validation_data")
    unfitted, steps = unfitted_heads(state.setup.heads), call.steps_per_epoch  # before a checkpoint is loaded
    seed = None if run is None else run.begin(training.data, None if held_out is None else held_out.data, call)
    names, strategy, eagerly = state.setup.all_names, trainer.distribute_strategy, runs_eagerly(trainer)
    fit_scalings(unfitted, training.data, steps, names, trainer.update_spec, strategy, eagerly=eagerly)
    source = _batched(training.data, call, state.require_options("fit"), strategy, run, seed)
    plan = planned(trainer, state, call.class_weight, training.plan, callbacks_of(call.callbacks))
    return source, held_out, replace(plan, absent=absent)


@contextmanager
def running_fit(trainer: KerasTrainer, state: TrainerState, call: FitCall, run: SavedRun | None) -> Iterator[Config]:
    """A context in which `fit` runs, with the arguments for Keras's loop. `run`: None if none is saved."""
    (data, call), validation, plan = _prepared(trainer, state, call, run)
    with in_phase(trainer, state, "fit", plan), ExitStack() as stack:
        callbacks = callbacks_of_fit(trainer, state, call, stack, validates=validation is not None)
        state.require_built().logs.take_weights(state.setup.trained)
        _begin_without_idle_heads(state)
        state.validation = validation
        stack.callback(setattr, state, "validation", None)
        stack.callback(forget_validation_data, trainer)
        loop = replace(call, callbacks=callbacks)
        if run is not None:
            loop, callbacks_of_run = run.around(loop, data.x)
            stack.enter_context(callbacks_of_run.running())
        yield loop.for_keras(data, None if validation is None else validation.for_loop(run))


def _begin_without_idle_heads(state: TrainerState) -> None:
    """Makes no head idle, until a run reaches its checkpoint."""
    if state.idle_until_fit:
        warnings.warn(
            f"`fit` begins without idle heads, so it trains {quoted(state.idle_until_fit)}, which `set_idle` made idle "
            "before. Call `set_idle` in a callback's `on_train_begin`, or give the head `learning_rate_multiplier=0`.",
            UserWarning,
            stacklevel=2,
        )
    state.idle_until_fit = ()
    state.set_idle([])


def _batched(
    data: Data,
    call: FitCall,
    options: CompileOptions,
    strategy: tf.distribute.Strategy,
    run: SavedRun | None,
    seed: int | None,
) -> Source:
    size, is_python = options.gradient_accumulation_steps, data.batches is not None
    if size == 1 and (run is None or not (data.is_arrays or is_python)):
        return Source(data._replace(first=None), call)
    argument = "`gradient_accumulation_steps`" if size > 1 else "`Checkpoint`"
    batches = as_batches(data, call, size, argument, seed)
    if size == 1:
        return batches
    ahead = 0 if run is not None and is_python else 1  # a run saves the state of what draws, so nothing is read ahead
    windows, steps = in_windows(batches.data.x, size, ahead, strategy, call.steps_per_epoch)
    return Source(batches.data._replace(x=windows), replace(batches.call, steps_per_epoch=steps))


# ------------------------------------------------------------------------------------------- labels


def _with_checked_labels(
    state: TrainerState, data: Data, *, in_xla: bool, shuffle: bool | str = False, argument: str = "x"
) -> Checked:
    """Checks arrays of labels at once, and other batches outside of what XLA compiles."""
    setup, predictions = state.setup, state.shapes.predictions
    ranks = repr(tf.nest.map_structure(lambda spec: None if spec is None else spec.shape.rank, data.specs))
    if not state.require_options("fit").check_labels:
        return Checked(data, Plan(ranks))
    masked = {name for name, shown in predictions.items() if shown.masked}  # only a batch can tell which labels count
    complete = set(setup.all_names) - masked

    def check(parts: Dataset) -> None:
        batch = unpack(parts, setup.all_names)
        for name in (name for name in batch.targets if name not in masked):
            weights, spec = batch.sample_weights.get(name), predictions[name].spec
            if argument != "x":  # sequences may be longer there, or shorter
                inner = range(1, len(spec.shape) - 1)
                spec = tf.TensorSpec([None if i in inner else n for i, n in enumerate(spec.shape)], spec.dtype)
            _, weights = setup.head(name).mask_missing(batch.targets[name], weights, spec, None)
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
    if in_xla and (data.batches is not None or isinstance(data.x, tf.data.Dataset)):
        dataset = data.as_dataset(None, None, shuffle, "`jit_compile`")
        # What Python makes is lost if it is read and not used, and may draw random numbers.
        dataset = checked(check, dataset, ahead=data.batches is None)
        return Checked(data._replace(x=dataset, batches=None), Plan(ranks))
    return Checked(data, Plan(ranks))


def prepared_batch(trainer: KerasTrainer, state: TrainerState, x: Dataset, y: Nested, sample_weight: Nested) -> Data:
    """A batch as arrays, with labels checked if it goes to a step that XLA compiles, which has no errors."""
    data = read_arrays(x, y, sample_weight, state.setup.all_names, is_batch=True)
    if trainer.jit_compile:
        build(trainer, state, data.specs, data)
        _with_checked_labels(state, data, in_xla=True)
    return data


# ------------------------------------------------------------------------------------------- plans and phases


def planned(
    trainer: KerasTrainer,
    state: TrainerState,
    class_weight: ClassWeight | None,
    checked: Plan | None = None,
    callbacks: Sequence[Callback] = (),
) -> Plan:
    """What steps can rely on; `checked` is what the data of a `fit` have shown."""
    heads = [] if class_weight is None else weigh_classes(state.setup.trained, class_weight)
    by_head = {head.name: head.label_spec.class_weight for head in heads}
    frozen = tuple((name, tuple(weights.items())) for name, weights in by_head.items() if weights is not None)
    some = bool(state.idle) or any(is_zero(head.weight) for head in state.setup.trained)
    plan = Plan(idle=Idle.EXPECTED if some else Idle.POSSIBLE, class_weight=frozen)
    if checked is None:
        return plan
    is_checked = checked.labels_are_checked and class_weight is None
    plan = replace(plan, ranks=checked.ranks, labels_are_checked=is_checked)
    if type(trainer).train_step is not KerasTrainer.train_step:  # which may change labels, or log by itself
        return plan
    # What users have written may change anything between two updates; the trainer's own methods change the plan.
    never = not some and not any(map(runs_code_of_users, callbacks))
    return replace(plan, fully_labelled=checked.fully_labelled, idle=Idle.NEVER if never else plan.idle)


@contextmanager
def in_phase(trainer: KerasTrainer, state: TrainerState, phase: str | None, plan: Plan | None = None) -> Iterator[None]:
    """A context of a phase, whose training steps, if there are any, are made with a plan."""
    before, state.phase = state.phase, phase
    try:
        with nullcontext() if plan is None else trainer.make_train_function().planned(plan):
            yield
    finally:
        state.phase = before


def prepared_evaluation(trainer: KerasTrainer, state: TrainerState, data: Data) -> Data:
    """Builds for the data of an evaluation and checks their labels, unless that was done at the beginning of a `fit`."""
    build(trainer, state, data.specs, data)
    evaluated = state.validation
    if evaluated is not None and data is not evaluated.data:
        before, now = (tf.nest.flatten((labels.y, labels.sample_weight)) for labels in (evaluated.data, data))
        are_same = data.is_arrays and len(before) == len(now) and all(map(operator.is_, before, now))
        evaluated = Checked(data, evaluated.plan) if are_same else None
    if evaluated is None:
        evaluated = _with_checked_labels(state, data, in_xla=trainer.jit_compile)
    function = trainer.make_test_function()
    if isinstance(function, StepFunction):  # none is traced in a run before its checkpoint
        function.plan = Plan(evaluated.plan.ranks, evaluated.plan.labels_are_checked)
    return evaluated.data


@contextmanager
def evaluating(trainer: KerasTrainer, state: TrainerState, *, validates: bool = False) -> Iterator[None]:
    """A context of an evaluation, after which, while `fit` runs, the metrics of the epoch are as before.

    A callback may evaluate at any batch, with the current weights of heads. Training and evaluation share the metrics,
    which an evaluation resets. With `validates`, it is the validation of `fit`, with the weights from its beginning.
    """
    built = state.built
    if state.phase is None or built is None:
        if built is not None:
            built.logs.take_weights(state.setup.trained)
        yield
        return
    before = metrics_of_epoch(trainer, built)
    trainer.reset_metrics()
    if not validates:
        built.logs.take_weights(state.setup.trained)
    try:
        with in_phase(trainer, state, "validation"):
            yield
    finally:
        before.restore()


# ------------------------------------------------------------------------------------------- callbacks


def callbacks_of_fit(
    trainer: KerasTrainer, state: TrainerState, call: FitCall, stack: ExitStack, *, validates: bool
) -> Callbacks:
    """The callbacks of a `fit`, and one that reports skipped updates; a `CallbackList` is as before after the `stack`."""
    listed = callbacks_of(call.callbacks)
    resolve_monitor_modes(listed, state.setup.heads)
    for callback in listed:
        if hasattr(callback, "check_fit"):
            callback.check_fit(listed, validates=validates)
    first = EpochEnd(list(listed))  # so that a checkpoint then holds what it changes
    first.set_model(trainer)  # as a `CallbackList` does not
    listed.insert(0, first)
    if isinstance(call.callbacks, keras.callbacks.CallbackList):  # which another `fit` may share
        stack.callback(listed.remove, first)
        return call.callbacks
    return with_progress_line(trainer, listed, call.verbose)


def with_progress_line(trainer: KerasTrainer, callbacks: Callbacks, verbose: int | str) -> Callbacks:
    """Callbacks with a progress line of a few values, unless the user has passed one."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    listed = callbacks_of(callbacks)
    if verbose == 0 or any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in listed):
        return listed

    def shown(logs: Logs) -> dict[str, Tensor]:
        return dict(logs or {}) if trainer.log_metrics is None else trainer.log_metrics.shown(logs or {})

    return [*listed, ProgressLine(shown)]
