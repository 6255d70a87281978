"""Encoders of several experts, which each head mixes by a gate of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ._checks import check_count, check_names
from ._recurrent import build_layer
from .expert_head import ExpertBank, ExpertHead, check_units


class AbstractExperts(keras.layers.Layer):
    """Experts that all heads read.

    Args:
        heads: Names of the heads.
        number: Number of experts.
        units: Size of an expert, or the sizes of its layers.
        activation: Activation of the experts' layers.
        trains_below: Whether gates and own experts train what computes the inputs.
        name: Name of the layer.
        dtype: Dtype or dtype policy.
    """

    def __init__(
        self,
        heads: Sequence[str],
        number: int,
        units: int | Sequence[int],
        *,
        activation: Any,
        trains_below: bool,
        name: str | None,
        dtype: Any,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.heads = check_names("heads", heads)
        self.units = check_units("units", units)
        self.activation = keras.activations.get(activation)
        self.trains_below = bool(trains_below)
        self.experts = ExpertBank(number, self.units, self.activation, name="experts", dtype=self.dtype_policy)

    def build(self, inputs_shape: Any) -> None:
        """Creates the experts' weights."""
        if len(inputs_shape) != 2 or inputs_shape[-1] is None:
            raise ValueError(
                "`inputs` must be numbers of shape [batch, features], with a known number of features. "
                f"Received: shape {tuple(inputs_shape)}. Flatten or pool them first."
            )
        build_layer(self.experts, *inputs_shape)
        self.built = True

    def call(self, inputs: tf.Tensor) -> dict[str, dict[str, tf.Tensor]]:
        """Runs the experts.

        Args:
            inputs: Floats, `[batch, features]`.

        Returns:
            An entry for each head, by its name: a dict of `experts`, the experts' outputs, float `[batch, experts, units]`,
            and `inputs`. The entries hold the same tensors.

        Raises:
            ValueError: If the inputs are not a matrix `[batch, features]` with a known number of features.
        """
        experts = self.experts(inputs)
        return {name: {"experts": experts, "inputs": inputs} for name in self.heads}

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments that both encoders have."""
        return {
            "heads": list(self.heads),
            "units": list(self.units),
            "activation": keras.activations.serialize(self.activation),
            "trains_below": self.trains_below,
            "name": self.name,
            "dtype": self.dtype_policy.name,
        }


@keras.saving.register_keras_serializable(package="models")
class MMoE(AbstractExperts):
    """Multi-gate mixture of experts: experts that all heads share, mixed by a gate for each head.

    Formula: `y_k = h_k(f_k(x))`, `f_k(x) = sum_i g_k(x)_i e_i(x)`, `g_k(x) = softmax(W_k x)`. This encoder computes the
    experts `e_1` to `e_n`, `n` being `num_experts`. The gate `W_k` and the tower `h_k` serve one head and belong to it:
    `head(tower)` makes the head's module.

    The representation is a dict with an entry for each head, which the head reads with `reads=` set to the head's name. All
    entries hold the same tensor of the experts' outputs, so with `balance_at="representation"` the gradients that are
    balanced are those at the experts' outputs, `[batch, num_experts, units]`, where the heads meet.

    Args:
        heads: Names of the heads.
        num_experts: Number of experts.
        units: Size of an expert, or the sizes of its layers.
        activation: Activation of the experts' layers.
        trains_below: Whether the gates, too, train what computes the inputs. False is right for inputs that are data. Pass
            True if something below is trained, such as an embedding: heads then meet in the inputs as well, and their
            gradients there are balanced together with those of the experts' outputs.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own.

    Raises:
        ValueError: If an argument is out of its range, or the inputs are not a matrix.

    Example:
        >>> from multihead import MultiHeadTrainer
        >>> x = tf.random.stateless_normal([32, 20], seed=[0, 1])
        >>> encoder = MMoE(["income", "age"], num_experts=4, units=8)
        >>> trainer = MultiHeadTrainer(encoder)
        >>> for name in encoder.heads:
        ...     head = encoder.head(keras.layers.Dense(1))
        ...     trainer.add_head(name, head, "mse", reads=name)
        >>> trainer.compile("adam", balancer="UPGrad", run_eagerly=True)
        >>> targets = {"income": x[:, :1], "age": x[:, 1:2]}
        >>> history = trainer.fit(x, targets, verbose=0)
        >>> encoder(x)["age"]["experts"].shape
        TensorShape([32, 4, 8])

    Source: Ma et al. (2018), "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts",
    equations 6 to 8.
    """

    def __init__(
        self,
        heads: Sequence[str],
        num_experts: int,
        units: int | Sequence[int],
        *,
        activation: Any = "relu",
        trains_below: bool = False,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        number = check_count("num_experts", num_experts)
        super().__init__(heads, number, units, activation=activation, trains_below=trains_below, name=name, dtype=dtype)
        self.num_experts = number

    def head(self, tower: keras.layers.Layer) -> ExpertHead:
        """The module of a head: a new gate, and the tower, which reads the mixture, float `[batch, units]`."""
        return ExpertHead(tower, trains_below=self.trains_below, dtype=self.dtype_policy)

    def get_config(self) -> dict[str, Any]:
        return {"num_experts": self.num_experts, **super().get_config()}


@keras.saving.register_keras_serializable(package="models")
class CGC(AbstractExperts):
    """Customized gate control: experts that all heads share, and experts of each head, mixed by a gate for each head.

    Formula: `y_k = h_k(f_k(x))`, `f_k(x) = sum_i g_k(x)_i e_ki(x)`, `g_k(x) = softmax(W_k x)`, where `e_k` are the
    `shared_experts` that all heads read, followed by the `own_experts` of head `k`. This encoder computes the shared ones.
    The gate, the own experts and the tower `h_k` serve one head and belong to it: `head(tower)` makes the head's module.

    The representation is a dict with an entry for each head, which the head reads with `reads=` set to the head's name. All
    entries hold the same tensor of the shared experts' outputs, so with `balance_at="representation"` the gradients that are
    balanced are those at the shared experts' outputs, `[batch, shared_experts, units]`, where the heads meet. A head's own
    experts are trained by the gradient of this head alone, as its tower is, and do not change while the head is idle.

    Args:
        heads: Names of the heads.
        shared_experts: Number of experts that all heads read.
        own_experts: Number of experts of each head.
        units: Size of an expert, or the sizes of its layers.
        activation: Activation of the experts' layers.
        trains_below: Whether gates and own experts, too, train what computes the inputs. False is right for inputs that are
            data. Pass True if something below is trained, such as an embedding: heads then meet in the inputs as well, and
            their gradients there are balanced together with those of the experts' outputs.
        name: Name of the layer.
        dtype: Dtype or dtype policy; by default Keras's own.

    Raises:
        ValueError: If an argument is out of its range, or the inputs are not a matrix.

    Example:
        >>> from multihead import MultiHeadTrainer
        >>> x = tf.random.stateless_normal([32, 20], seed=[0, 1])
        >>> names = ["income", "age"]
        >>> encoder = CGC(names, shared_experts=2, own_experts=1, units=8)
        >>> trainer = MultiHeadTrainer(encoder)
        >>> for name in encoder.heads:
        ...     head = encoder.head(keras.layers.Dense(1))
        ...     trainer.add_head(name, head, "mse", reads=name)
        >>> trainer.compile("adam", balancer="UPGrad")
        >>> encoder(x)["age"]["experts"].shape
        TensorShape([32, 2, 8])

    Source: Tang et al. (2020), "Progressive Layered Extraction (PLE): A Novel Multi-Task Learning (MTL) Model for
    Personalized Recommendations", section 4.1: one level of extraction.
    """

    def __init__(
        self,
        heads: Sequence[str],
        shared_experts: int,
        own_experts: int,
        units: int | Sequence[int],
        *,
        activation: Any = "relu",
        trains_below: bool = False,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        shared, own = check_count("shared_experts", shared_experts), check_count("own_experts", own_experts)
        super().__init__(heads, shared, units, activation=activation, trains_below=trains_below, name=name, dtype=dtype)
        self.shared_experts, self.own_experts = shared, own

    def head(self, tower: keras.layers.Layer) -> ExpertHead:
        """The module of a head: new experts, a new gate, and the tower, which reads the mixture, float `[batch, units]`."""
        return ExpertHead(
            tower,
            own_experts=self.own_experts,
            units=self.units,
            activation=self.activation,
            trains_below=self.trains_below,
            dtype=self.dtype_policy,
        )

    def get_config(self) -> dict[str, Any]:
        return {"shared_experts": self.shared_experts, "own_experts": self.own_experts, **super().get_config()}
