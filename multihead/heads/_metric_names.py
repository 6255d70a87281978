"""What users write as metrics: checked, named in the logs as in Keras, and made."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from multihead._ground.keras import METRICS_KEEP_NAMES, options_of, wrapped_function
from multihead._ground.layers import check_initialized
from multihead._ground.types import Metric
from multihead._ground.validation import check_copied, in_short, quoted
from multihead.losses._known import is_keras, keras_object

STATISTICS = ("loss", "weight", "norm", "share", "coefficient", "update_cosine", "learning_rate_multiplier", "updates")
"""The values of a head that the trainer itself may log, as `{head}_{value}`."""

OF_PAIRS = ("cosine",)
"""The values of a pair of heads, as `{head}_{other}_{value}`."""

TOTALS = (
    "loss added_loss regularizer encoder_learning_rate_multiplier update_norm update_norm_clipped clipped_updates "
    "skipped_updates learning_rate lr"
).split()
"""The values that belong to no head, of the trainer or of Keras."""

_BY_SHAPE = {"accuracy": "Accuracy", "acc": "Accuracy", "crossentropy": "Crossentropy", "ce": "Crossentropy"}


def check_metrics(arguments: Mapping[str, Sequence[Metric]], head: str) -> None:
    """Raises unless the arguments are lists of metrics of targets and predictions, with names that differ in the logs."""
    for argument, value in arguments.items():
        if isinstance(value, (str, Mapping, keras.metrics.Metric)) or not isinstance(value, Sequence):
            raise TypeError(
                f"`{argument}` must be a list. Received: {argument}={value!r} for head {head!r}. Put it into a list."
            )
    specs = [spec for metrics in arguments.values() for spec in metrics]
    is_name = [isinstance(spec, Mapping) or (isinstance(spec, str) and _by_shape(spec) is None) for spec in specs]
    metrics = [metric_of(spec, head) if named else spec for spec, named in zip(specs, is_name)]
    for metric in metrics:
        check_initialized("metrics", metric)
    names = [log_name(spec if isinstance(spec, str) else metric) for spec, metric in zip(specs, metrics)]
    duplicates = [name for i, name in enumerate(names) if name in STATISTICS or name in names[:i]]
    if duplicates:
        raise ValueError(
            f"`metrics` of head {head!r} must have unique names, and none of {quoted(STATISTICS)}. "
            f"Received: metrics named {quoted(names)}. Give {quoted(duplicates)} another `name`."
        )
    for metric in metrics:
        _check_arguments(metric, head)


def _check_arguments(spec: Metric, head: str) -> None:
    """Checks that a metric, or a function, takes targets and predictions."""
    kind: Metric = spec if isinstance(spec, type) else type(spec)
    is_metric = issubclass(kind, keras.metrics.Metric)
    if isinstance(spec, str) or (kind is spec and not is_metric):
        return
    try:
        signature = inspect.signature(kind.update_state if is_metric else spec)
    except (TypeError, ValueError):  # written in C
        return
    parameters = [*signature.parameters.values()][is_metric:]  # without the metric itself
    named = [p for p in parameters if p.name != "sample_weight" and p.kind is not p.KEYWORD_ONLY]
    if len(named) < 2 and not any(p.kind is p.VAR_POSITIONAL for p in named):
        what = "update_state(y_true, y_pred)" if is_metric else "a function of (y_true, y_pred)"
        raise ValueError(
            f"`metrics` of head {head!r} must compare targets with predictions: {what}. Received: {log_name(spec)!r}, which "
            f"takes {quoted(parameter.name for parameter in named)}. Choose another metric, or write a "
            "function of targets and predictions that returns the values to average."
        )


def _by_shape(spec: Metric) -> str | None:
    """The kind of metric behind a name, such as `"accuracy"`, whose form depends on shapes; None for other names."""
    return _BY_SHAPE.get(spec.removeprefix("weighted_")) if isinstance(spec, str) else None


def metric_named(spec: Metric, name: str) -> Metric:
    """A metric, or its specification, with another name in the logs, so that two of a kind have different ones."""
    if _by_shape(spec) is not None:
        return name
    metric = keras.metrics.get(spec)
    if isinstance(metric, keras.metrics.Metric):
        return copied_metric(metric, name)
    return keras.metrics.MeanMetricWrapper(metric, name=name)


def copied_metric(metric: Metric, name: str) -> Metric:
    """A metric with the options of another one, without its state; a `ValueError` if its `get_config` lacks some."""
    if type(metric) is keras.metrics.MeanMetricWrapper:  # whose function need not be registered
        return keras.metrics.MeanMetricWrapper(wrapped_function(metric), name=name, dtype=metric.dtype, **options_of(metric))
    config, parameters = {**metric.get_config(), "name": name}, inspect.signature(type(metric).__init__).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        config = {key: value for key, value in config.items() if key in parameters or key not in ("name", "dtype")}
    try:
        duplicate = type(metric).from_config(config)
    except TypeError as error:
        raise ValueError(
            "`metrics` must take their `get_config` in `__init__`, because they are copied. "
            f"Received: {type(metric).__name__}, which does not: {in_short(error)}. Write its options into `get_config`."
        ) from error
    check_copied("metrics", metric, duplicate, "because they are copied")
    return duplicate


def metric_of(spec: Metric, head: str) -> Metric:
    """Keras's metric for a name or a configuration; a class, a function or a metric is returned unchanged."""
    return keras_object(keras.metrics, spec, f"`metrics` of head {head!r} must be Keras metrics or their names", _BY_SHAPE)


def log_name(spec: Metric) -> str:
    """The name in the logs of a metric or of its specification."""
    if isinstance(spec, str):
        is_class = not METRICS_KEEP_NAMES and isinstance(getattr(keras.metrics, spec, None), type)
        return snake_case(spec) if is_class else spec
    if isinstance(spec, functools.partial):
        return log_name(spec.func)
    if isinstance(spec, type):
        return snake_case(spec.__name__)
    return str(getattr(spec, "name", None) if isinstance(spec, keras.metrics.Metric) else getattr(spec, "__name__", spec))


def snake_case(kind: str) -> str:
    """The name that Keras gives to an instance of a class: `"auc"` for `"AUC"`."""
    apart = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", kind)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", apart).lower()


def resolve_metric(spec: Metric, targets: tf.TensorSpec, predictions: tf.TensorSpec, head: str) -> Metric:
    """The `keras.metrics.Metric` for a metric, a class, a name or a function.

    As in Keras, the shapes decide between the binary, categorical and sparse forms of `"accuracy"` and `"crossentropy"`.
    """
    kind = _by_shape(spec)
    if kind is not None:
        if predictions.shape.rank == 1 or predictions.shape[-1] == 1:
            form = "Binary"
        elif targets.shape.rank < predictions.shape.rank or targets.shape[-1] == 1:
            form = "SparseCategorical"
        else:
            form = "Categorical"
        return getattr(keras.metrics, f"{form}{kind}")(name=spec)
    metric = metric_of(spec, head)
    if isinstance(metric, type):
        metric = metric()
    if isinstance(metric, keras.metrics.Metric):
        if isinstance(spec, str) or (isinstance(spec, type) and is_keras(spec)):
            # Keras would number the names of these metrics across the whole process.
            return type(metric).from_config({**metric.get_config(), "name": log_name(spec)})
        return metric
    return keras.metrics.MeanMetricWrapper(metric, name=log_name(spec))


def check_distinct(heads: Sequence[tuple[str, Sequence[Metric]]]) -> None:
    """Raises a `ValueError` if two values in the logs would have one name, or two heads share a metric."""
    endings, owners, objects = ("", "_average"), dict[str, str](), dict[int, str]()
    names = [(f"{name}{end}", "a value of no head") for name in TOTALS for end in endings]
    for one, other in itertools.combinations([head for head, _ in heads], 2):
        heads_text = f"of heads {one!r} and {other!r}"
        names += [(f"{one}_{other}_{value}{end}", f"the {value} {heads_text}") for value in OF_PAIRS for end in endings]
    for head, metrics in heads:
        names += [(f"{head}_{name}{end}", f"the {name} of head {head!r}") for name in STATISTICS for end in endings]
        names += [(f"{head}_{log_name(metric)}", f"the metric {log_name(metric)!r} of head {head!r}") for metric in metrics]
        for metric in metrics:
            if isinstance(metric, keras.metrics.Metric) and objects.setdefault(id(metric), head) != head:
                raise ValueError(
                    "`metrics` must hold a separate metric per head. Received: one object, "
                    f"{metric.name!r}, for the heads {objects[id(metric)]!r} and {head!r}: it would mix both. Make two."
                )
    for name, owner in names:
        for logged in (name, f"val_{name}"):
            other = owners.setdefault(logged, owner)
            if other != owner:
                raise ValueError(
                    f"`name` of heads and metrics must tell their values apart in the logs. Received: {logged!r} would "
                    f"stand for {other} and for {owner}. Rename one of them."
                )
