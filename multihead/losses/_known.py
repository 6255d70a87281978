"""What is known of Keras's own losses and metrics, and how the shapes of targets and predictions fit together."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import tensorflow as tf

from multihead._ground.calls import are_probabilities
from multihead._ground.keras import ONLY_KERAS_3
from multihead._ground.tensors import in_xla, where
from multihead._ground.types import Config, Function, Layer, Loss, Tensor
from multihead._ground.validation import did_you_mean, names_known_to, normalized, quoted, stop_unless

ELEMENTS, ROWS, CLASSES = "elements", "rows", "classes"
"""What one value of a function depends on.

- `"elements"`: one target and one prediction; the function is the mean of such terms over the last axis.
- `"rows"`: all targets and predictions along the last axis.
- `"classes"`: one class number, and the predictions along the last axis.
"""

DIFFERENCES, RATIOS = "differences", "ratios"

TOLERANCE = 0.01
"""How far rounding may move a prediction out of its range, and the sum of a row away from 1."""


class Known(NamedTuple):
    """The properties of a function of Keras."""

    over: str  # `ELEMENTS`, `ROWS` or `CLASSES`
    low: float | None = None  # the smallest label that it takes, if there is one
    high: float | None = None  # the largest, if there is one; the predictions' last axis limits class numbers
    # The largest prediction that a function of probabilities takes: 1, or infinite if Keras divides rows by their sums.
    # None for other functions.
    largest: float | None = None
    has_logits: bool = False  # whether a function of probabilities can also take logits, with `from_logits=True`
    positive: bool = False  # whether it is meant for numbers of at least 0, although it takes others
    # What it depends on, up to a factor: `DIFFERENCES` or `RATIOS` of labels and predictions. A loss of differences makes
    # sense for targets that are shifted and divided, a loss of ratios for those that are only divided, others for neither.
    depends_on: str | None = None
    columns: int = 1  # the fewest columns of predictions with which it is no constant


_BY_PROPERTIES = {
    Known(ELEMENTS, 0, 1): "binary_crossentropy binary_focal_crossentropy binary_accuracy",
    Known(ELEMENTS, -1, 1): "hinge squared_hinge",
    Known(ELEMENTS): (
        "accuracy auc precision recall true_positives true_negatives false_positives false_negatives precision_at_recall "
        "recall_at_precision sensitivity_at_specificity specificity_at_sensitivity"
    ),
    Known(ELEMENTS, depends_on=DIFFERENCES): (
        "mean_squared_error mean_absolute_error huber log_cosh log_cosh_error root_mean_squared_error"
    ),
    Known(ELEMENTS, depends_on=RATIOS): "mean_absolute_percentage_error",
    Known(ELEMENTS, positive=True): "mean_squared_logarithmic_error",
    Known(ELEMENTS, positive=True, depends_on=RATIOS): "poisson",
    Known(ROWS, 0): "categorical_hinge kl_divergence",
    Known(ROWS, 0, columns=2): (
        "categorical_crossentropy categorical_focal_crossentropy categorical_accuracy top_k_categorical_accuracy"
    ),
    Known(ROWS, columns=2): "cosine_similarity pearson_correlation concordance_correlation",
    Known(CLASSES, 0, columns=2): (
        "sparse_categorical_crossentropy categorical_generalized_cross_entropy sparse_categorical_accuracy "
        "sparse_top_k_categorical_accuracy"
    ),
}
FUNCTIONS = {name: properties for properties, names in _BY_PROPERTIES.items() for name in names.split()}
"""The properties of losses and metrics, functions and classes, by their names with underscores."""

COMPARING = ("circle", "dice", "tversky")
"""The losses of Keras that compare the rows of a batch with each other, or divide by a sum over all of them."""

_LARGEST_PREDICTIONS = {
    **dict.fromkeys(("binary_crossentropy", "binary_focal_crossentropy", "kl_divergence"), 1.0),
    **dict.fromkeys(("sparse_categorical_crossentropy", "categorical_generalized_cross_entropy"), 1.0),
    **dict.fromkeys(("categorical_crossentropy", "categorical_focal_crossentropy"), float("inf")),
}


def is_keras(function: object) -> bool:
    """Whether a function or class is Keras's own: it stands in Keras's module under its name, which wrappers copy."""
    module = str(getattr(function, "__module__", ""))
    if module.partition(".")[0] not in ("keras", "tf_keras"):
        return False
    standing = sys.modules.get(module)
    for name in str(getattr(function, "__qualname__", "")).split("."):
        standing = getattr(standing, name, None)
    return standing is function


def known(function: Function, options: Config | None = None) -> Known | None:
    """The properties of a function of Keras with these keyword arguments; None for other functions."""
    options = options or {}
    if not is_keras(function) or options.get("axis", -1) not in (-1, (-1,), [-1]):
        return None
    name = getattr(function, "__name__", "")
    properties = FUNCTIONS.get(name)
    if properties is None or options.get("from_logits", False) or name not in _LARGEST_PREDICTIONS:
        return properties
    return properties._replace(largest=_LARGEST_PREDICTIONS[name], has_logits="crossentropy" in name)


def keras_object(module: Layer, identifier: Loss, rule: str, more: Iterable[str] = ()) -> Loss:
    """The object of `keras.losses` or `keras.metrics` for a name or a configuration; `more` are further valid names."""
    resolved, cause = None, None
    try:
        resolved = module.get(identifier)
    except (ValueError, TypeError, KeyError) as error:
        cause = error
    if callable(resolved):  # Keras 2 returns some names that it does not know
        return resolved
    names = names_known_to(module.get, module, more)
    name = identifier.get("class_name") if isinstance(identifier, Mapping) else identifier
    hint = did_you_mean([name], names, "Pass one of these, an object of Keras, or a function of (y_true, y_pred).")
    if normalized(name) in ONLY_KERAS_3:
        hint = "Keras 3 has it; with Keras 2, pass a function of (y_true, y_pred) that computes it."
    raise ValueError(
        f"{rule}. Received: {identifier!r}, which Keras does not know; it has {quoted(names)}. {hint}"
    ) from cause


def with_checked_range(values: tf.Tensor, head: str, loss: Loss, predictions: tf.Tensor) -> tf.Tensor:
    """The values of a loss; an error if it takes probabilities and the predictions are none.

    XLA cannot raise errors: there, the values are NaN, so that the update is skipped.
    """
    largest = None if loss.known is None else loss.known.largest
    if largest is None or are_probabilities(predictions):
        return values
    predictions = tf.cast(predictions, tf.float32)
    low, high = tf.reduce_min(predictions), tf.reduce_max(predictions)
    is_in_range = ~((low < -TOLERANCE) | (high > largest + TOLERANCE))  # NaN is reported with the loss
    if in_xla():
        return where(is_in_range, values, float("nan"))
    rule = f"`loss` of head {head!r} takes probabilities, from 0 to 1. Received: {loss.name}, and predictions from "
    parts = [rule, low, " to ", high, f". {remedy(loss)}"]
    with tf.control_dependencies(stop_unless(is_in_range, lambda: parts)):
        return tf.identity(values)


def remedy(loss: Loss) -> str:
    """What to do about predictions that are no probabilities."""
    activation = "sigmoid" if loss.known.over == ELEMENTS else "softmax"
    if not loss.known.has_logits:
        return f"End the module with a {activation}."
    return f"If they are logits, pass a loss with `from_logits=True`; otherwise, end the module with a {activation}."


# The shapes of targets and predictions. `rank` is the number of axes that index the elements; an element has one value of a
# loss. Further axes of the targets lie within an element, such as a row's classes.


def with_columns(shape: tf.TensorShape) -> tf.TensorShape:
    """The shape of predictions as a loss sees them: `[batch]` is `[batch, 1]`."""
    return shape.concatenate(1) if shape.rank == 1 else shape


def aligned_shape(targets: tf.TensorShape, shape: tf.TensorShape, over: str | None) -> tf.TensorShape:
    """The shape of targets with the axes that a loss, or a metric, expects for predictions of a shape.

    Class numbers lose a last axis of size 1. Other targets get one if only that is missing: `[batch]` for `[batch, 1]`.
    """
    if over == CLASSES:
        return targets[:-1] if targets.rank == shape.rank and targets[-1] in (1, None) else targets
    is_one = shape[-1] == 1 or (shape[-1] is None and over is not None)
    return targets.concatenate(1) if targets.rank == shape.rank - 1 and is_one else targets


def aligned(targets: tf.Tensor, shape: tf.TensorShape, over: str | None) -> tf.Tensor:
    change = aligned_shape(targets.shape, shape, over).rank - targets.shape.rank
    return tf.expand_dims(targets, -1) if change > 0 else tf.squeeze(targets, axis=-1) if change < 0 else targets


def sizes(targets: tf.Tensor, rank: int) -> Tensor:
    """The numbers of elements along the axes: a static shape if it is known, otherwise a tensor."""
    shape = targets.shape[:rank]
    if shape.is_fully_defined():
        return shape
    return tf.shape(targets)[:rank] if targets.shape.rank > rank else tf.shape(targets)


def spread(values: tf.Tensor, targets: tf.Tensor, rank: int) -> tf.Tensor:
    """Values for all elements, from values for their first axes.

    The reshape takes the number of rows from the targets, so that another number fails even in XLA, which omits checks.
    """
    element_shape = sizes(targets, rank)
    ones = [1] * (rank - values.shape.rank)
    return tf.broadcast_to(
        tf.reshape(values, tf.concat([element_shape[:1], tf.shape(values)[1:], ones], axis=0)), element_shape
    )


def with_inner(values: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Values of the elements, with an axis of size 1 per axis of the targets within an element."""
    ones = [1] * (targets.shape.rank - values.shape.rank)
    return tf.reshape(values, tf.concat([tf.shape(values), ones], axis=0)) if ones else values
