"""From an encoder's final state to a decoder's first."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ._recurrent import State, build_layer, state_list, state_of


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
        sources = self._sources([_shape_list(shape) for shape in state_shape])
        for index, shapes in enumerate(sources):
            for part, dense in enumerate(self._maps_of(index)):
                if self._needs_map(shapes, part):
                    build_layer(dense, None, shapes[min(part, len(shapes) - 1)][-1])
        self.built = True

    def call(self, state: tuple[State, ...]) -> tuple[State, ...]:
        """The decoder's first states, one per layer, from the encoder's final states, one per layer."""
        result = []
        for index, source in enumerate(self._sources([state_list(layer) for layer in state])):
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
    if isinstance(shape, tf.TensorShape) or all(size is None or isinstance(size, int) for size in shape):
        return [shape]
    return list(shape)
