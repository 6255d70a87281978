"""Which values a module can predict, known from the Keras classes of its last layers and from Keras's activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.keras import KERAS_3
from multihead._ground.layers import inputs_of, is_functional, layer_of, nodes_in_order, outputs_of
from multihead._ground.types import Layer

INFINITE = math.inf


class Reach(NamedTuple):
    """The interval in which predictions lie, and whether those of a row are parts of one."""

    low: float = -INFINITE
    high: float = INFINITE
    sums_to_one: bool = False

    def moved(self, factor: float, offset: float) -> Reach:
        """The reach of `factor * prediction + offset`."""
        if factor == 0:
            return Reach(offset, offset)
        low, high = sorted(factor * end + offset for end in (self.low, self.high))
        return Reach(low, high)

    def hull(self, other: Reach) -> Reach:
        return Reach(min(self.low, other.low), max(self.high, other.high))

    def __str__(self) -> str:
        if self.sums_to_one:
            return "parts of one, which add up to 1 in each row"
        if self.low > -INFINITE and self.high < INFINITE:
            return f"numbers from {self.low:.3g} to {self.high:.3g}"
        if self.low > -INFINITE:
            return f"numbers of at least {self.low:.3g}"
        return f"numbers of at most {self.high:.3g}" if self.high < INFINITE else "all numbers"


EVERYTHING, ZERO = Reach(), Reach(0, 0)
_POSITIVE, _FRACTION, _SYMMETRIC, _PARTS = Reach(0), Reach(0, 1), Reach(-1, 1), Reach(0, 1, sums_to_one=True)

BY_NAME: dict[str, Reach] = {
    **dict.fromkeys(("relu", "softplus", "exponential", "squareplus", "sparse_plus"), _POSITIVE),
    **dict.fromkeys(("sigmoid", "hard_sigmoid", "sparse_sigmoid"), _FRACTION),
    **dict.fromkeys(("tanh", "softsign", "hard_tanh"), _SYMMETRIC),
    **dict.fromkeys(("softmax", "sparsemax"), _PARTS),
    **dict.fromkeys(("log_sigmoid", "log_softmax"), Reach(high=0)),
    **dict.fromkeys(("elu", "celu"), Reach(-1)),
    **dict.fromkeys(("silu", "swish"), Reach(-0.2785)),
    **dict.fromkeys(("hard_silu", "hard_swish"), Reach(-0.375)),
    **dict.fromkeys(("leaky_relu", "glu", "hard_shrink", "soft_shrink", "tanh_shrink"), EVERYTHING),
    "gelu": Reach(-0.1701),
    "mish": Reach(-0.3089),
    "relu6": Reach(0, 6),
    "selu": Reach(-1.7581),
}
"""What Keras's activations return with their default arguments, by name; all numbers for `linear`, which changes none."""

_OPERATIONS = {**BY_NAME, "exp": _POSITIVE, "absolute": _POSITIVE, "abs": _POSITIVE, "square": _POSITIVE, "sqrt": _POSITIVE}

_ACTIVATIONS: dict[object, Reach] = {
    getattr(module, name): reach
    for module in (keras.activations, tf.nn, tf.math)
    for name, reach in _OPERATIONS.items()
    if callable(getattr(module, name, None))
}

_KEPT = (
    "Activation ActivityRegularization AlphaDropout AveragePooling1D AveragePooling2D AveragePooling3D CenterCrop "
    "Cropping1D Cropping2D Cropping3D Dropout Flatten GaussianDropout GlobalAveragePooling1D GlobalAveragePooling2D "
    "GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D Identity MaxPooling1D MaxPooling2D "
    "MaxPooling3D Permute RepeatVector Reshape SpatialDropout1D SpatialDropout2D SpatialDropout3D UpSampling1D"
).split()
"""Layers whose results lie between their inputs, in inference."""
_WITH_ZEROS = "Masking ZeroPadding1D ZeroPadding2D ZeroPadding3D".split()
_LINEAR = (
    "Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose Dense DepthwiseConv1D DepthwiseConv2D EinsumDense "
    "Embedding SeparableConv1D SeparableConv2D BatchNormalization"
).split()
"""Layers that can return any number, up to the activation that they may end in."""


def reach_of(module: Layer) -> Reach | None:
    """Which values a module can predict; None if the classes of its layers do not tell."""
    return _through(module, [None])


def reach_of_operation(kind: str | None) -> Reach | None:
    """Which values an operation of a TensorFlow graph returns, by its type, such as `"Softplus"`; None: not known."""
    names = {"BiasAdd": EVERYTHING, "MatMul": EVERYTHING, "Log": EVERYTHING, "LogSoftmax": BY_NAME["log_softmax"]}
    return None if kind is None else names.get(kind, _OPERATIONS.get(kind.lower()))


def _is(layer: Layer, names: Sequence[str]) -> bool:
    """Whether a layer is of one of Keras's own classes, and not of a subclass, which may compute something else."""
    return any(type(layer) is getattr(keras.layers, name, None) for name in names)


def _of_activation(activation: Any, reach: Reach | None) -> Reach | None:
    """What an activation makes of numbers."""
    if activation is None or activation is keras.activations.linear:
        return reach
    if isinstance(activation, keras.layers.Layer):
        return _through(activation, [reach])
    return _ACTIVATIONS.get(activation)


def _through(layer: Layer, inputs: Sequence[Reach | None]) -> Reach | None:
    """What a layer, a model or an operation makes of numbers."""
    if type(layer) is keras.Sequential:
        for sublayer in layer.layers:
            inputs = [_through(sublayer, inputs)]
        return inputs[0]
    if isinstance(layer, keras.Model):
        return _of_graph(layer) if is_functional(layer) else None
    one = inputs[0] if len(inputs) == 1 else None
    if _is(layer, _KEPT):
        return _of_activation(getattr(layer, "activation", None), one)
    if _is(layer, _LINEAR):
        return _of_activation(getattr(layer, "activation", None), EVERYTHING)
    if _is(layer, _WITH_ZEROS):
        return None if one is None else one.hull(ZERO)
    if _is(layer, ["TimeDistributed"]):
        return _through(layer.layer, inputs)
    if _is(layer, ["LSTM", "GRU", "SimpleRNN"]):  # gates, which are fractions, let a part of the activation pass
        reach = _of_activation(layer.activation, EVERYTHING)
        return None if reach is None else reach.hull(ZERO)
    if _is(layer, ["Bidirectional"]) and layer.merge_mode in ("concat", "ave"):
        return _through(layer.forward_layer, inputs)
    if _is(layer, ["ReLU", "LeakyReLU", "ELU", "PReLU", "Softmax"]):
        return _of_activation_layer(layer)
    if _is(layer, ["Rescaling"]):
        known = EVERYTHING if one is None else one
        ends = [known.moved(float(a), float(b)) for a, b in np.broadcast(np.asarray(layer.scale), np.asarray(layer.offset))]
        whole = ends[0]
        for end in ends[1:]:
            whole = whole.hull(end)
        return None if one is None else whole
    if any(reach is None for reach in inputs):
        return _of_operation(layer)
    by_kind: dict[str, Callable[[Sequence[Reach]], Reach]] = {
        "Add": lambda reaches: Reach(sum(reach.low for reach in reaches), sum(reach.high for reach in reaches)),
        "Average": lambda reaches: Reach(*(sum(ends) / len(reaches) for ends in list(zip(*reaches))[:2])),
        "Concatenate": lambda reaches: Reach(min(reach.low for reach in reaches), max(reach.high for reach in reaches)),
        "Maximum": lambda reaches: Reach(max(reach.low for reach in reaches), max(reach.high for reach in reaches)),
        "Minimum": lambda reaches: Reach(min(reach.low for reach in reaches), min(reach.high for reach in reaches)),
        "Subtract": lambda reaches: Reach(reaches[0].low - reaches[1].high, reaches[0].high - reaches[1].low),
        "Multiply": _product,
    }
    for kind, combined in by_kind.items():
        if _is(layer, [kind]):
            return combined([reach for reach in inputs if reach is not None])
    return _of_operation(layer)


def _of_activation_layer(layer: Layer) -> Reach | None:
    """What a layer that is an activation returns, with its own arguments."""
    if _is(layer, ["Softmax"]):
        return _PARTS if layer.axis in (-1, [-1], (-1,)) else _FRACTION
    if _is(layer, ["ELU"]):
        return Reach(-abs(float(layer.alpha)))
    if _is(layer, ["ReLU"]):
        slope, above = float(layer.negative_slope), INFINITE if layer.max_value is None else float(layer.max_value)
        return Reach(0.0 if slope == 0 else -INFINITE, above)
    return EVERYTHING


def _product(factors: Sequence[Reach]) -> Reach:
    product = factors[0]
    for factor in factors[1:]:
        products = [a * b if a and b else 0.0 for a in product[:2] for b in factor[:2]]
        product = Reach(min(products), max(products))
    return product


def _of_operation(operation: Layer) -> Reach | None:
    """What an operation in the graph of a functional model returns: an activation that was called on a symbolic tensor."""
    if not KERAS_3:
        function: Any = tf  # Keras 2 keeps the name under which TensorFlow exports it, such as `math.softplus`
        for part in str(getattr(operation, "symbol", "")).split("."):
            function = getattr(function, part, None)
        return _ACTIVATIONS.get(function)
    is_keras = type(operation).__module__.startswith("keras.src.ops.")
    kind = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in type(operation).__name__)
    reach = _OPERATIONS.get(kind.lstrip("_")) if is_keras else None
    defaults = {"alpha": 1.0, "axis": -1}
    return reach if all(getattr(operation, name, value) == value for name, value in defaults.items()) else None


def _of_graph(model: keras.Model) -> Reach | None:
    """What a functional model with one output returns."""
    outputs = tf.nest.flatten(model.output)
    if len(outputs) != 1:
        return None
    known: dict[int, Reach | None] = {}
    for node in nodes_in_order(outputs):
        inputs = [known.get(id(tensor)) for tensor in inputs_of(node)]
        results = outputs_of(node)
        reach = _through(layer_of(node), inputs) if inputs and len(results) == 1 else None
        known.update({id(tensor): reach for tensor in results})
    return known.get(id(outputs[0]))
