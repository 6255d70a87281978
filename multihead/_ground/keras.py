"""Where the stacks differ: variables, models, metrics and losses of Keras 2 and Keras 3.

The rest of the package uses the names of this folder and does not depend on the Keras version.
"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Generic, TypeVar

import keras
import tensorflow as tf

from multihead._ground.types import Callback, Config, Function, Layer, Logs, Loss, Metric, Nested, Tensor, Variable

Value = TypeVar("Value")

KERAS_3 = int(keras.__version__.split(".")[0]) >= 3  # which has its own variable class and optimizers
STACK = "Keras 3" if KERAS_3 else "Keras 2"

METRICS_OF_A_LIST_ARE_FOR_ALL = not KERAS_3  # the metrics of a flat list are for all outputs, even if there are as many
METRICS_ARE_SORTED = KERAS_3  # the list that `evaluate` returns has the metrics in the order of their names
METRICS_KEEP_NAMES = KERAS_3  # a metric that is named by its class has this name in the logs, and not that of an instance
SEQUENCES_BEGIN_ANEW = not KERAS_3  # every epoch begins with a `Sequence`'s first batch, even if `steps_per_epoch` is lower
LABELS_HAVE_COLUMNS = not KERAS_3  # losses and metrics of users get labels of shape `[batch]` as `[batch, 1]`
TUNES_STEPS = not KERAS_3  # Keras can choose `steps_per_execution` by itself, for "auto"

# The losses and metrics of Keras 3 that Keras 2 does not have, by their names in lower case and without underscores.
_NEW = "ctc dice tversky circle categoricalgeneralizedcrossentropy pearsoncorrelation concordancecorrelation"
ONLY_KERAS_3 = [] if KERAS_3 else _NEW.split()

# Attributes of a model that hold an option of `compile` as a variable, on Keras 2.
OPTIONS_OF_COMPILE = ("_steps_per_execution",)

# The option of a variable that mixed precision leaves as it is.
_NOT_CAST: dict[str, bool] = {"autocast": False} if KERAS_3 else {"experimental_autocast": False}

# Every replica has a copy of a state variable, and the copies must stay equal: only the first replica's assignment counts,
# and it is copied to the others.
_ONLY_FIRST_REPLICA: object = "only_first_replica" if KERAS_3 else tf.VariableAggregation.ONLY_FIRST_REPLICA

# The module of a head, and the scaling of its targets, is an attribute of the trainer, this and the head's name, so Keras
# saves and loads it by that name. The hyphen keeps it apart from whatever has a name in Python, such as `head_weights`.
# Keras visits attributes in the order of the alphabet (Keras 2: in reverse) and saves a layer under the first path found.
# In a list of layers, the path is only a position, so the attribute must come before `layers` (Keras 2: after it).
HEAD = "head-" if KERAS_3 else "of-head-"
SCALING = "heads-scaling-" if KERAS_3 else "of-heads-scaling-"


class Untracked(Generic[Value]):
    """Holds a value that Keras would wrap, or search for variables, if it were an attribute of a layer."""

    def __init__(self, value: Value) -> None:
        self.value = value


def tensor_variable(variable: Variable) -> tf.Variable:
    """The TensorFlow variable of a Keras variable (the same on Keras 2), for tapes and TensorFlow ops."""
    return variable.value if KERAS_3 and isinstance(variable, keras.Variable) else variable


def metric_variables(metrics: Iterable[Metric]) -> list[tf.Variable]:
    return [tensor_variable(variable) for metric in metrics for variable in metric.variables]


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor of TensorFlow, or stands for one in a functional model."""
    return bool(tf.is_tensor(value)) or (KERAS_3 and isinstance(value, keras.KerasTensor))


def variable_name(variable: Variable) -> str:
    """A name for messages: the path on Keras 3, the name without the output number on Keras 2."""
    return str(getattr(variable, "path", None) or variable.name).removesuffix(":0")


def add_state(
    layer: keras.layers.Layer, name: str, shape: Sequence[int], initializer: object = "zeros", dtype: str = "float32"
) -> Variable:
    """Creates a named, saved, non-trainable variable that stays equal on every replica."""
    variable = layer.add_weight(
        name=name,
        shape=tuple(shape),
        dtype=dtype,
        initializer=initializer,
        trainable=False,
        aggregation=_ONLY_FIRST_REPLICA,
        **_NOT_CAST,
    )
    if KERAS_3:  # TensorFlow's checkpoints find a variable that is an attribute, but do not look into Keras 3's lists
        setattr(layer, f"state-{name}", variable)
    return variable


def first_replica_variable(value: tf.Tensor) -> tf.Variable:
    """A variable that no layer saves, equal on every replica."""
    return tf.Variable(value, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


def add_learned(layer: keras.layers.Layer, name: str, initial: float) -> Variable:
    """Creates a named, saved, trainable float32 scalar."""
    initializer = keras.initializers.Constant(initial)
    return layer.add_weight(name=name, shape=(), dtype="float32", initializer=initializer, trainable=True, **_NOT_CAST)


class KerasHooks(keras.Model):
    """A Keras model that overrides what has a private name in Keras, or differs between Keras 2 and Keras 3.

    A subclass has `_latest_logs`, the logs that are shown, and `_adding_losses`, a context.
    """

    def _validate_and_get_metrics_result(self, logs: Logs) -> Logs:
        """Called by Keras 2 at the end of an epoch, and by Keras 3 under another name, with the logs of the last batch."""
        latest: Logs = self._latest_logs(logs)
        return latest

    _get_metrics_result_or_logs = _validate_and_get_metrics_result

    def _flatten_metrics_in_order(self, logs: Mapping[str, Nested]) -> Nested:
        """Called by Keras 3 to turn logs into a list, in the order of `metrics_names` as on Keras 2."""
        first = [name for name in self.metrics_names if name in logs]
        values = [logs[name] for name in [*first, *sorted(logs.keys() - set(first))]]
        return values[0] if len(values) == 1 else values

    def add_loss(self, losses: Nested, **kwargs: object) -> None:
        """Adds losses of the weights, functions without arguments, to the total loss; on Keras 2 only."""
        if KERAS_3 or not all(map(callable, tf.nest.flatten(losses))):
            unless = "" if KERAS_3 else ", unless its losses are functions"
            raise ValueError(
                f"`add_loss` must be called in the `call` of a layer of the encoder or of a head's module{unless}. "
                f"Received: {losses!r}, for the trainer itself. Call `self.add_loss` there, or pass a regularizer to the "
                "layer whose weights it is for."
            )
        with self._adding_losses():
            super().add_loss(losses, **kwargs)

    def add_metric(self, *args: object, **kwargs: object) -> None:
        """Not supported: a trainer has no tensor to measure."""
        raise ValueError(
            "`add_metric` must not be called on a trainer, which has no tensor to measure. Received: a call. Pass "
            "`metrics=[...]` to `add_head`, or keep a `keras.metrics.Metric` as an attribute of a layer that updates it."
        )

    def to_json(self, **kwargs: object) -> str:
        """The configuration as JSON, on Keras 3."""
        if not KERAS_3:
            raise NotImplementedError(
                "`to_json` does not work on Keras 2, whose `model_from_json` cannot restore heads. Use `save`, or "
                "`keras.saving.serialize_keras_object(trainer)` for the configuration alone."
            )
        return str(super().to_json(**kwargs))

    def _check_sample_weight_warning(self, x: Nested, sample_weight: Nested) -> None:
        """Prevents Keras 2 from saying that metrics ignore sample weights; those of heads do not."""

    def __call__(self, *args: Any, **kwargs: Any) -> Nested:
        """Calls the model, without the warning of Keras 3 that it may not be built: methods are when labels are known."""
        if self.built:
            return super().__call__(*args, **kwargs)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`build\(\)` was called on layer", UserWarning)
            return super().__call__(*args, **kwargs)

    def _maybe_symbolic_build(self, iterator: object = None, data_batch: Nested = None) -> None:
        """Prevents Keras 3 from building under a strategy, where it would add up batches of different sizes."""


def callbacks_of(callbacks: Callback | Sequence[Callback]) -> list[Callback]:
    """The callbacks passed to `fit` or `evaluate`, one, several or none, as a list; of a `CallbackList`, its own list."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        members: list[Callback] = callbacks.callbacks
        return members
    return [] if callbacks is None else list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]


def runs_code_of_users(callback: Callback) -> bool:
    """Whether a callback is neither one of Keras's nor of this package, or is one of Keras's that calls users' functions."""
    is_ours = type(callback).__module__.startswith(("keras.", "multihead."))
    return not is_ours or isinstance(callback, (keras.callbacks.LambdaCallback, keras.callbacks.LearningRateScheduler))


def choose_direction(callback: Callback) -> None:
    """Lets a callback that monitors a value find out whether lower is better, as it does at the end of its first epoch.

    On Keras 3 this also changes the sign of its `min_delta`.
    """
    if getattr(callback, "monitor_op", callback) is None and hasattr(callback, "_set_monitor_op"):
        callback._set_monitor_op()


def set_direction(callback: Callback, mode: str) -> None:
    """Tells a callback with `mode="auto"` whether lower values of what it monitors are better, `"min"`, or higher ones.

    On Keras 2, two callbacks choose by the name when they are made, and do not keep their `mode`: one that chose as `"auto"`
    does is taken for one with `"auto"`, with a warning.
    """
    kinds = {keras.callbacks.EarlyStopping: {}, keras.callbacks.ModelCheckpoint: {"filepath": "of the best epoch"}}
    kind = next((kind for kind in kinds if isinstance(callback, kind)), None)
    if getattr(callback, "mode", None) == "auto":
        callback.mode = mode
    elif not KERAS_3 and kind is not None:
        # Made only to see what Keras chooses.
        chosen, right = (kind(monitor=callback.monitor, mode=direction, **kinds[kind]) for direction in ("auto", mode))
        if callback.monitor_op is chosen.monitor_op and callback.monitor_op is not right.monitor_op:
            callback.monitor_op = right.monitor_op
            which = "higher" if mode == "max" else "lower"
            text = f"{which} values of {callback.monitor!r} are better, and are for {kind.__name__}; pass `mode={mode!r}`."
            warnings.warn(text, UserWarning, stacklevel=2)
            if isinstance(callback, keras.callbacks.EarlyStopping):
                callback.min_delta *= -1
            elif callback.best == chosen.best:
                callback.best = right.best


class ProgressLine(keras.callbacks.ProgbarLogger):
    """Keras's progress line, with some of the logs: `shown` selects them."""

    async_safe = True  # as Keras 3 treats its own
    stateful_metrics: set[str]

    def __init__(self, shown: Callable[[Logs], dict[str, Tensor]]) -> None:
        super().__init__(**({} if KERAS_3 else {"count_mode": "steps"}))
        self._shown = shown

    def _update_progbar(self, batch: int, logs: Logs = None) -> None:
        """Called by Keras after a batch of training or evaluation, by Keras 2 under another name."""
        logs = self._shown(logs or {})
        if KERAS_3:
            super()._update_progbar(batch, logs)
        else:
            self.stateful_metrics = {*self.stateful_metrics, *logs}  # Keras 2 would average averages over the steps
            super()._batch_update_progbar(batch, logs)

    _batch_update_progbar = _update_progbar

    def _finalize_progbar(self, logs: Logs, *counter: object) -> None:
        """Called by Keras after an epoch or an evaluation."""
        super()._finalize_progbar(self._shown(logs or {}), *counter)


@contextmanager
def temporarily(attribute: str, values: Sequence[tuple[object, object]]) -> Iterator[None]:
    """A context in which an attribute of some objects has other values, pairs of object and value."""
    before = [(owner, attribute in vars(owner), getattr(owner, attribute)) for owner, _ in values]
    try:
        for owner, value in values:
            setattr(owner, attribute, value)
        yield
    finally:
        for owner, is_own, value in before:
            if is_own:
                setattr(owner, attribute, value)
            else:  # of its class
                delattr(owner, attribute)


@contextmanager
def input_shapes_kept() -> Iterator[None]:
    """A context in which layers that are built as a file says know the shape of their inputs, as those that are called do.

    Keras 2 saves it, and a second file would not say how to build them.
    """
    build = keras.layers.Layer.build_from_config

    def build_from_config(layer: Layer, config: Config) -> None:
        build(layer, config)
        layer._build_input_shape = config["input_shape"]

    with nullcontext() if KERAS_3 else temporarily("build_from_config", [(keras.layers.Layer, build_from_config)]):
        yield


def validates_during_fit(arguments: Mapping[str, object]) -> bool:
    """Whether `evaluate` is called with these arguments by `fit`, for its `validation_data`."""
    return bool(arguments.get("_use_cached_eval_dataset"))


def forget_validation_data(model: Layer) -> None:
    """Drops validation data of a `fit` that ended with an exception, which Keras 2 would evaluate in the next one."""
    model.__dict__.pop("_eval_data_handler", None)


def steps_at_once(model: Layer) -> int:
    """The largest number of steps in the next call of a model's train function; it changes with `"auto"` on Keras 2."""
    steps = model.steps_per_execution
    return int(steps if KERAS_3 else steps.numpy())


def check_one_step(model: Layer, method: str) -> None:
    """Raises `ValueError` for a method of one batch where a function of Keras 2 takes several at once."""
    if not KERAS_3 and steps_at_once(model) > 1:
        raise ValueError(
            f"`{method}` requires steps_per_execution=1 on Keras 2, where a step takes as many batches at once. Received: "
            f"steps_per_execution={steps_at_once(model)}. Call `fit` or `evaluate`, or omit the option."
        )


def check_options_of_replicas(jit_compile: object, steps_per_execution: object, strategy: tf.distribute.Strategy) -> None:
    """Raises `ValueError` for an option of `compile` that TensorFlow cannot run in a graph on several replicas."""
    num_replicas = strategy.num_replicas_in_sync
    if jit_compile is True and all("CPU" in device for device in strategy.extended.worker_devices):
        raise ValueError(
            "`jit_compile` must not be True for several replicas on CPUs, where XLA cannot compile a step that exchanges "
            f"gradients. Received: jit_compile=True with {num_replicas} replicas. Omit it."
        )
    if KERAS_3 and steps_per_execution != 1:
        raise ValueError(
            "`steps_per_execution` must be 1 for several replicas on Keras 3, which cannot loop over their batches in a "
            f"graph. Received: steps_per_execution={steps_per_execution!r} with {num_replicas} replicas. Omit it."
        )


def spec_of_one_replica(spec: tf.TypeSpec) -> tf.TypeSpec:
    """The spec of one replica's values, from the spec of a distributed dataset's elements; other specs are unchanged."""
    specs = getattr(spec, "_value_specs", None)
    return spec if specs is None else specs[0]


def load_as_arrays(metrics: Iterable[Metric]) -> None:
    """Makes metrics take what Keras loads as arrays, so that those of several replicas can be loaded, or none.

    Keras 2 gives their variables parts of a file, and TensorFlow divides what it gives to them by the number of replicas. It
    loads no metrics of a file that was saved before they existed, as Keras 3 does.
    """

    def load(metric: Metric, store: Mapping[str, Tensor]) -> None:
        if store.keys():
            type(metric).load_own_variables(metric, {name: store[name][()] for name in store})

    for metric in [] if KERAS_3 else metrics:
        metric.load_own_variables = types.MethodType(load, metric)


def wrapped_function(metric: Metric) -> Function:
    function: Function = metric._fn
    return function


def metric_direction(metric: Metric) -> str | None:
    """`"min"` or `"max"`, the direction in which a metric improves; None if unknown. Only Keras 3's metrics have one."""
    return {"down": "min", "up": "max"}.get(getattr(metric, "_direction", ""))


def losses_beside_layers(model: Layer) -> bool:
    """Whether a model has losses from `model.add_loss(function)`, which stand in no layer; on Keras 2 only."""
    return bool(getattr(model, "_callable_losses", ()))


def options_of(loss_or_metric: Loss | Metric) -> Config:
    """The options that a loss or metric passes to the function that it wraps; none if it wraps no function."""
    return dict(getattr(loss_or_metric, "_fn_kwargs", {}))


def serialized(loss_or_metric: Loss | Metric) -> Config:
    """The serialized form of a loss or metric, with options that Keras 3 omits, such as Huber's `delta`."""
    saved: Config = keras.saving.serialize_keras_object(loss_or_metric)
    accepted = inspect.signature(type(loss_or_metric).__init__).parameters
    for name, value in options_of(loss_or_metric).items():
        if name in accepted and name not in saved["config"]:
            saved["config"][name] = keras.saving.serialize_keras_object(value)
    return saved


def classes_of_shared_layers(config: object) -> dict[str, type]:
    """Keras's classes, by name, of all layers that are marked as shared in a configuration; none on Keras 3.

    Inside a functional or sequential model, Keras 2 restores such a layer as the same object only if its class is passed to
    `deserialize_keras_object` as a custom object.
    """
    if KERAS_3 or not isinstance(config, (Mapping, list, tuple)):
        return {}
    classes: dict[str, type] = {}
    if isinstance(config, Mapping) and "shared_object_id" in config and hasattr(keras.layers, str(config.get("class_name"))):
        classes[config["class_name"]] = getattr(keras.layers, config["class_name"])
    for part in config.values() if isinstance(config, Mapping) else config:
        classes.update(classes_of_shared_layers(part))
    return classes


def restorable(config: Any, key: str = "") -> Any:
    """A configuration that was read from a file, with the shapes of layers' inputs as tuples, as they were before.

    Keras 2 does the same where it finds a layer's class by itself, but not where the class is a custom object; its recurrent
    layers take a list for several shapes.
    """
    if isinstance(config, Mapping):
        return {name: restorable(part, name) for name, part in config.items()}
    if not isinstance(config, list):
        return config
    is_shape = key == "input_shape" and all(size is None or isinstance(size, int) for size in config)
    return tuple(config) if is_shape else [restorable(part, key) for part in config]
