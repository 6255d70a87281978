"""One step of Keras's recurrent cells from their weights, in fewer operations than the cells themselves need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ._recurrent import State

CellStep = Callable[[Sequence[tf.Tensor], State], tuple[tf.Tensor, State]]
"""From the parts of the input, each `[rows, size]`, and the state to the hidden state and the state after the step."""


def weight_tensor(weight: Any, dtype: Any) -> tf.Tensor:
    """A weight of Keras 2 or Keras 3 as a tensor of a dtype."""
    return tf.cast(tf.convert_to_tensor(weight), dtype)


def cell_step(layer: keras.layers.Layer) -> CellStep:
    """The step of an LSTM or GRU layer in its default form, without dropout."""
    if isinstance(layer, keras.layers.LSTM):
        return LSTMStep(layer)
    return GRUStep(layer)


class LSTMStep:
    """The step of an LSTM.

    Args:
        layer: A layer that is built.
    """

    def __init__(self, layer: keras.layers.LSTM) -> None:
        self._kernels = _kernels(layer)
        self._bias = weight_tensor(layer.cell.bias, layer.compute_dtype)

    def __call__(self, parts: Sequence[tf.Tensor], state: State) -> tuple[tf.Tensor, State]:
        """One step; see `CellStep`."""
        hidden, carry = state
        of_inputs, of_hidden = _products(parts, hidden, self._kernels)
        gates = tf.nn.bias_add(of_inputs + of_hidden, self._bias)
        of_input, of_carry, candidate, of_output = tf.split(gates, 4, axis=1)
        carry = tf.sigmoid(of_carry) * carry + tf.sigmoid(of_input) * tf.tanh(candidate)
        hidden = tf.sigmoid(of_output) * tf.tanh(carry)
        return hidden, (hidden, carry)


class GRUStep:
    """The step of a GRU that applies its reset gate after the product, as Keras's does by default.

    Args:
        layer: A layer that is built.
    """

    def __init__(self, layer: keras.layers.GRU) -> None:
        self._kernels = _kernels(layer)
        self._biases = tf.unstack(weight_tensor(layer.cell.bias, layer.compute_dtype))
        self._sizes = [2 * layer.cell.units, layer.cell.units]

    def __call__(self, parts: Sequence[tf.Tensor], state: State) -> tuple[tf.Tensor, State]:
        """One step; see `CellStep`."""
        products = _products(parts, state, self._kernels)
        products = [tf.nn.bias_add(product, bias) for product, bias in zip(products, self._biases)]
        (gates, candidate), (own_gates, own_candidate) = (tf.split(each, self._sizes, axis=1) for each in products)
        update, reset = tf.split(tf.sigmoid(gates + own_gates), 2, axis=1)
        candidate = tf.tanh(candidate + reset * own_candidate)
        hidden = candidate + update * (state - candidate)
        return hidden, hidden


def _kernels(layer: Any) -> list[tf.Tensor]:
    """The kernels for the inputs and for the hidden state."""
    return [weight_tensor(each, layer.compute_dtype) for each in (layer.cell.kernel, layer.cell.recurrent_kernel)]


def _products(parts: Sequence[tf.Tensor], hidden: tf.Tensor, kernels: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The inputs and the hidden state, each times its kernel."""
    inputs = parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)
    return [tf.matmul(inputs, kernels[0]), tf.matmul(hidden, kernels[1])]
