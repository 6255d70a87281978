"""The weights of heads as saved variables, so that they can be set between updates without another trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from multihead._ground.keras import add_state
from multihead.heads._named import NamedHead


class HeadWeights(keras.layers.Layer):
    """One variable per head, saved and loaded by the head's name.

    Args:
        values: The weights by head name.
    """

    def __init__(self, values: Mapping[str, float]) -> None:
        super().__init__(name="head_weights", dtype="float32", trainable=False)
        initial = {name: keras.initializers.Constant(value) for name, value in values.items()}
        self._by_name = {name: add_state(self, f"of_{name}", (), value) for name, value in initial.items()}
        self.built = True

    def variable(self, name: str) -> Any:
        """The variable of a head."""
        return self._by_name[name]

    def save_own_variables(self, store: Any) -> None:
        """Called by Keras to save the weights."""
        for name, variable in self._by_name.items():
            store[name] = tf.convert_to_tensor(variable).numpy()

    def load_own_variables(self, store: Any) -> None:
        """Called by Keras to load the weights of the heads that were saved."""
        for name, variable in self._by_name.items():
            if name in store:
                variable.assign(store[name][()])

    def get_config(self) -> dict[str, Any]:
        """Not used: the trainer creates this layer from the heads."""
        return {"values": {}}


def kept_weights(heads: Sequence[NamedHead]) -> HeadWeights:
    """The weights of heads as variables, from which the heads read them; functions of the step stay what they are."""
    found = HeadWeights({head.name: head.weight for head in heads if not callable(head.weight)})
    for head in heads:
        if not head.has_weight_function:
            head.keep_weight_in(found.variable(head.name))
    return found
