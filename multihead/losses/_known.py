"""Keras's own losses and metrics: the elements that have one value each, and the labels that are valid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

ELEMENTS, ROWS, CLASSES = "elements", "rows", "classes"
"""The part of the predictions that one value of a function depends on.

- `"elements"`: one target and one prediction; the function is the mean of such terms over the last axis.
- `"rows"`: all targets and predictions along the last axis, which cannot be taken apart.
- `"classes"`: one class number, and the predictions along the last axis.
"""


class Known(NamedTuple):
    """A known function.

    Attributes:
        over: `ELEMENTS`, `ROWS` or `CLASSES`.
        low: The smallest label that it takes, or None.
        high: The largest, or None. Class numbers end where the predictions' last axis does.
        largest: For a function that takes probabilities, the largest prediction: 1, or infinite where Keras itself divides
            each row by its sum. None for other functions.
        has_logits: Whether such a function can also take logits, with `from_logits=True`.
        positive: Whether it is meant for numbers of at least 0, although it takes others.
    """

    over: str
    low: float | None = None
    high: float | None = None
    largest: float | None = None
    has_logits: bool = False
    positive: bool = False


_BETWEEN_0_AND_1 = ("binary_crossentropy", "binary_focal_crossentropy", "binary_accuracy")
_BETWEEN_MINUS_1_AND_1 = ("hinge", "squared_hinge")
_ANY_NUMBER = ("mean_squared_error mean_absolute_error mean_absolute_percentage_error huber log_cosh accuracy").split()
_AT_LEAST_0 = ("mean_squared_logarithmic_error", "poisson")
_DISTRIBUTIONS = (
    "categorical_crossentropy categorical_focal_crossentropy categorical_hinge kl_divergence categorical_accuracy "
    "top_k_categorical_accuracy"
).split()
_CLASS_NUMBERS = (
    "sparse_categorical_crossentropy categorical_generalized_cross_entropy sparse_categorical_accuracy "
    "sparse_top_k_categorical_accuracy"
).split()
_OF_PROBABILITIES = {
    **dict.fromkeys(("binary_crossentropy", "binary_focal_crossentropy", "kl_divergence"), 1.0),
    **dict.fromkeys(("sparse_categorical_crossentropy", "categorical_generalized_cross_entropy"), 1.0),
    **dict.fromkeys(("categorical_crossentropy", "categorical_focal_crossentropy"), float("inf")),
}
_FUNCTIONS = {
    **dict.fromkeys(_BETWEEN_0_AND_1, Known(ELEMENTS, 0, 1)),
    **dict.fromkeys(_ANY_NUMBER, Known(ELEMENTS)),
    **dict.fromkeys(_AT_LEAST_0, Known(ELEMENTS, positive=True)),
    **dict.fromkeys(_BETWEEN_MINUS_1_AND_1, Known(ELEMENTS, -1, 1)),
    **dict.fromkeys(_DISTRIBUTIONS, Known(ROWS, 0, None)),
    **dict.fromkeys(("cosine_similarity", "pearson_correlation", "concordance_correlation"), Known(ROWS)),
    **dict.fromkeys(_CLASS_NUMBERS, Known(CLASSES, 0, None)),
}


def is_keras(function: Any) -> bool:
    """Whether a function or class is Keras's own."""
    return str(getattr(function, "__module__", "")).partition(".")[0] in ("keras", "tf_keras")


def known(function: Callable[..., Any], options: Mapping[str, Any] | None = None) -> Known | None:
    """The properties of a function of Keras with some keyword arguments; None for other functions."""
    options = options or {}
    if not is_keras(function) or options.get("axis", -1) not in (-1, (-1,), [-1]):
        return None
    name = getattr(function, "__name__", "")
    found: Known | None = _FUNCTIONS.get(name)
    takes_logits = options.get("from_logits", False)
    if found is None or takes_logits or name not in _OF_PROBABILITIES:
        return found
    return found._replace(largest=_OF_PROBABILITIES[name], has_logits="crossentropy" in name)
