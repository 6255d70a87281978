"""Recurrent layers, their states and dropout, the same on Keras 2 and Keras 3.

The only file of this package that uses a private name of Keras.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

CELLS = ("lstm", "gru")

State = Any
"""One layer's state: a tensor (GRU) or a pair of tensors (LSTM: hidden, carry), each `[batch, units]`."""


def recurrent_layer(cell: str, units: int, *, go_backwards: bool = False, name: str, dtype: Any) -> keras.layers.Layer:
    """A Keras LSTM or GRU layer that returns its outputs and its final state and can use the cuDNN kernel on a GPU."""
    kind = keras.layers.LSTM if cell == "lstm" else keras.layers.GRU
    layer = kind(units, return_sequences=True, return_state=True, go_backwards=go_backwards, name=name, dtype=dtype)
    if hasattr(layer, "_could_use_gpu_kernel") and not tf.config.list_physical_devices("GPU"):
        layer._could_use_gpu_kernel = False  # Keras 2 would also trace every call for a GPU, which takes seconds each
    return layer


def state_list(state: State) -> list[tf.Tensor]:
    """A layer's state as the list that Keras cells take."""
    return list(state) if isinstance(state, (tuple, list)) else [state]


def state_of(tensors: list[tf.Tensor]) -> State:
    """A layer's state from the list that Keras returns: a tensor for a GRU, a pair for an LSTM."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def hidden_of(state: State) -> tf.Tensor:
    """The hidden state of a layer's state, `[batch, units]`."""
    return state_list(state)[0]


def dropout(inputs: tf.Tensor, rate: float, training: bool | None) -> tf.Tensor:
    """Dropout without a random state of its own, so that saved weights are the same on Keras 2 and Keras 3."""
    if rate and training:
        return tf.nn.dropout(inputs, rate)
    return inputs


def build_layer(layer: keras.layers.Layer, *shape: Any) -> None:
    """Creates a sub-layer's weights under its name."""
    with tf.name_scope(layer.name):
        layer.build(tuple(shape))
