"""How much a head and its classes count: the checks of what users give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from multihead._ground.calls import call_users
from multihead._ground.validation import as_python, check_head_names, is_number, quoted

Weight = float | Callable[[tf.Tensor], Any]


def check_weight(weight: Any) -> Weight:
    """Returns a head's weight if it is a finite number of at least 0 or a function.

    Raises:
        ValueError: It is neither.
    """
    if callable(weight):
        return weight
    weight = as_python(weight)
    if not is_number(weight) or weight < 0:
        raise ValueError(
            "`weight` must be a finite number of at least 0, or a function of the step. "
            f"Received: weight={weight!r}. To leave a head out, pass 0."
        )
    return float(weight)


def is_zero(weight: Weight) -> bool:
    """Whether a weight is a number that is 0 in single precision, as those below the smallest normal one may be."""
    return not callable(weight) and weight < float(np.finfo(np.float32).tiny)


def weight_at(given: Weight, step: tf.Tensor, name: str) -> tf.Tensor:
    """A head's weight at a step; a float32 scalar.

    Args:
        given: The head's weight.
        step: The number of updates applied so far.
        name: The head's name.

    Raises:
        ValueError: A function returns something other than one number.
    """
    weight = call_users(given, step) if callable(given) else given
    try:
        result = tf.convert_to_tensor(weight)
    except (ValueError, TypeError):
        result = tf.constant("")
    if result.shape.rank == 0 and (result.dtype.is_floating or result.dtype.is_integer):
        return tf.cast(result, tf.float32)
    raise ValueError(
        f"`weight` of head {name!r} must give one number at each update. Received: {weight!r} from {given!r}. Return a "
        "number or a scalar tensor."
    )


def check_class_weights(class_weight: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """Returns weights by class for each head that `class_weight` is about.

    Args:
        class_weight: Weights by class, by head name; for a single head, also the weights by class alone.
        names: The names of the heads.

    Raises:
        ValueError: It names something that is not a head, or has no heads' names though there are several heads.
    """
    is_by_head = isinstance(class_weight, Mapping) and (
        all(isinstance(weights, Mapping) for weights in class_weight.values()) or set(class_weight) <= set(names)
    )
    if not is_by_head and len(names) > 1:
        raise ValueError(
            "`class_weight` must be a dict by head name of weights by class if there are several heads. "
            f"Received: class_weight={class_weight!r}; the heads are {quoted(names)}. Pass, say, "
            f"{{{names[0]!r}: {{0: 1.0, 1: 5.0}}}}."
        )
    by_head = class_weight if is_by_head else {names[0]: class_weight}
    check_head_names("class_weight", by_head, names)
    return by_head
