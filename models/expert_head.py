"""A head on a mixture of experts: its gate, experts of its own, and its tower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ._bank import ExpertBank, check_units
from ._checks import check_count, check_representation
from ._recurrent import build_layer


@keras.saving.register_keras_serializable(package="models")
class ExpertHead(keras.layers.Layer):
    """A head on `MMoE` or `CGC`, made by their `head(tower)`: a gate mixes the experts, and the tower reads the mixture.

    Formula: `y_k = h_k(f_k(x))`, `f_k(x) = sum_i g_k(x)_i e_i(x)`, `g_k(x) = softmax(W_k x)`. The `e_i` are the encoder's
    experts, followed by `own_experts` experts of this head; `h_k` is `tower`; `W_k`, `[features, experts]`, has no bias.

    It reads the head's entry of the representation: a dict with `experts`, float `[batch, experts, units]`, and `inputs`,
    float `[batch, features]`. The tower reads the mixture, float `[batch, units]`.

    Args:
        tower: A Keras layer or model.
        own_experts: Number of experts that belong to this head alone, 0 for none.
        units: Size of such an expert, or the sizes of its layers, the last one that of the encoder's experts. None is the
            size of the encoder's experts.
        activation: Activation of such an expert's layers.
        trains_below: Whether the gradient of the gate and of the own experts with respect to `inputs` is used.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own. The tower has its own.

    Raises:
        ValueError: If an argument is out of its range, or the representation lacks an entry.
        TypeError: If the tower is no Keras layer.

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
