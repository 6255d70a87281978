"""Stochastic direction-oriented multi-objective gradient descent (SDMGrad)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from multihead._ground.keras import keras, tensor_variable
from multihead._ground.validation import check_between, check_positive, check_positive_whole
from multihead._ground.where import where
from multihead.balancing._preference import PreferenceBalancer
from multihead.balancing._rows import unit_rows
from multihead.balancing._simplex import among_active, back_among_all, project_onto_simplex


@keras.saving.register_keras_serializable(package="multihead")
class SDMGrad(PreferenceBalancer):
    """Approximates `MGDA` near a preference, iteratively and with an unbiased estimate of the inner products.

    Formula: repeat `steps` times `w <- P(w - learning_rate v)`, `v <- momentum v + A (w + pull p)`, with `P` the
    projection onto the simplex and `p` the `preference` scaled to sum to 1. `A` is `folds`, the inner products of the
    gradients on two folds of the examples, `J_1 J_2^T`: an unbiased estimate of those of the exact gradients (`J J^T` of
    one batch is biased, since its diagonal contains the noise). Then `d = sum_k (w_k + pull p_k) / (1 + pull) g_k`. `A` is
    divided by the mean squared norm of the gradients, so that the learning rate does not depend on their scale.

    What it fixes: direction and magnitude, on average over updates. Size of the update: that of a weighted mean of the
    gradients, since the coefficients sum to 1.

    State: `weights`, `[num_heads]` float32, the `w_k`, initially equal. That of an idle head does not change.

    Args:
        pull: How strongly the update is pulled towards the preference, at least 0.
        steps: Number of iterations per update, at least 1.
        learning_rate: Step size of the weights, above 0.
        momentum: At least 0 and below 1; the velocity is reset at every update.
        preference: One number of at least 0 per head, as a sequence or as a dict by name. Default: 1 for every head.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of range or has the wrong length.

    Example:
        >>> SDMGrad()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [4.8462, 1.0, 1.0]

    Source: Xiao, Ban and Ji, Direction-oriented Multi-objective Learning, NeurIPS 2023, algorithm 1, with the default
    values of the authors' experiments. Without `folds`, the Gramian itself is used. In the trainer, micro-batches alternate
    between the two folds (a batch without micro-batches is split in two). It works only at the parameters, because the
    elements of a representation belong to examples, and two folds have none in common.
    """

    uses = ("folds",)
    num_folds = 2
    levels = ("parameters",)

    def __init__(
        self,
        pull: float = 0.3,
        steps: int = 20,
        learning_rate: float = 10.0,
        momentum: float = 0.5,
        preference: Sequence[float] | Mapping[str, float] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(preference, name=name)
        self.pull = check_between("pull", pull, 0.0, float("inf"), with_high=False)
        self.steps = check_positive_whole("steps", steps)
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.momentum = check_between("momentum", momentum, 0.0, 1.0, with_high=False)

    def create_state(self, num_heads: int) -> None:
        uniform = keras.initializers.Constant(1.0 / num_heads)
        self.weights_of_heads = self.add_state("weights", (num_heads,), uniform)

    def coefficients(self, gramian: tf.Tensor, *, folds: Any = None) -> tf.Tensor:
        rows = unit_rows(gramian)
        both = tf.ones_like(rows.active)[:, None] * rows.active * rows.active[:, None]
        squares = where(rows.active > 0, rows.norms**2, 0.0)
        scale = tf.math.divide_no_nan(tf.reduce_sum(squares), tf.reduce_sum(rows.active))
        products = tf.cast(gramian if folds is None else folds, tf.float64)
        products = where((both > 0) & rows.finite, tf.math.divide_no_nan(products, scale), 0.0 * both)
        preference = among_active(self._preference_vector(rows.num_heads), rows.active)

        before = tf.convert_to_tensor(tensor_variable(self.weights_of_heads))
        kept = tf.cast(before, tf.float64)
        weights = among_active(kept, rows.active)

        def step(weights: tf.Tensor, velocity: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            velocity = self.momentum * velocity + tf.linalg.matvec(products, weights + self.pull * preference)
            return project_onto_simplex(weights - self.learning_rate * velocity, rows.active), velocity

        state = (weights, tf.zeros_like(weights))
        weights, _ = tf.while_loop(lambda *_: True, step, state, maximum_iterations=self.steps)
        after = tf.cast(back_among_all(weights, kept, rows.active), tf.float32)
        tensor_variable(self.weights_of_heads).assign(where(rows.finite, after, before))
        return rows.coefficients((weights + self.pull * preference) / (1.0 + self.pull) * rows.norms)
