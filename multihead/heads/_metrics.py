"""A head's metrics: created as in Keras, with distinct names in the logs, and updated with labelled elements only."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from multihead._ground.keras import options_of, wrapped_function
from multihead._ground.layers import check_initialized
from multihead._ground.tensors import in_xla, where
from multihead._ground.types import Metric
from multihead._ground.validation import quoted
from multihead.heads._probing import find_rows, in_rows
from multihead.losses._known import (
    CLASSES,
    ELEMENTS,
    FUNCTIONS,
    ROWS,
    aligned,
    aligned_shape,
    is_keras,
    known,
    of_keras,
    spread,
    with_columns,
    with_inner,
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

_BY_SHAPE = {"accuracy": "Accuracy", "acc": "Accuracy", "crossentropy": "Crossentropy", "ce": "Crossentropy"}


class HeadMetric:
    """A Keras metric and the rows that it gets: those of which everything that it reads has a label.

    A metric of which nothing is known gets the smallest rows from which it computes what Keras computes from a complete
    batch: elements, steps, or the batch's own rows.
    """

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.over: str | None = None  # `"elements"`, `"rows"` or `"classes"`; None if it is not known
        self.column: int | None = None  # the only one that it reads
        self.by_column = False  # whether it distinguishes columns although it counts elements
        self.rank = 1  # how many axes are merged into one of rows
        # The number of rows that count, which may be none although there are labels; None if it need not be known.
        self.counted: Metric = None
        parameters = inspect.signature(type(metric).update_state).parameters.values()
        # Whether weights of 0 leave rows out.
        self.weighs = any(each.name == "sample_weight" or each.kind is each.VAR_KEYWORD for each in parameters)
        options, kind = options_of(metric), type(metric).__name__
        if not is_keras(type(metric)):
            return
        if _has_columns(metric):
            self.over, self.by_column = ELEMENTS, True
        elif {options.get("axis", -1), getattr(metric, "axis", -1)} != {-1}:
            return
        elif hasattr(metric, "sparse_y_true"):  # intersection over union: numbers, or a column per class, on either side
            sides = (metric.sparse_y_true, metric.sparse_y_pred)
            self.over = {(True, True): ELEMENTS, (True, False): CLASSES, (False, False): ROWS}.get(sides)
        elif getattr(metric, "top_k", None) is not None:
            self.over = ROWS
        else:
            wrapped = wrapped_function(metric) if kind == "MeanMetricWrapper" else None
            function = FUNCTIONS.get(_snake_case(kind)) if wrapped is None else known(wrapped, options)
            # A correlation is not finite for the rows of zeros that missing labels are, so that no weight removes it.
            if function is not None and "correlation" not in getattr(wrapped, "__name__", _snake_case(kind)):
                self.over = function.over
            self.column = getattr(metric, "class_id", None)

    def build(self, head: str, targets: tf.TensorSpec, predictions: tf.TensorSpec, rank: int, *, is_counted: bool) -> None:
        """Finds what the metric reads of targets and predictions of some specs; a `ValueError` if they do not fit.

        The first `rank` axes index the elements of the loss. With `is_counted`, the rows that count are always counted.
        """
        self._head, shape = head, with_columns(predictions.shape)
        seen, wanted = aligned_shape(targets.shape, shape, self.over), shape[:-1] if self.over == CLASSES else shape
        if self.over is not None and not (seen.rank == wanted.rank and seen.is_compatible_with(wanted)):
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
        if self.over is None or self.by_column:  # some with columns create their variables when they are first updated
            dtype = tf.float32 if predictions.dtype in (tf.float16, tf.bfloat16) else predictions.dtype
            self.rank, weighs = find_rows(self.metric, self._apply, targets, tf.TensorSpec(shape, dtype), rank)
            self.weighs &= weighs or self.by_column
        if self.over is not None:
            self.rank = shape.rank - (self.over != ELEMENTS or self.by_column or self.column is not None)
        if is_counted or (rank > self.rank and shape[self.rank :].num_elements() != 1):
            self.counted = keras.metrics.Sum(name=f"{self.metric.name}_counted", dtype="float32")

    def update(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> None:
        """Adds the labelled rows of a batch, by the mean of the weights of the loss's elements."""
        predictions = predictions[:, tf.newaxis] if predictions.shape.rank == 1 else predictions
        if predictions.dtype in (tf.float16, tf.bfloat16):
            predictions = tf.cast(predictions, tf.float32)
        targets = aligned(targets, predictions.shape, self.over)
        if self.over == ROWS:  # some of Keras 2 take no other dtype
            targets = tf.cast(targets, predictions.dtype)
        if self.by_column or self.column is not None:
            weights = spread(weights, predictions, predictions.shape.rank)
            weights = weights if self.column is None else weights[..., self.column]
        elif weights.shape.rank < self.rank:
            weights = spread(weights, predictions, self.rank)
        else:
            axes = list(range(self.rank, weights.shape.rank))
            is_whole = tf.reduce_all(weights > 0, axis=axes)
            weights = where(is_whole, tf.reduce_mean(weights, axis=axes), 0.0) if axes else weights
        are_elements = self.rank == predictions.shape.rank
        y, p = (in_rows(each, self.rank, are_elements=are_elements) for each in (targets, predictions))
        weights = in_rows(weights, self.rank, are_elements=False)
        if self.over is None:
            self._update_labelled(y, p, weights)
        elif isinstance(self.metric, keras.metrics.FBetaScore):  # which takes weights of rows alone
            self._update_columns(y, p, weights)
        else:
            self._apply(y, p, weights)
        if self.counted is not None:
            self.counted.update_state(tf.reduce_sum(tf.cast(weights > 0, tf.float32)))

    def _apply(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor | None = None) -> None:
        """Updates the metric with rows, all of which count without weights."""
        if weights is None or not self.weighs:
            self.metric.update_state(targets, predictions)
        else:
            self.metric.update_state(targets, predictions, sample_weight=weights)

    def _update_labelled(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> None:
        """Adds the labelled rows, if there are any: a metric need not be able to take no row.

        XLA has no tensors of open size. There, unlabelled rows weigh 0 and repeat a labelled one, so that all is finite.
        """
        labelled, data = weights > 0, (targets, predictions)
        if not in_xla():
            rows = tf.where(labelled)[:, 0]

            def add() -> tf.Operation:
                self._apply(*(tf.gather(each, rows) for each in (*data, weights)))
                return tf.no_op()

            tf.cond(tf.reduce_any(labelled), add, tf.no_op)
            return
        if not self.weighs:
            raise ValueError(
                f"`jit_compile` must not be True for the metric {self.metric.name!r} of head {self._head!r}, which does not "
                "use `sample_weight`: XLA cannot leave out rows without a label. Received: a step that XLA compiles. Let "
                "`update_state` use its `sample_weight`, or omit `jit_compile`."
            )
        place = tf.argmax(tf.cast(labelled, tf.int32))
        y, p = (where(with_inner(labelled, each), each, tf.gather(each, place)) for each in data)
        self._apply(y, p, weights)

    def _update_columns(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> None:
        """Adds elements to an F score, which does not count those whose target and prediction are 0.

        Where the columns of a row have different weights, one column is added after another.
        """
        targets, largest = tf.cast(targets, predictions.dtype), tf.reduce_max(weights, axis=1)
        is_one = tf.reduce_all((weights == 0) | (weights == largest[:, tf.newaxis]))

        def add(k: tf.Tensor) -> list[tf.Tensor]:
            counts = tf.cast(where(is_one, weights > 0, tf.equal(tf.range(tf.shape(weights)[1]), k)), predictions.dtype)
            of_rows = where(is_one, largest, weights[:, k])
            self.metric.update_state(targets * counts, predictions * counts, sample_weight=of_rows)
            return [k + 1]

        number = where(is_one, 1, tf.shape(weights)[1])
        tf.while_loop(lambda k: k < number, add, [tf.constant(0)], parallel_iterations=1)


def _has_columns(metric: Metric) -> bool:
    """Whether a metric of Keras keeps its columns apart, each of which it can count without the others."""
    kind = type(metric).__name__
    if kind in ("F1Score", "FBetaScore"):
        return metric.threshold is not None  # otherwise a row's largest prediction is the positive one
    is_plain_r2 = kind == "R2Score" and not metric.num_regressors  # with regressors, it counts rows
    return is_plain_r2 or kind == "MeanRelativeError" or bool(getattr(metric, "multi_label", False))


def check_metrics(given: Mapping[str, Sequence[Metric]], head: str) -> None:
    """Raises unless arguments are lists of metrics of targets and predictions that Keras knows, all with distinct names."""
    for argument, each in given.items():
        if isinstance(each, (str, Mapping, keras.metrics.Metric)) or not isinstance(each, Sequence):
            raise TypeError(
                f"`{argument}` must be a list. Received: {argument}={each!r} for head {head!r}. Put it into a list."
            )
    metrics = [spec for each in given.values() for spec in each]
    is_known = [isinstance(spec, Mapping) or (isinstance(spec, str) and spec not in _BY_SHAPE) for spec in metrics]
    specs = [metric_of(spec, head) if found else spec for spec, found in zip(metrics, is_known)]
    for spec in specs:
        check_initialized("metrics", spec)
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
    kind: Metric = spec if isinstance(spec, type) else type(spec)
    is_metric = issubclass(kind, keras.metrics.Metric)
    if isinstance(spec, str) or (kind is spec and not is_metric):
        return
    try:
        parameters = inspect.signature(kind.update_state if is_metric else spec).parameters.values()
    except (TypeError, ValueError):  # written in C
        return
    named = [each for each in parameters if each.name not in ("self", "sample_weight") and each.kind != each.KEYWORD_ONLY]
    if len(named) < 2 and not any(each.kind is each.VAR_POSITIONAL for each in named):
        what = "update_state(y_true, y_pred)" if is_metric else "a function of (y_true, y_pred)"
        raise ValueError(
            f"`metrics` of head {head!r} must compare targets with predictions: {what}. Received: {log_name(spec)!r}, which "
            f"takes {quoted(each.name for each in named)}. Choose another metric, or write a "
            "function of targets and predictions that returns the values to average."
        )


def metric_of(spec: Metric, head: str) -> Metric:
    """Keras's metric for a name or a configuration; a class, a function or a metric is returned unchanged."""
    return of_keras(keras.metrics, spec, f"`metrics` of head {head!r} must be Keras metrics or their names", _BY_SHAPE)


def log_name(spec: Metric) -> str:
    """The name in the logs of a metric or of its specification."""
    if isinstance(spec, str):
        return spec
    if isinstance(spec, type):
        return _snake_case(spec.__name__)
    return str(getattr(spec, "name", None) if isinstance(spec, keras.metrics.Metric) else getattr(spec, "__name__", spec))


def _snake_case(kind: str) -> str:
    """The name that Keras gives to an instance of a class: `"auc"` for `"AUC"`."""
    apart = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", kind)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", apart).lower()


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
        for metric in metrics:
            if isinstance(metric, keras.metrics.Metric) and objects.setdefault(id(metric), head) != head:
                raise ValueError(
                    "`metrics` must hold a separate metric for each head. Received: one object, "
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
