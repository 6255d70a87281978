"""Gradient normalization with learned weights (GradNorm)."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import where
from multihead._ground.validation import check_between
from multihead._method import Observation
from multihead.weighting._base import Weighting, count_of, sum_over, values

_LEAST = 1e-3


@keras.saving.register_keras_serializable(package="multihead")
class GradNorm(Weighting):
    """Learns weights that bring the heads' gradients to similar norms, larger for heads that train more slowly.

    Formula: `total = sum_k w_k L_k`. With `G_k = w_k |g_k|`, where `g_k` is the representation gradient of `L_k` (its
    encoder gradient with a balancer and `balance_at="parameters"`), and `r_k = (L_k / L_k(0)) / mean_j (L_j / L_j(0))`,
    the weights minimize `sum_k |G_k - mean_j(G_j) r_k^alpha|`, with the target treated as constant. After each update
    they are scaled to sum to the number of heads `K`.

    What it fixes: gradient norms and heads that learn at different speeds; conflicts remain.

    State: one learned scalar per head, `weight_{head}`, initially 1, which determines the weights up to scale; and
    `first_losses`, `[num_heads]` float32, the `L_k(0)`: the loss at the head's first update, 0 before it.

    Args:
        alpha: How strongly the norms depend on training speed, at least 0; 0 asks for equal norms.
        name: Name of the layer.

    Raises:
        ValueError: `alpha` is out of range.

    Example:
        >>> GradNorm()([4.0, 0.5]).numpy().tolist()
        [1.0, 1.0]

    Source: Chen et al., GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep Multitask Networks, ICML
    2018, algorithm 1, with the representation instead of the last shared layer's weights. A weight is at least 0.001.
    """

    uses = ("norms",)

    def __init__(self, alpha: float = 1.5, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.alpha = check_between("alpha", alpha, 0.0, float("inf"), with_high=False)

    def create_state(self, num_heads: int) -> None:
        self.parts = self.add_learned("weight", num_heads, 1.0)
        self.first_losses = self.add_state("first_losses", (num_heads,))

    def _parts(self) -> tf.Tensor:
        """The unnormalized weights with a lower bound; the gradient ignores the bound, so that a weight can recover."""
        parts = values(self.parts)
        return parts + tf.stop_gradient(tf.maximum(parts, _LEAST) - parts)

    def _scale(self, parts: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        return count_of(active) / tf.maximum(sum_over(parts, active), _LEAST)

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        parts = tf.stop_gradient(self._parts())
        return sum_over(self._scale(parts, active) * parts * losses, active)

    def objective(self, losses: tf.Tensor, norms: tf.Tensor | None, active: tf.Tensor) -> tf.Tensor:
        parts = self._parts()
        scale = tf.stop_gradient(self._scale(parts, active))
        norms = where(active, tf.zeros_like(losses) if norms is None else norms, 0.0)
        weighted = scale * parts * norms
        first = self._first(losses)
        ratios = where(active, tf.math.divide_no_nan(losses, first), 0.0)
        count = tf.maximum(count_of(active), 1.0)
        speeds = tf.math.divide_no_nan(ratios, tf.reduce_sum(ratios) / count)
        targets = tf.reduce_sum(weighted) / count * tf.pow(tf.maximum(speeds, 0.0), self.alpha)
        # The weights are `scale` times the parts. Divided by its square, a gradient step on the parts moves the weights
        # as far as the same step on the weights would.
        return sum_over(tf.abs(weighted - tf.stop_gradient(targets)), active) / tf.square(scale)

    def observe(self, update: Observation, applied: tf.Tensor) -> None:
        first_losses = tensor_variable(self.first_losses)
        first_losses.assign(where(update.active & applied, self._first(update.losses), first_losses))

    def _first(self, losses: tf.Tensor) -> tf.Tensor:
        first = tf.convert_to_tensor(tensor_variable(self.first_losses))
        return where(first > 0, first, losses)
