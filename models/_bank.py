"""Several experts side by side: dense networks of the same sizes that read the same inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ._checks import check_count


def check_units(argument: str, value: Any) -> tuple[int, ...]:
    """The sizes of an expert's layers as a tuple, of an integer or a sequence of integers.

    Raises:
        ValueError: If there is none, or one is no integer of at least 1.
    """
    sizes = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not sizes:
        raise ValueError(f"`{argument}` must have at least one size. Received: {argument}={value!r}. Pass {argument}=16.")
    return tuple(check_count(argument, size) for size in sizes)


class ExpertBank(keras.layers.Layer):
    """A number of dense networks with weights of their own.

    The kernels of a layer are one variable, `[experts, inputs, units]`, each initialized as that of a `Dense` layer.

    Args:
        number: Number of experts.
        units: Sizes of each expert's layers.
        activation: Activation of all layers.
        name: Name of the layer.
        dtype: Dtype policy.
    """

    def __init__(self, number: int, units: Sequence[int], activation: Any, *, name: str, dtype: Any) -> None:
        super().__init__(name=name, dtype=dtype)
        self.number = number
        self.units = tuple(units)
        self.activation = keras.activations.get(activation)
        self.kernels: list[Any] = []
        self.biases: list[Any] = []

    def build(self, inputs_shape: Any) -> None:
        width = inputs_shape[-1]
        for place, units in enumerate(self.units):
            limit = math.sqrt(6.0 / (width + units))  # Glorot and Bengio (2010), as in a Dense layer
            uniform = keras.initializers.RandomUniform(-limit, limit)
            kernel = self.add_weight(name=f"kernel_{place}", shape=(self.number, width, units), initializer=uniform)
            bias = self.add_weight(name=f"bias_{place}", shape=(self.number, units), initializer="zeros")
            self.kernels.append(kernel)
            self.biases.append(bias)
            width = units
        self.built = True

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """The experts' outputs, `[batch, experts, units]`, of inputs `[batch, features]`."""
        outputs = inputs
        for place, (kernel, bias) in enumerate(zip(self.kernels, self.biases)):
            equation = "bf,nfu->bnu" if place == 0 else "bnf,nfu->bnu"
            outputs = self.activation(tf.einsum(equation, outputs, kernel) + bias)
        return outputs
