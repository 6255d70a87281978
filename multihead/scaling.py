"""Scaled targets: a head is trained on scaled targets, and predicts and is measured in the targets' own units.

`add_head(target_scaling=)` takes one of these, its name, or a Keras layer that can be inverted:

- `"standardize"`, `Standardize`: `z = (y - mean) / deviation`;
- `"log"`, `Log`: `z = (log(y + shift) - mean) / deviation`, for labels above 0 that span powers of ten;
- `keras.layers.Normalization` and `keras.layers.Rescaling`, as the `Standardize` that computes the same; a
  `Normalization` that is not adapted learns;
- another Keras layer with a method `inverse`: `z = layer(y)`, and `layer.inverse(z)` gives `y`.

A mean and a deviation that are not given are learned by the first `fit`, from all labels of its training data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.calls import call_module
from multihead._ground.validation import as_python, check_choice, is_number

__all__ = ["Log", "Standardize", "get"]

Number = float | list[float]
"""A number, or one for each column of the targets."""


class Scaling(ABC):
    """A change of the targets, which can be undone.

    Attributes:
        mean: The mean of the changed labels; None if it is to be learned.
        deviation: Their standard deviation, likewise.
        by_column: Whether each column of the targets has its own mean and deviation.
        above: The number that labels must be above; None if they may be any.
        valid: A label that can be changed.
    """

    mean: Number | None = None
    deviation: Number | None = None
    by_column: bool = True
    above: float | None = None
    valid: float = 0.0

    @property
    def learns(self) -> bool:
        """Whether mean and deviation are to be learned."""
        return self.mean is None

    @abstractmethod
    def change(self, labels: tf.Tensor) -> tf.Tensor:
        """The labels before they are standardized.

        Args:
            labels: `[batch, ...]`, float64.
        """

    @abstractmethod
    def undo(self, changed: tf.Tensor) -> tf.Tensor:
        """The inverse of `change`, for floating tensors of any dtype."""

    @abstractmethod
    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Scaling:
        """Creates an instance from the result of `get_config`."""
        return cls(**config)

    def __repr__(self) -> str:
        given = {name: value for name, value in self.get_config().items() if value is not None and value is not True}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


@keras.saving.register_keras_serializable(package="multihead")
class Standardize(Scaling):
    """Trains on targets of mean 0 and standard deviation 1: `z = (y - mean) / deviation`.

    Mean and deviation are given, or learned by the first `fit`: over all labels of the training data that are present, each
    of which counts once, whatever its sample weight is. The deviation is that of the labels themselves, the square root of
    the mean squared distance from the mean; labels that are all equal have the deviation 1.

    Args:
        mean: A number, or one for each column of the targets; None: it is learned.
        deviation: A number above 0, or one for each column; given if and only if `mean` is.
        by_column: Whether to learn a mean and a deviation for each column (the last axis of the targets, if its size is
            fixed), or one for all.

    Raises:
        ValueError: Only one of `mean` and `deviation` is given, one is not finite, or the deviation is not above 0.

    Example:
        >>> Standardize(mean=250_000, deviation=90_000)
        Standardize(mean=250000.0, deviation=90000.0)
    """

    def __init__(self, mean: Any = None, deviation: Any = None, *, by_column: bool = True) -> None:
        self.mean, self.deviation = _check_given(mean, deviation)
        self.by_column = bool(by_column)

    def change(self, labels: tf.Tensor) -> tf.Tensor:
        return labels

    def undo(self, changed: tf.Tensor) -> tf.Tensor:
        return changed

    def get_config(self) -> dict[str, Any]:
        return {"mean": self.mean, "deviation": self.deviation, "by_column": self.by_column}


@keras.saving.register_keras_serializable(package="multihead")
class Log(Scaling):
    """Trains on standardized logarithms: `z = (log(y + shift) - mean) / deviation`, with the natural logarithm.

    For labels above 0 that span powers of ten, such as prices, durations and sizes: an error of the head is then a factor,
    not a difference. The predictions `exp(z * deviation + mean) - shift` are above `-shift`. Trained on `"mse"`, they tend
    to the median of labels of skewed distributions, which lies below the mean.

    Args:
        shift: What is added to the labels before the logarithm; all labels must be above `-shift`. 1 for counts, whose
            smallest is 0.
        mean: The mean of `log(y + shift)`: a number, or one for each column of the targets; None: it is learned, as in
            `Standardize`.
        deviation: Its standard deviation; given if and only if `mean` is.
        by_column: As in `Standardize`.

    Raises:
        ValueError: `shift` is not a finite number, only one of `mean` and `deviation` is given, one is not finite, or the
            deviation is not above 0.

    Example:
        >>> Log(shift=1.0).change(tf.constant([0.0, 9.0])).numpy().tolist()
        [0.0, 2.3026]
    """

    def __init__(self, shift: float = 0.0, *, mean: Any = None, deviation: Any = None, by_column: bool = True) -> None:
        if not is_number(as_python(shift)):
            raise ValueError(
                f"`shift` must be a finite number. Received: shift={shift!r}. Pass, for example, 1.0 for counts."
            )
        self.shift = float(shift)
        self.mean, self.deviation = _check_given(mean, deviation)
        self.by_column = bool(by_column)
        self.above = 0.0 - self.shift
        self.valid = 1.0 - self.shift

    def change(self, labels: tf.Tensor) -> tf.Tensor:
        return tf.math.log(labels + tf.constant(self.shift, labels.dtype))

    def undo(self, changed: tf.Tensor) -> tf.Tensor:
        return tf.exp(changed) - tf.constant(self.shift, changed.dtype)

    def get_config(self) -> dict[str, Any]:
        return {"shift": self.shift, "mean": self.mean, "deviation": self.deviation, "by_column": self.by_column}


@keras.saving.register_keras_serializable(package="multihead")
class ByLayer(Scaling):
    """Trains on what a Keras layer makes of the targets: `z = layer(y)`, `y = layer.inverse(z)`.

    Args:
        layer: A layer with a method `inverse`.
    """

    mean, deviation = 0.0, 1.0

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def change(self, labels: tf.Tensor) -> tf.Tensor:
        given = tf.cast(labels, self.layer.compute_dtype or labels.dtype)
        return tf.cast(call_module(self.layer, given, training=False), labels.dtype)

    def undo(self, changed: tf.Tensor) -> tf.Tensor:
        return tf.cast(self.layer.inverse(tf.cast(changed, self.layer.compute_dtype or changed.dtype)), changed.dtype)

    def get_config(self) -> dict[str, Any]:
        return {"layer": keras.saving.serialize_keras_object(self.layer)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ByLayer:
        return cls(keras.saving.deserialize_keras_object(config["layer"]))


_NAMES = {"standardize": Standardize, "log": Log}


def get(scaling: Any) -> Scaling | None:
    """Returns the scaling for what `add_head(target_scaling=)` takes; None for None.

    Args:
        scaling: `"standardize"`, `"log"`, a scaling, or a Keras layer that can be inverted.

    Raises:
        ValueError: The name is unknown, or a layer of Keras is not adapted or cannot be inverted.
        TypeError: It is none of these.
    """
    if scaling is None or isinstance(scaling, Scaling):
        return scaling
    if isinstance(scaling, str):
        return _NAMES[check_choice("target_scaling", scaling, list(_NAMES))]()
    if isinstance(scaling, keras.layers.Normalization) and not scaling.invert:
        return _of_normalization(scaling)
    if isinstance(scaling, keras.layers.Rescaling) and np.all(np.asarray(scaling.scale) > 0):
        scale = np.asarray(scaling.scale, "float64")
        return Standardize(-np.asarray(scaling.offset, "float64") / scale, 1 / scale)
    if isinstance(scaling, keras.layers.Layer) and callable(getattr(scaling, "inverse", None)):
        return ByLayer(scaling)
    raise TypeError(
        "`target_scaling` must be 'standardize', 'log', one of multihead.scaling, or a Keras layer that can be inverted: a "
        "`Normalization` without `invert`, a `Rescaling` whose scale is above 0, or a layer with a method `inverse`. "
        f"Received: target_scaling={scaling!r}. Pass, say, 'standardize'."
    )


def _of_normalization(layer: Any) -> Standardize:
    """What Keras's layer computes with its mean and variance; one that learns if it has none yet."""
    mean, variance = layer.input_mean, layer.input_variance
    if mean is None and layer.built:
        mean, variance = (np.asarray(tf.convert_to_tensor(each)) for each in (layer.adapt_mean, layer.adapt_variance))
        if not mean.any() and (variance == 1).all():  # as they are before `adapt`
            mean = None
    if mean is None:
        return Standardize(by_column=layer.axis != ())
    return Standardize(mean, np.maximum(np.sqrt(np.asarray(variance, "float64")), keras.backend.epsilon()))


def _check_given(mean: Any, deviation: Any) -> tuple[Number | None, Number | None]:
    """A given mean and deviation, as numbers or lists of numbers."""
    if mean is None and deviation is None:
        return None, None
    found = [None if value is None else np.asarray(value) for value in (mean, deviation)]
    is_valid = all(
        each is not None and each.dtype.kind in "iuf" and each.ndim <= 1 and each.size and np.isfinite(each).all()
        for each in found
    )
    if not is_valid or len({each.shape for each in found if each is not None and each.ndim}) > 1:
        raise ValueError(
            "`mean` and `deviation` must be given together, as finite numbers or with one for each column of the targets. "
            f"Received: mean={mean!r}, deviation={deviation!r}. Pass both, or neither to learn them."
        )
    numbers = [np.asarray(each, "float64") for each in found]
    if not (numbers[1] > 0).all():
        raise ValueError(
            f"`deviation` must be above 0. Received: deviation={deviation!r}. Pass 1.0 to leave the scale as it is."
        )
    mean, deviation = (each.tolist() for each in np.broadcast_arrays(*numbers))
    return mean, deviation
