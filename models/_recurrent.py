"""Recurrent layers, their states, attention layers, dropout and AutoGraph, the same on Keras 2 and Keras 3.

The only file of this package that uses private names of Keras.
"""

from __future__ import annotations

import inspect
import sys
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


_MARKS = {**vars(tf.autograph.experimental.do_not_convert(lambda: None))}
del _MARKS["__wrapped__"]


def mark_functions(package: str) -> None:
    """Marks the functions and methods of a package. AutoGraph goes on to convert what these call, such as users' layers."""
    for name, module in list(sys.modules.items()):
        if name.startswith(package):
            classes = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == name]
            for owner in (module, *classes):
                for each in vars(owner).values():
                    function = getattr(each, "__func__", each)
                    if inspect.isfunction(function) and function.__module__ == name:
                        vars(function).update(_MARKS)


class StateBridge(keras.layers.Layer):
    """Fits an encoder's states to a decoder's layers.

    With the same number of layers on both sides, each decoder layer takes the state of its encoder layer. If the
    decoder has fewer layers, they take the states of the encoder's upper layers; if it has more, the additional layers
    take the state of the encoder's last layer. A state of the decoder's size is passed unchanged; a state of another
    size (of a bidirectional encoder) is mapped by `tanh(W s + b)`. A GRU decoder ignores an LSTM's carry; an LSTM
    decoder computes its carry from a GRU's hidden state with a separate map.

    Args:
        units: Size of the decoder's states.
        cell: The decoder's cell, `"lstm"` or `"gru"`.
        num_layers: Number of the decoder's layers.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own.
    """

    def __init__(self, units: int, cell: str, num_layers: int, *, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.units = units
        self.num_parts = 2 if cell == "lstm" else 1
        self.num_layers = num_layers
        self.maps = [  # flat, since Keras 2 does not save layers in nested lists
            keras.layers.Dense(units, activation="tanh", name=f"{part}_{index}", dtype=self.dtype_policy)
            for index in range(num_layers)
            for part in ("hidden", "carry")[: self.num_parts]
        ]

    def build(self, state_shape: Any) -> None:
        """Creates the weights of the maps that are used, from the shapes of the encoder's states."""
        layers = [state_shape] if _is_shape(state_shape) else state_shape
        sources = self._sources([_shape_list(shape) for shape in layers])
        for index, shapes in enumerate(sources):
            for part, dense in enumerate(self._maps_of(index)):
                if self._needs_map(shapes, part):
                    build_layer(dense, None, shapes[min(part, len(shapes) - 1)][-1])
        self.built = True

    def call(self, state: State | tuple[State, ...]) -> tuple[State, ...]:
        """The decoder's first states, one per layer, from the encoder's final states: a tensor is that of one layer."""
        result = []
        layers = [state] if tf.is_tensor(state) else state
        for index, source in enumerate(self._sources([state_list(layer) for layer in layers])):
            shapes = [tensor.shape for tensor in source]
            parts = []
            for part, dense in enumerate(self._maps_of(index)):
                tensor = source[min(part, len(source) - 1)]
                parts.append(dense(tensor) if self._needs_map(shapes, part) else tensor)
            result.append(state_of(parts))
        return tuple(result)

    def _maps_of(self, index: int) -> list[Any]:
        """The maps of one decoder layer, one per part of its state."""
        return self.maps[index * self.num_parts : (index + 1) * self.num_parts]

    def _sources(self, states: list[Any]) -> list[Any]:
        """For each decoder layer, the encoder layer's state that it takes."""
        skipped = max(0, len(states) - self.num_layers)
        return [states[min(index + skipped, len(states) - 1)] for index in range(self.num_layers)]

    def _needs_map(self, shapes: list[Any], part: int) -> bool:
        return part >= len(shapes) or shapes[part][-1] != self.units


def _shape_list(shape: Any) -> list[Any]:
    """The shapes of one layer's state as a list, whether it is one tensor's shape or a pair of them."""
    return [shape] if _is_shape(shape) else list(shape)


def _is_shape(shape: Any) -> bool:
    """Whether this is the shape of one tensor, not a structure of shapes."""
    return isinstance(shape, tf.TensorShape) or all(size is None or isinstance(size, int) for size in shape)
