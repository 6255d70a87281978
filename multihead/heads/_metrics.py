"""A head's metrics: created as in Keras, with distinct names in the logs, and updated with labelled elements only."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from multihead._ground.keras import options_of, wrapped_function
from multihead._ground.tensors import where
from multihead._ground.types import Metric, Tensor
from multihead._ground.validation import did_you_mean, names_known_to, quoted
from multihead.heads._probing import find_reading
from multihead.heads._reading import Reading
from multihead.losses._elements import ElementLoss
from multihead.losses._known import (
    CLASSES,
    ELEMENTS,
    ROWS,
    aligned,
    aligned_shape,
    is_keras,
    known,
    spread,
    with_columns,
)

STATISTICS = ("loss", "weight", "norm", "share", "coefficient", "update_cosine", "learning_rate_multiplier", "updates")
"""The values of a head that the trainer itself may log, as `{head}_{value}`."""

OF_PAIRS = ("cosine",)
"""The values of a pair of heads, as `{head}_{other}_{value}`."""

TOTALS = (
    "loss added_loss regularizer encoder_learning_rate_multiplier update_norm update_norm_clipped clipped_updates "
    "skipped_updates learning_rate lr"
).split()
"""The values that belong to no head, of the trainer or of Keras."""

_OVER_ELEMENTS = (
    "Accuracy BinaryAccuracy BinaryCrossentropy Hinge SquaredHinge LogCoshError MeanAbsoluteError MeanSquaredError Poisson "
    "MeanAbsolutePercentageError MeanSquaredLogarithmicError RootMeanSquaredError BinaryIoU AUC Precision Recall "
    "TruePositives TrueNegatives FalsePositives FalseNegatives PrecisionAtRecall RecallAtPrecision "
    "SensitivityAtSpecificity SpecificityAtSensitivity"
)
_OVER_ROWS = (
    "CategoricalAccuracy CategoricalCrossentropy CategoricalHinge CosineSimilarity KLDivergence TopKCategoricalAccuracy"
)
_OVER_CLASSES = "SparseCategoricalAccuracy SparseCategoricalCrossentropy SparseTopKCategoricalAccuracy"
_KERAS = {
    **dict.fromkeys(_OVER_ELEMENTS.split(), ELEMENTS),
    **dict.fromkeys(_OVER_ROWS.split(), ROWS),
    **dict.fromkeys(_OVER_CLASSES.split(), CLASSES),
}
_BY_SHAPE = {"accuracy": "Accuracy", "acc": "Accuracy", "crossentropy": "Crossentropy", "ce": "Crossentropy"}


class HeadMetric:
    """A Keras metric and the part of targets and predictions that it reads."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.over: str | None = None  # `"elements"`, `"rows"` or `"classes"`; None if it is not known
        self.column: int | None = None  # the only one that it reads
        self.by_column = False  # whether it distinguishes columns although it counts elements
        self.reading: Reading | None = None  # how it is updated if it is not known what it reads; found by `build`
        # The number of rows that count, which may be none although there are labels; None if it need not be known.
        self.counted: Metric = None
        options = options_of(metric)
        if type(metric) is keras.metrics.MeanMetricWrapper:
            function = known(wrapped_function(metric), options)
            # A correlation is not finite for the rows of zeros that missing labels are, so that no weight removes it.
            if function is not None and "correlation" not in wrapped_function(metric).__name__:
                self.over = function.over
        elif not is_keras(type(metric)) or {options.get("axis", -1), getattr(metric, "axis", -1)} != {-1}:
            self.over = None
        elif hasattr(metric, "sparse_y_true"):  # intersection over union: numbers, or a column per class, on either side
            sides = (metric.sparse_y_true, metric.sparse_y_pred)
            self.over = {(True, True): ELEMENTS, (True, False): CLASSES, (False, False): ROWS}.get(sides)
        elif getattr(metric, "top_k", None) is not None:
            self.over = ROWS
        else:
            self.over = _KERAS.get(type(metric).__name__)
            self.column = getattr(metric, "class_id", None)
            self.by_column = self.column is not None or bool(getattr(metric, "multi_label", False))

    def build(
        self,
        head: str,
        targets: tf.TensorSpec,
        predictions: tf.TensorSpec,
        rank: int,
        loss: ElementLoss,
        *,
        is_counted: bool,
    ) -> None:
        """Finds what the metric reads of targets and predictions of some specs; a `ValueError` if they do not fit.

        The first `rank` axes index the elements of the loss. With `is_counted`, the rows that count are always counted.
        """
        shape = with_columns(predictions.shape)
        if self.over is None:
            self.reading = find_reading(self.metric, head, targets, predictions, rank, loss)
            num_axes = self.reading.rank
        else:
            self._check(head, targets, predictions, shape, shape[:-1] if self.over == CLASSES else shape)
            num_axes = shape.rank if self.over == ELEMENTS else shape.rank - 1
        if is_counted or (rank > num_axes and shape[num_axes:].num_elements() != 1):
            self.counted = keras.metrics.Sum(name=f"{self.metric.name}_counted", dtype="float32")

    def _check(self, head: str, targets: Tensor, predictions: Tensor, shape: tf.TensorShape, wanted: tf.TensorShape) -> None:
        seen = aligned_shape(targets.shape, shape, self.over)
        if seen.rank != wanted.rank or not seen.is_compatible_with(wanted):
            raise ValueError(
                f"`metrics` of head {head!r} must fit its targets, but {self.metric.name!r} needs targets of shape {wanted} "
                f"for predictions of shape {predictions.shape}. Received: targets of shape {targets.shape}. Choose a metric "
                "for such targets; those for class numbers are called sparse."
            )
        if self.over == CLASSES and shape[-1] == 1:
            raise ValueError(
                f"`metrics` of head {head!r} must fit its predictions, but {self.metric.name!r} needs one column for each "
                f"class. Received: predictions of shape {predictions.shape}. Choose a binary metric, such as 'accuracy'."
            )

    def update(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> None:
        """Adds the labelled elements of a batch, by the weights of the loss's elements.

        A metric that reads whole rows counts those in which every element that it reads has a label, by their mean weight.
        """
        predictions = predictions[:, tf.newaxis] if predictions.shape.rank == 1 else predictions
        targets = aligned(targets, predictions.shape, self.over)
        if self.reading is not None:
            number = self.reading.update(targets, predictions, weights)
        else:
            number = self._update_known(targets, predictions, weights)
        if self.counted is not None:
            self.counted.update_state(number)

    def _update_known(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Adds a batch to a metric whose reading is known; returns how many elements or rows count."""
        rank = predictions.shape.rank
        if self.over != ELEMENTS and weights.shape.rank == rank:
            is_whole = tf.reduce_all(weights > 0, axis=-1)
            weights = where(is_whole, tf.reduce_mean(weights, axis=-1), 0.0)
        num_columns = predictions.shape[-1] or tf.shape(predictions)[-1]
        weights = spread(weights, targets, rank if self.over == ELEMENTS else rank - 1)
        if self.column is not None:
            weights = weights[..., self.column]
        if self.over == ROWS:  # some of Keras 2 take no other dtype
            targets = tf.cast(targets, predictions.dtype)
        flat = [-1, 1] if self.over == ELEMENTS and not self.by_column else [-1, num_columns]
        self.metric.update_state(
            tf.reshape(targets, [-1] if self.over == CLASSES else flat),
            tf.reshape(predictions, flat),
            sample_weight=tf.reshape(weights, flat if self.by_column and self.column is None else [-1]),
        )
        return tf.reduce_sum(tf.cast(weights > 0, tf.float32))

    @property
    def runs_in_xla(self) -> bool:
        """Whether XLA can compile a step that leaves elements without a label out of the metric."""
        return self.reading is None or self.reading.weighs


def check_metrics(metrics: Sequence[Metric], head: str) -> None:
    """Raises unless `metrics` is a list of metrics that Keras knows, with distinct names, of targets and predictions."""
    if isinstance(metrics, (str, Mapping, keras.metrics.Metric)) or not isinstance(metrics, Sequence):
        raise TypeError(f"`metrics` must be a list. Received: metrics={metrics!r} for head {head!r}. Put it into a list.")
    is_known = [isinstance(spec, Mapping) or (isinstance(spec, str) and spec not in _BY_SHAPE) for spec in metrics]
    specs = [metric_of(spec, head) if found else spec for spec, found in zip(metrics, is_known)]
    names = [spec if isinstance(spec, str) else log_name(found) for spec, found in zip(metrics, specs)]
    taken = [name for i, name in enumerate(names) if name in STATISTICS or name in names[:i]]
    if taken:
        raise ValueError(
            f"`metrics` of head {head!r} must have unique names, and none of {quoted(STATISTICS)}. "
            f"Received: metrics named {quoted(names)}. Give {quoted(taken)} another `name`."
        )
    for spec in specs:
        _check_arguments(spec, head)


def _check_arguments(spec: Metric, head: str) -> None:
    """Checks that a metric, or a function, takes targets and predictions."""
    is_type = isinstance(spec, type)
    is_metric = issubclass(spec, keras.metrics.Metric) if is_type else isinstance(spec, keras.metrics.Metric)
    if isinstance(spec, str) or (is_type and not is_metric):
        return
    kind: Metric = spec if is_type else type(spec)
    called, given = (kind.update_state, 3) if is_metric else (spec, 2)
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # written in C
        return
    named = [each for each in parameters if each.name != "sample_weight" and each.kind is not each.KEYWORD_ONLY]
    if len(named) < given and not any(each.kind is each.VAR_POSITIONAL for each in named):
        what = "update_state(y_true, y_pred)" if is_metric else "a function of (y_true, y_pred)"
        raise ValueError(
            f"`metrics` of head {head!r} must compare targets with predictions: {what}. Received: {log_name(spec)!r}, which "
            f"takes {quoted(each.name for each in named if each.name != 'self')}. Choose another metric, or write a "
            "function of targets and predictions that returns the values to average."
        )


def metric_of(spec: Metric, head: str) -> Metric:
    """Keras's metric for a name or a configuration; a class, a function or a metric is returned unchanged."""
    found, cause = None, None
    try:
        found = keras.metrics.get(spec)
    except (ValueError, TypeError, KeyError) as error:
        cause = error
    if not callable(found):  # Keras 2 returns some names that it does not know
        known_metrics = [*_BY_SHAPE, *names_known_to(keras.metrics.get, keras.metrics)]
        name = spec.get("class_name") if isinstance(spec, Mapping) else spec
        hint = did_you_mean([name], known_metrics, "Pass one of these, or a `keras.metrics.Metric`.")
        raise ValueError(
            f"`metrics` of head {head!r} must be Keras metrics or their names. Received: {spec!r}, which Keras does not "
            f"know; it has {quoted(dict.fromkeys(known_metrics))}. {hint}"
        ) from cause
    return found


def log_name(spec: Metric) -> str:
    """The name in the logs of a metric or of its specification."""
    if isinstance(spec, str):
        return spec
    if isinstance(spec, type):
        apart = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", spec.__name__)  # as Keras names an instance: `auc` for `AUC`
        return re.sub(r"([a-z])([A-Z])", r"\1_\2", apart).lower()
    return str(getattr(spec, "name", None) if isinstance(spec, keras.metrics.Metric) else getattr(spec, "__name__", spec))


def resolve_metric(spec: Metric, targets: tf.TensorSpec, predictions: tf.TensorSpec, head: str) -> Metric:
    """Makes a `keras.metrics.Metric` of a metric, a class, a name or a function.

    `"accuracy"` and `"crossentropy"` become the binary, categorical or sparse form by the shapes, as in Keras.
    """
    if isinstance(spec, str) and spec in _BY_SHAPE:
        if predictions.shape.rank == 1 or predictions.shape[-1] == 1:
            form = "Binary"
        elif targets.shape.rank < predictions.shape.rank or targets.shape[-1] == 1:
            form = "SparseCategorical"
        else:
            form = "Categorical"
        return getattr(keras.metrics, form + _BY_SHAPE[spec])(name=spec)
    metric = metric_of(spec, head)
    if isinstance(metric, type):
        metric = metric()
    if isinstance(metric, keras.metrics.Metric):
        if isinstance(spec, str) or (isinstance(spec, type) and is_keras(spec)):
            # Under the name that was given: Keras numbers those of classes by all metrics of the process.
            return type(metric).from_config({**metric.get_config(), "name": log_name(spec)})
        return metric
    return keras.metrics.MeanMetricWrapper(metric, name=log_name(spec))


def check_apart(heads: Sequence[tuple[str, Sequence[Metric]]]) -> None:
    """Raises a `ValueError` if two values of heads, pairs of name and metrics, would overwrite each other or be mixed."""
    both, owners, objects = ("", "_average"), dict[str, str](), dict[int, str]()
    names = [(f"{name}{end}", "a value of no head") for name in TOTALS for end in both]
    for one, other in itertools.combinations([head for head, _ in heads], 2):
        whose = f"of heads {one!r} and {other!r}"
        names += [(f"{one}_{other}_{value}{end}", f"the {value} {whose}") for value in OF_PAIRS for end in both]
    for head, metrics in heads:
        names += [(f"{head}_{name}{end}", f"the {name} of head {head!r}") for name in STATISTICS for end in both]
        names += [(f"{head}_{log_name(each)}", f"the metric {log_name(each)!r} of head {head!r}") for each in metrics]
    for name, owner in names:
        for logged in (name, f"val_{name}"):
            other = owners.setdefault(logged, owner)
            if other != owner:
                raise ValueError(
                    f"`name` of heads and metrics must tell their values apart in the logs. Received: {logged!r} would "
                    f"stand for {other} and for {owner}. Rename one of them."
                )
    for head, metrics in heads:
        for metric in metrics:
            if isinstance(metric, keras.metrics.Metric) and objects.setdefault(id(metric), head) != head:
                raise ValueError(
                    "`metrics` must hold a separate metric for each head. Received: one object, "
                    f"{metric.name!r}, for the heads {objects[id(metric)]!r} and {head!r}: it would mix both. Make two."
                )
