"""Whether a metric of the logs is better if it is lower or higher."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import keras

from multihead._ground.keras import metric_direction, set_direction, wrapped_function
from multihead._ground.types import Callback, Metric
from multihead.heads._metric_names import log_name
from multihead.heads._named import NamedHead
from multihead.losses._known import is_keras

_LOWER = (
    "mae mse mape msle kld ce bce rmse MeanAbsoluteError MeanSquaredError RootMeanSquaredError MeanAbsolutePercentageError "
    "MeanSquaredLogarithmicError LogCosh LogCoshError Huber Poisson Hinge SquaredHinge CategoricalHinge KLDivergence "
    "KullbackLeiblerDivergence Crossentropy BinaryCrossentropy CategoricalCrossentropy SparseCategoricalCrossentropy "
    "FalsePositives FalseNegatives"
)
_HIGHER = (
    "acc Accuracy BinaryAccuracy CategoricalAccuracy SparseCategoricalAccuracy TopKCategoricalAccuracy "
    "SparseTopKCategoricalAccuracy AUC Precision Recall F1Score FBetaScore R2Score IoU BinaryIoU MeanIoU OneHotIoU "
    "OneHotMeanIoU TruePositives TrueNegatives PrecisionAtRecall RecallAtPrecision SensitivityAtSpecificity "
    "SpecificityAtSensitivity"
)
# For Keras 2, and for functions and counts, which have no direction in Keras 3 either.
_BY_NAME = {**{name.lower(): "min" for name in _LOWER.split()}, **{name.lower(): "max" for name in _HIGHER.split()}}


def direction(metric: str, head: NamedHead) -> str | None:
    """`"min"` or `"max"` for a metric of a head in the logs, such as `val_price_accuracy`; None if unknown."""
    name = metric.removeprefix("val_").removeprefix(f"{head.name}_")
    if name == "loss":
        return "min"
    specs = [spec for spec in head.metric_specs if log_name(spec) == name]
    return _metric_mode(specs[0]) if specs else None


def resolve_monitor_modes(callbacks: Sequence[Callback], heads: Sequence[NamedHead]) -> None:
    """Tells callbacks with `mode="auto"` that monitor a head's metric which values are better: Keras does not know."""
    for callback in callbacks:
        metric = getattr(callback, "monitor", None)
        if isinstance(metric, str):
            name = metric.removeprefix("val_")
            modes = [direction(metric, head) for head in heads if name.startswith(f"{head.name}_")]
            mode = next((mode for mode in modes if mode is not None), None)
            if mode is not None:
                set_direction(callback, mode)


def _metric_mode(spec: Metric) -> str | None:
    """`"min"` or `"max"` for a metric or its specification; known for Keras's own metrics and their subclasses."""
    names = [spec] if isinstance(spec, str) else []
    with suppress(ValueError):  # "acc" and "ce" are names for `compile` alone
        spec = keras.metrics.get(spec)
    spec = spec() if isinstance(spec, type) else spec
    known = metric_direction(spec)
    if known is not None:
        return known
    if type(spec) is keras.metrics.MeanMetricWrapper:
        spec = wrapped_function(spec)
    kinds = type(spec).__mro__ if isinstance(spec, keras.metrics.Metric) else [spec]
    names += [getattr(kind, "__name__", "") for kind in kinds if is_keras(kind)]
    modes = (_BY_NAME.get(name.replace("_", "").lower()) for name in names)
    return next((mode for mode in modes if mode is not None), None)
