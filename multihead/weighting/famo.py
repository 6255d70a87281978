"""Fast adaptive multitask optimization (FAMO)."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import where
from multihead._ground.validation import check_between, check_positive
from multihead._method import Observation
from multihead.weighting._base import BoundedWeighting, logarithm, softmax_over, sum_over

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8


@keras.saving.register_keras_serializable(package="multihead")
class FAMO(BoundedWeighting):
    """Decreases all losses at similar rates, using one extra forward pass after each update.

    Formula: `total = c sum_k z_k log(L_k - b_k)`, with `z = softmax(v)` over the active heads and `c = 1 / sum_k (z_k / (L_k
    - b_k))` treated as constant, so `w_k = c z_k / (L_k - b_k)`: the weights sum to 1. After the update, with `L'_k` the
    losses on the same examples, `delta_k = log(L_k - b_k) - log(L'_k - b_k)` is the decrease of each log-loss, and Adam
    updates `v` along `-J delta`, with `J` the Jacobian of the softmax: a head whose loss decreased more loses weight. (1e-8
    is added in the logarithms.)

    What it fixes: the scales of losses and heads that are left behind. It costs one more forward pass.

    State: `logits` (the `v`), `first_moments`, `second_moments` and `steps`, each `[num_heads]` float32: the state of Adam.
    That of an idle head does not change. The gradient of `v` is known only after the update, so it is not applied by the
    trainer's optimizer, and custom training loops with `compute_gradients` and `apply_gradients` do not change `v`. With
    dropout, the second forward pass uses a different mask.

    Args:
        learning_rate: Adam's learning rate for `v`, above 0.
        weight_decay: Weight decay of `v`, at least 0.
        least_losses: The lower bounds `b_k` of the losses by head name, multiplied by the head's `weight=` as `L_k` is. A
            missing head has 0. An update with a loss below its bound is skipped.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of range, or `least_losses` names an unknown head.

    Example:
        >>> [round(float(w), 4) for w in FAMO()([4.0, 1.0])]
        [0.2, 0.8]

    Source: Liu et al., FAMO: Fast Adaptive Multitask Optimization, NeurIPS 2023, algorithm 1, with the default values of
    the authors' experiments.
    """

    uses = ("losses", "losses_after")

    def __init__(
        self,
        learning_rate: float = 0.025,
        weight_decay: float = 1e-3,
        least_losses: Mapping[str, float] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(least_losses, name=name)
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.weight_decay = check_between("weight_decay", weight_decay, 0.0, float("inf"), with_high=False)

    def create_state(self, num_heads: int) -> None:
        self.logits = self.add_state("logits", (num_heads,))
        self.first_moments = self.add_state("first_moments", (num_heads,))
        self.second_moments = self.add_state("second_moments", (num_heads,))
        self.steps = self.add_state("steps", (num_heads,))

    def _shares(self, active: tf.Tensor) -> tf.Tensor:
        return softmax_over(tf.convert_to_tensor(tensor_variable(self.logits)), active)

    def _logarithms(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        return logarithm(self._above(losses), active)

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        shares, logarithms = self._shares(active), self._logarithms(losses, active)
        whole = sum_over(shares * tf.exp(-tf.stop_gradient(logarithms)), active)
        return tf.math.divide_no_nan(tf.reduce_sum(shares * logarithms), whole)

    def observe(self, update: Observation, applied: tf.Tensor) -> None:
        active = update.active
        fell = self._logarithms(update.losses, active) - self._logarithms(update.losses_after, active)
        usable = applied & tf.reduce_all(tf.math.is_finite(fell))
        moved = active & usable
        shares = self._shares(active)
        state = (self.logits, self.first_moments, self.second_moments, self.steps)
        logits, first, second, steps = (tensor_variable(each) for each in state)
        gradient = shares * (fell - tf.reduce_sum(shares * fell)) + self.weight_decay * logits
        gradient = where(moved, gradient, 0.0)  # a non-finite gradient must not reach the moments
        new_first = _BETA_1 * first + (1.0 - _BETA_1) * gradient
        new_second = _BETA_2 * second + (1.0 - _BETA_2) * tf.square(gradient)
        new_steps = steps + 1.0
        size = tf.sqrt(new_second / (1.0 - tf.pow(_BETA_2, new_steps))) + _EPSILON
        step = self.learning_rate * new_first / (1.0 - tf.pow(_BETA_1, new_steps)) / size
        for variable, new in ((logits, logits - step), (first, new_first), (second, new_second), (steps, new_steps)):
            variable.assign(where(moved, new, variable))
