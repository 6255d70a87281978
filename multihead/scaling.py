"""Scaled targets: a head is trained on scaled targets, but predicts and is measured in the targets' own units.

`add_head(target_scaling=)` takes one of these, its name, or a Keras layer that can be inverted:

- `"standardize"`, `Standardize`: `z = (y - mean) / deviation`;
- `"log"`, `Log`: `z = (log(y + shift) - mean) / deviation`, for labels above 0 that span powers of ten;
- `keras.layers.Normalization` and `keras.layers.Rescaling`, as the `Standardize` that computes the same; a
  `Normalization` that is not adapted learns;
- another Keras layer with a method `inverse`: `z = layer(y)`, and `layer.inverse(z)` gives `y`.

Without a mean and a deviation, the first `fit` learns both, from all labels of its training data.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.calls import call_module, keras_mask, with_keras_mask
from multihead._ground.keras import add_state
from multihead._ground.layers import computes_as
from multihead._ground.tensors import where
from multihead._ground.types import Config, Layer, Variable
from multihead._ground.validation import as_python, check_choice, is_number
from multihead.losses._known import aligned, aligned_shape, with_columns, with_inner

__all__ = ["Log", "Standardize", "get"]

Numbers = Any
"""One number, or one per column; None: learned."""


@keras.saving.register_keras_serializable(package="multihead")
class Standardize:
    """Trains on targets of mean 0 and standard deviation 1: `z = (y - mean) / deviation`.

    With `mean=0`, it only divides, which keeps labels of at least 0 where they are: for modules that cannot predict negative
    numbers, as after a relu, and for losses in relation to the label, such as `"mape"`.

    Mean and deviation are given, or learned by the first `fit` from all labels of the training data. A label counts once,
    regardless of its sample weight. The deviation is that of the population, the square root of the mean squared distance
    from the mean; if all labels are equal, it is 1.

    Args:
        mean: A number, or one per column of the targets; None: it is learned.
        deviation: A number above 0, or one per column; required if and only if `mean` is given.
        by_column: Whether to learn a mean and a deviation per column (the last axis of the targets, if its size is
            fixed), or one for all.

    Raises:
        ValueError: Only one of `mean` and `deviation` is given, one is not finite, or the deviation is not above 0.

    Example:
        >>> Standardize(mean=250_000, deviation=90_000)
        scaling.Standardize(mean=250000.0, deviation=90000.0)
    """

    def __init__(self, mean: Numbers = None, deviation: Numbers = None, *, by_column: bool = True) -> None:
        self.by_column = bool(by_column)
        self.above: float | None = None  # labels must be above this number
        self.valid = 0.0  # a label for which `change` is defined
        self.mean = self.deviation = None
        if mean is None and deviation is None:
            return
        numbers = [np.asarray(np.nan if value is None else value) for value in (mean, deviation)]
        are_numbers = all(number.dtype.kind in "iuf" and number.ndim <= 1 and number.size for number in numbers)
        is_valid = are_numbers and all(np.isfinite(number).all() for number in numbers) and (numbers[1] > 0).all()
        if not is_valid or len({number.shape for number in numbers if number.ndim}) > 1:
            raise ValueError(
                "`mean` and `deviation` must be given together, as finite numbers or with one per column of the "
                f"targets, the deviation above 0. Received: mean={mean!r}, deviation={deviation!r}. Pass both, or neither "
                "to learn them."
            )
        self.mean, self.deviation = (np.asarray(number, "float64").tolist() for number in np.broadcast_arrays(*numbers))

    @property
    def only_divides(self) -> bool:
        """Whether it only divides, by known numbers, and does not shift labels."""
        return self.mean is not None and not np.any(self.mean)

    def change(self, labels: tf.Tensor) -> tf.Tensor:
        """The labels, `[batch, ...]` in float64, transformed as they are before they are standardized."""
        return labels

    def undo(self, changed: tf.Tensor) -> tf.Tensor:
        """The inverse of `change`, for floating-point tensors of any dtype."""
        return changed

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {"mean": self.mean, "deviation": self.deviation, "by_column": self.by_column}

    @classmethod
    def from_config(cls, config: Config) -> Standardize:
        """Creates an instance from the result of `get_config`."""
        return cls(**config)

    def __repr__(self) -> str:
        changed = {name: value for name, value in self.get_config().items() if value is not None and value is not True}
        return f"scaling.{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"


@keras.saving.register_keras_serializable(package="multihead")
class Log(Standardize):
    """Trains on standardized logarithms: `z = (log(y + shift) - mean) / deviation`, with the natural logarithm.

    For labels above 0 that span powers of ten, such as prices, durations and sizes: an error of the head is then a factor,
    not a difference. The predictions `exp(z * deviation + mean) - shift` are above `-shift`. Trained on `"mse"`, they
    estimate the geometric mean of the labels, which lies below their mean.

    Args:
        shift: The number that is added to the labels before the logarithm; all labels must be above `-shift`. 1 for counts,
            whose smallest is 0.
        mean: The mean of `log(y + shift)`: a number, or one per column of the targets; None: it is learned, as in
            `Standardize`.
        deviation: Its standard deviation; required if and only if `mean` is given.
        by_column: As in `Standardize`.

    Raises:
        ValueError: `shift` is not a finite number, or mean and deviation are not as `Standardize` takes them.

    Example:
        >>> Log(shift=1.0).change(tf.constant([0.0, 9.0])).numpy().tolist()
        [0.0, 2.3026]
    """

    def __init__(
        self, shift: float = 0.0, *, mean: Numbers = None, deviation: Numbers = None, by_column: bool = True
    ) -> None:
        if not is_number(as_python(shift)):
            raise ValueError(
                f"`shift` must be a finite number. Received: shift={shift!r}. Pass, for example, 1.0 for counts."
            )
        super().__init__(mean, deviation, by_column=by_column)
        self.shift = float(shift)
        self.above, self.valid = 0.0 - self.shift, 1.0 - self.shift

    @property
    def only_divides(self) -> bool:
        """False: a logarithm does more than divide."""
        return False

    def change(self, labels: tf.Tensor) -> tf.Tensor:
        return tf.math.log(labels + tf.constant(self.shift, labels.dtype))

    def undo(self, changed: tf.Tensor) -> tf.Tensor:
        return tf.exp(changed) - tf.constant(self.shift, changed.dtype)

    def get_config(self) -> Config:
        return {"shift": self.shift, **super().get_config()}


@keras.saving.register_keras_serializable(package="multihead")
class Linear(Standardize):
    """The scaling of a `Rescaling`: `z = (y - mean) / deviation`, where the numbers need not be a mean and a deviation."""


@keras.saving.register_keras_serializable(package="multihead")
class ByLayer(Standardize):
    """Trains on the targets after a Keras layer with a method `inverse`: `z = layer(y)`, `y = layer.inverse(z)`."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(0.0, 1.0)
        self.layer = layer

    only_divides = False  # it is unknown what the layer does

    def change(self, labels: tf.Tensor) -> tf.Tensor:
        inputs = tf.cast(labels, self.layer.compute_dtype or labels.dtype)
        return tf.cast(call_module(self.layer, inputs, training=False), labels.dtype)

    def undo(self, changed: tf.Tensor) -> tf.Tensor:
        return tf.cast(self.layer.inverse(tf.cast(changed, self.layer.compute_dtype or changed.dtype)), changed.dtype)

    def get_config(self) -> Config:
        return {"layer": keras.saving.serialize_keras_object(self.layer)}

    @classmethod
    def from_config(cls, config: Config) -> ByLayer:
        return cls(keras.saving.deserialize_keras_object(config["layer"]))


_NAMES: dict[str, type[Standardize]] = {"standardize": Standardize, "log": Log}


def get(scaling: object) -> Standardize | None:
    """The scaling for a value of `add_head(target_scaling=)`; None for None.

    Raises:
        ValueError: `scaling` is a string that is not one of these names.
        TypeError: `scaling` is something else, or a layer that cannot be inverted.
    """
    if scaling is None or isinstance(scaling, Standardize):
        return scaling
    if isinstance(scaling, str):
        return _NAMES[check_choice("target_scaling", scaling, list(_NAMES))]()
    if isinstance(scaling, keras.layers.Layer) and callable(getattr(scaling, "inverse", None)):
        if isinstance(scaling, keras.layers.Normalization) and _numbers_of(scaling)[0] is None:
            raise ValueError(
                "`target_scaling` must be adapted if it is a `Normalization` with its own method `inverse`. "
                f"Received: target_scaling={scaling!r}. Call its `adapt` with the targets, or pass it a mean and a variance."
            )
        return ByLayer(scaling)
    if computes_as(scaling, keras.layers.Normalization) and not scaling.invert:
        return _of_normalization(scaling)
    if computes_as(scaling, keras.layers.Rescaling) and np.all(np.asarray(scaling.scale) > 0):
        scale = np.asarray(scaling.scale, "float64")
        return Linear(-np.asarray(scaling.offset, "float64") / scale, 1 / scale)
    raise TypeError(
        "`target_scaling` must be 'standardize', 'log', one of multihead.scaling, or a Keras layer that can be inverted: a "
        "`Normalization` without `invert`, a `Rescaling` whose scale is above 0, or a layer with a method `inverse`. "
        f"Received: target_scaling={scaling!r}. Pass, say, 'standardize'."
    )


def _of_normalization(layer: Layer) -> Standardize:
    """The scaling that computes what a `Normalization` does."""
    mean, variance = _numbers_of(layer)
    last = (-1, len(layer.mean.shape) - 1) if layer.built else (-1,)
    is_one = mean is not None and np.size(mean) == np.size(variance) == 1  # the same number on all axes
    if not is_one and layer.axis != () and (len(layer.axis) != 1 or layer.axis[0] not in last):
        raise ValueError(
            "`target_scaling` must be a `Normalization` over the last axis of the targets, with axis=-1, or over all, with "
            f"axis=None. Received: target_scaling={layer!r} with axis={layer.axis}. If this axis is the last one, pass "
            "axis=-1; otherwise put it last in targets and predictions, or pass your own layer with a method `inverse`."
        )
    if mean is None:
        return Standardize(by_column=layer.axis != ())
    return Standardize(mean, np.maximum(np.sqrt(np.asarray(variance, "float64")), keras.backend.epsilon()))


def _numbers_of(layer: Layer) -> tuple[Numbers, Numbers]:
    """The mean and the variance of a `Normalization`; None for both if it is not adapted."""
    mean, variance = layer.input_mean, layer.input_variance
    if mean is None and layer.built:
        mean, variance = (np.asarray(tf.identity(variable)) for variable in (layer.adapt_mean, layer.adapt_variance))
        if not mean.any() and (variance == 1).all():  # their values before `adapt`
            return None, None
    return mean, variance


class TargetScaling(keras.layers.Layer):
    """The scaling of a head's targets; mean and deviation are float64 variables, and `known` is 0 until they are learned."""

    def __init__(self, head: str, scaling: Standardize) -> None:
        super().__init__(name="target_scaling", dtype="float32", trainable=False)
        self.head, self.scaling = head, scaling
        self.layer: Layer = scaling.layer if isinstance(scaling, ByLayer) else None  # saved with this layer
        # 0 and 1 are placeholders before the head is built, and until the numbers are learned, when only shapes matter.
        self.mean: Variable = np.asarray(0.0 if scaling.mean is None else scaling.mean, "float64")
        self.deviation: Variable = np.asarray(1.0 if scaling.mean is None else scaling.deviation, "float64")
        self.known: Variable = None

    @property
    def current(self) -> Standardize:
        """The scaling with its current mean and deviation; None for those that are not learned yet."""
        if self.scaling.mean is not None or self.known is None:
            return self.scaling
        with tf.init_scope():
            variables = (self.mean, self.deviation, self.known)
            mean, deviation, known = (tf.convert_to_tensor(variable).numpy() for variable in variables)
        if not known:
            return self.scaling
        mean, deviation = (number.item() if number.size == 1 else number.tolist() for number in (mean, deviation))
        return type(self.scaling)(**{**self.scaling.get_config(), "mean": mean, "deviation": deviation})

    def build_for(self, targets: tf.TensorSpec, predictions: tf.TensorSpec, over: str | None) -> None:
        """Creates the variables, once; an error if the columns do not fit the predictions or the known numbers."""
        shape, learns = with_columns(predictions.shape), self.scaling.mean is None
        target_shape = aligned_shape(targets.shape, shape, over)
        parameter_shape = tuple(self.mean.shape)
        has_columns = target_shape.rank == shape.rank
        if self.known is None and learns and has_columns and self.scaling.by_column and target_shape[-1] is not None:
            parameter_shape = (target_shape[-1],)
        width = parameter_shape[0] if parameter_shape else 1
        fits = has_columns and {target_shape[-1], shape[-1]} <= {None, width}  # a size may be unknown
        if width != 1 and not fits:
            raise ValueError(
                f"`target_scaling` of head {self.head!r} must have one mean and deviation per column of its targets, "
                f"which must be the columns of its predictions, or one for all. Received: {width} for targets of shape "
                f"{targets.shape} and predictions of shape {predictions.shape}. Pass `by_column=False`, or single numbers."
            )
        if self.known is not None:
            return
        for name, value in {"mean": self.mean, "deviation": self.deviation, "known": not learns}.items():
            sizes = () if name == "known" else parameter_shape
            values = keras.initializers.Constant(np.broadcast_to(np.asarray(value, "float64"), sizes))
            setattr(self, name, add_state(self, name, sizes, values, dtype="float64"))
        self.built = True
        if self.layer is None:
            return
        sample = tf.ones([2, *(size or 1 for size in target_shape[1:])], tf.float64)
        back = self.scaling.undo(self.scaling.change(sample))
        if self.layer.trainable_variables:
            raise ValueError(
                f"`target_scaling` of head {self.head!r} must be a layer without trainable variables, since nothing trains "
                f"it. Received: {self.layer.name!r}. Set its `trainable = False`."
            )
        if tf.executing_eagerly() and not np.allclose(back, sample, rtol=1e-3, atol=1e-3):
            raise ValueError(
                f"`target_scaling` of head {self.head!r} must be a layer whose `inverse` gives back what it was given. "
                f"Received: {self.layer.name!r}, which makes {float(tf.reshape(back, [-1])[0]):g} of 1. Correct `inverse`."
            )

    def scale(self, targets: tf.Tensor, weights: tf.Tensor, predictions: tf.TensorSpec, over: str | None) -> tf.Tensor:
        """Scaled targets, float32, or float64 if targets or predictions are; 0 for those that do not count."""
        changed, counts = self.changed(targets, weights, predictions, over)
        mean, deviation = self._numbers(tf.float64)
        scaled = (changed - mean) / deviation
        dtype = tf.float64 if tf.float64 in (targets.dtype, predictions.dtype) else tf.float32
        scaled = tf.cast(where(counts, scaled, tf.zeros_like(scaled)), dtype)
        return scaled if scaled.shape.rank == targets.shape.rank else tf.reshape(scaled, tf.shape(targets))

    def changed(
        self, targets: tf.Tensor, weights: tf.Tensor, predictions: tf.TensorSpec, over: str | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Targets before they are standardized, in float64 with an axis of columns, and which of them count; see `scale`."""
        labels = aligned(targets, with_columns(predictions.shape), over)
        counts = tf.broadcast_to(with_inner((weights > 0) & (weights < float("inf")), labels), tf.shape(labels))
        valid = tf.constant(self.scaling.valid, tf.float64)
        return self.scaling.change(where(counts, tf.cast(labels, tf.float64), valid)), counts

    def unscale(self, predictions: tf.Tensor) -> tf.Tensor:
        """Predictions in the units of the targets: float32, or float64 if they are."""
        if not tf.is_tensor(predictions) or not predictions.dtype.is_floating:
            raise ValueError(
                f"`target_scaling` of head {self.head!r} requires predictions that are one floating tensor. Received: "
                f"{predictions}. Let the module, or its `generate`, return the scaled targets that it predicts."
            )
        mask, dtype = keras_mask(predictions), tf.float64 if predictions.dtype == tf.float64 else tf.float32
        mean, deviation = self._numbers(dtype)
        return with_keras_mask(self.scaling.undo(tf.cast(predictions, dtype) * deviation + mean), mask)

    def _numbers(self, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(tf.convert_to_tensor(self.mean), dtype), tf.cast(tf.convert_to_tensor(self.deviation), dtype)
