"""Fast adaptive multitask optimization (FAMO)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from multihead._keras import add_state, keras, tensor_variable
from multihead._method import Observation
from multihead._validation import check_between, check_positive
from multihead.weighting._base import Weighting, logarithm, softmax_over, sum_over
from multihead.weighting._by_name import check_numbers, vector

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8


@keras.saving.register_keras_serializable(package="multihead")
class FAMO(Weighting):
    """Lets all losses fall at a like rate, from one further look at the losses after each update.

    Formula: `total = c sum_k z_k log(L_k - b_k)`, with `z = softmax(v)` over the heads that take part and `c = 1 / sum_k
    (z_k / (L_k - b_k))` held still, so `w_k = c z_k / (L_k - b_k)`: the weights sum to 1. After the update, with `L'_k` the
    losses on the same examples, `delta_k = log(L_k - b_k) - log(L'_k - b_k)` is how much each fell, and `v` moves by Adam
    along `-J delta`, `J` being the softmax's derivative: a head that fell more loses weight. (1e-8 is added in the
    logarithms.)

    What it fixes: the scales of losses and heads that are left behind. It costs a second forward pass.

    State: `logits` (the `v`), `first_moments` and `second_moments`, `[num_heads]` float32, and `steps`, `[num_heads]`
    float32: Adam's own. An idle head's stay. The gradient of `v` exists only after the update, so the trainer's optimizer
    cannot move it in the same step; nor can `compute_gradients` and `apply_gradients` by hand, which leave it as it is.
    With dropout the second pass draws another mask.

    Args:
        learning_rate: Adam's for `v`, above 0.
        weight_decay: How strongly `v` is drawn to 0, at least 0.
        least_losses: The `b_k`, below which a loss cannot fall, by head name, times the head's `weight=`, as `L_k` is; heads
            may be left out: 0. An update with a loss below is skipped.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of its range, or names something that is no head.

    Example:
        >>> [round(float(w), 4) for w in FAMO()([4.0, 1.0])]
        [0.2, 0.8]

    Source: Liu et al., FAMO: Fast Adaptive Multitask Optimization, NeurIPS 2023, algorithm 1; numbers as in the authors'
    experiments.
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
        super().__init__(name=name)
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.weight_decay = check_between("weight_decay", weight_decay, 0.0, float("inf"), with_high=False)
        self._least_losses = check_numbers("least_losses", least_losses)

    def bind(self, head_names: Any) -> None:
        super().bind(head_names)
        vector("least_losses", self._least_losses, self.head_names)

    def _create_state(self, num_heads: int) -> None:
        self.logits = add_state(self, "logits", (num_heads,))
        self.first_moments = add_state(self, "first_moments", (num_heads,))
        self.second_moments = add_state(self, "second_moments", (num_heads,))
        self.steps = add_state(self, "steps", (num_heads,))

    def _shares(self, active: tf.Tensor) -> tf.Tensor:
        return softmax_over(tf.convert_to_tensor(tensor_variable(self.logits)), active)

    def _logarithms(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        return logarithm(losses - vector("least_losses", self._least_losses, self.head_names), active)

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
        gradient = tf.where(moved, gradient, 0.0)  # one that is not finite must not reach the moments
        new_first = _BETA_1 * first + (1.0 - _BETA_1) * gradient
        new_second = _BETA_2 * second + (1.0 - _BETA_2) * tf.square(gradient)
        new_steps = steps + 1.0
        size = tf.sqrt(new_second / (1.0 - tf.pow(_BETA_2, new_steps))) + _EPSILON
        step = self.learning_rate * new_first / (1.0 - tf.pow(_BETA_1, new_steps)) / size
        for variable, new in ((logits, logits - step), (first, new_first), (second, new_second), (steps, new_steps)):
            variable.assign(tf.where(moved, new, variable))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "learning_rate": self.learning_rate,
            "weight_decay": self.weight_decay,
            "least_losses": dict(self._least_losses),
        }
