"""A head on a mixture of experts: its gate, experts of its own, and its tower."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ._checks import check_count, check_representation
from ._recurrent import build_layer


def check_units(argument: str, value: Any) -> tuple[int, ...]:
    """The sizes of an expert's layers as a tuple, of an integer or a sequence of integers.

    Raises:
        ValueError: If `value` contains no size, or a size that is not an integer of at least 1.
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


@keras.saving.register_keras_serializable(package="models")
class ExpertHead(keras.layers.Layer):
    """A head on `MMoE` or `CGC`, made by their `head(tower)`: a gate mixes the experts, and the tower reads the mixture.

    Formula: `y_k = h_k(f_k(x))`, `f_k(x) = sum_i g_k(x)_i e_i(x)`, `g_k(x) = softmax(W_k x)`. The `e_i` are the encoder's
    experts, followed by `own_experts` experts of this head; `h_k` is `tower`; `W_k`, `[features, experts]`, has no bias.

    The module reads the head's entry of the representation: a dict with `experts`, float `[batch, experts, units]`, and
    `inputs`, float `[batch, features]`. The tower reads the mixture, float `[batch, units]`.

    Args:
        tower: A Keras layer or model.
        own_experts: Number of experts that belong to this head alone, 0 for none.
        units: Size of each own expert, or the sizes of its layers; the last one must be the size of the encoder's experts.
            None: the size of the encoder's experts.
        activation: Activation of the layers of the own experts.
        trains_below: Whether the gate and the own experts pass a gradient on to `inputs`.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own. The tower has its own.

    Raises:
        ValueError: If an argument is out of its range, or the representation lacks an entry.
        TypeError: If `tower` is not a Keras layer.

    Example:
        >>> head = ExpertHead(keras.layers.Dense(1))
        >>> head({"experts": tf.ones([2, 3, 4]), "inputs": tf.ones([2, 5])}).shape
        TensorShape([2, 1])

    Source: Ma et al. (2018), "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts",
    equations 6 to 8; with own experts, Tang et al. (2020), "Progressive Layered Extraction (PLE): A Novel Multi-Task
    Learning (MTL) Model for Personalized Recommendations", section 4.1.
    """

    def __init__(
        self,
        tower: keras.layers.Layer,
        *,
        own_experts: int = 0,
        units: int | Sequence[int] | None = None,
        activation: Any = "relu",
        trains_below: bool = False,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        if not isinstance(tower, keras.layers.Layer):
            raise TypeError(
                f"`tower` must be a Keras layer or model. Received: tower={tower!r}. Pass keras.layers.Dense(1)."
            )
        self.tower = tower
        self.own_experts = check_count("own_experts", own_experts, minimum=0)
        self.units = None if units is None else check_units("units", units)
        self.activation = keras.activations.get(activation)
        self.trains_below = bool(trains_below)
        self.own: Any = None
        self.kernel: Any = None

    def build(self, representation_shape: Any) -> None:
        needed = ("experts", "inputs")
        check_representation("representation", representation_shape, needed, type(self).__name__, "`MMoE` or `CGC`")
        *_, shared, width = representation_shape["experts"]
        features = representation_shape["inputs"][-1]
        units = (width,) if self.units is None else self.units
        if self.own_experts and units[-1] != width:
            raise ValueError(
                f"`units` must end with the size of the encoder's experts. Received: units={units}, and experts of size "
                f"{width}. Create the head with the encoder's `head(tower)`."
            )
        if self.own_experts:
            self.own = ExpertBank(self.own_experts, units, self.activation, name="own", dtype=self.dtype_policy)
            build_layer(self.own, None, features)
        self.kernel = self.add_weight(name="gate", shape=(features, shared + self.own_experts), initializer="glorot_uniform")
        if not self.tower.built:
            build_layer(self.tower, None, width)
        self.built = True

    def call(self, representation: dict[str, Any]) -> Any:
        experts, inputs = representation["experts"], representation["inputs"]
        if not self.trains_below:
            inputs = tf.stop_gradient(inputs)
        if self.own is not None:
            experts = tf.concat([experts, self.own(inputs)], axis=1)
        weights = tf.nn.softmax(tf.matmul(inputs, self.kernel))
        return self.tower(tf.einsum("bn,bnu->bu", weights, experts))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "tower": keras.saving.serialize_keras_object(self.tower),
            "own_experts": self.own_experts,
            "units": None if self.units is None else list(self.units),
            "activation": keras.activations.serialize(self.activation),
            "trains_below": self.trains_below,
            "name": self.name,
            "dtype": self.dtype_policy.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ExpertHead:
        """A head from its configuration."""
        return cls(**{**config, "tower": keras.saving.deserialize_keras_object(config["tower"])})
