"""Recurrent layers, their states, attention layers and dropout, the same on Keras 2 and Keras 3.

The only file of this package that uses private names of Keras.
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


def dropout_layer(rate: float, *, name: str = "dropout_layer", dtype: Any = None) -> keras.layers.Dropout:
    """A dropout layer whose random state Keras saves. It has no weights, so saved weights fit both versions of Keras."""
    return keras.layers.Dropout(rate, name=name, dtype=dtype)


def draw_seed(layer: keras.layers.Dropout) -> tf.Tensor:
    """A seed for TensorFlow's stateless random numbers, int32 `[2]`, drawn with a dropout layer of rate 0.5."""
    bits = tf.cast(layer(tf.ones([2, 31], layer.compute_dtype), training=True) > 0, tf.int32)
    return tf.reduce_sum(bits * tf.bitwise.left_shift(1, tf.range(31)), axis=1)


def attention_layer(num_heads: int, size: int, dropout: float, *, dtype: Any) -> keras.layers.MultiHeadAttention:
    """Keras's attention, whose heads have keys and values of a size."""
    return keras.layers.MultiHeadAttention(num_heads, size, dropout=dropout, name="attention", dtype=dtype)


def build_attention(layer: keras.layers.MultiHeadAttention, units: int, width: int) -> None:
    """Creates the weights of an attention layer for queries of `units` and a memory of `width`."""
    shapes = tf.TensorShape([None, None, units]), tf.TensorShape([None, None, width])
    with tf.name_scope(layer.name):
        if hasattr(layer, "_build_from_signature"):  # Keras 2, which would create them at the first call
            layer._build_from_signature(*shapes)
            layer.built = True
        else:
            layer.build(*(tuple(shape) for shape in shapes))


class Projections:
    """The four maps of an attention layer, so that keys and values can be computed once and stored.

    Args:
        layer: A layer that is built.
    """

    def __init__(self, layer: keras.layers.MultiHeadAttention) -> None:
        self.query, self.key, self.value = layer._query_dense, layer._key_dense, layer._value_dense
        self.output = layer._output_dense


def build_layer(layer: keras.layers.Layer, *shape: Any) -> None:
    """Creates a sub-layer's weights under its name."""
    with tf.name_scope(layer.name):
        layer.build(tuple(shape))
