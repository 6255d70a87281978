"""Gradient vaccine (GradVac)."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import one_after_another, where
from multihead._ground.types import Tensor
from multihead._ground.validation import check_between, check_whole
from multihead.balancing._base import MANY_HEADS, Balancer
from multihead.balancing._rows import unit_rows
from multihead.balancing.pcgrad import other_heads_in_random_order


@keras.saving.register_keras_serializable(package="multihead")
class GradVac(Balancer):
    """Rotates each head's gradient towards the others until their cosine reaches its running average.

    Formula: for each head i, start with `x = g_i`; for the other heads j in random order, with `f = cos(x, g_j)` and
    the target `F_ij`: if `f < F_ij`, then
    `x <- x + |x| (F_ij sqrt(1 - f^2) - f sqrt(1 - F_ij^2)) / (|g_j| sqrt(1 - F_ij^2)) g_j`, after which the cosine is
    `F_ij`; then `F_ij <- (1 - beta) F_ij + beta f`. The update is the sum of the results. As long as the targets are 0,
    this is `PCGrad`.

    What it fixes: direction, partially; heads may still conflict. Size of the update: that of the sum or larger, since
    the rotation lengthens gradients.

    State: `targets`, `[num_heads, num_heads]` float32, the running cosines `F`, initially 0. Those of an idle head do
    not change.

    Args:
        beta: Weight of the newest cosine, above 0 and at most 1.
        seed: Seed of the random order, a whole number.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of range, or there are more than 1024 heads.

    Example:
        >>> GradVac()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.5848, 3.8012, 3.8012]

    Source: Wang et al., Gradient Vaccine, ICLR 2021, algorithm 1, with the whole encoder as one group of parameters.
    """

    uses = ("step",)
    max_heads = MANY_HEADS

    def __init__(self, beta: float = 0.01, seed: int = 0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.beta = check_between("beta", beta, 0.0, 1.0, with_low=False)
        self.seed = check_whole("seed", seed)

    def create_state(self, num_heads: int) -> None:
        self.targets = self.add_state("targets", (num_heads, num_heads))

    def coefficients(self, gramian: tf.Tensor, *, step: Tensor = 0) -> tf.Tensor:
        rows = unit_rows(gramian)
        before = tf.convert_to_tensor(tensor_variable(self.targets))
        targets = tf.cast(before, tf.float64)
        orders = tf.transpose(other_heads_in_random_order(rows.num_heads, self.seed, step))
        State = tuple[tf.Tensor, tf.Tensor, tf.Tensor]

        def turn(state: State, others: tf.Tensor) -> State:
            weights, products, targets = state
            mark = tf.one_hot(others, rows.num_heads, dtype=tf.float64)
            norm = tf.sqrt(tf.maximum(tf.reduce_sum(weights * products, axis=1), 0.0))
            # A vector that has cancelled out has no direction: neither it nor its target changes.
            both = (norm**2 > rows.tolerance) & (tf.linalg.matvec(mark, rows.active) > 0)
            cosine = tf.reduce_sum(products * mark, axis=1) / where(both, norm, 1.0)
            cosine = tf.clip_by_value(cosine, -1.0, 1.0)
            target = tf.reduce_sum(targets * mark, axis=1)
            widths = tf.sqrt(1.0 - cosine**2), tf.sqrt(tf.maximum(1.0 - target**2, rows.noise))
            change = norm * (target * widths[0] - cosine * widths[1]) / widths[1]
            change = where(both & (cosine < target), change, 0.0 * change)[:, None]
            moved = where(both, self.beta * (cosine - target), 0.0 * target)[:, None]
            return weights + change * mark, products + change * tf.gather(rows.cosines, others), targets + moved * mark

        state = tf.linalg.diag(rows.active), rows.cosines, targets
        weights, _, targets = one_after_another(turn, state, orders)
        tensor_variable(self.targets).assign(where(rows.finite, tf.cast(targets, tf.float32), before))
        return rows.coefficients(tf.linalg.matvec(weights, rows.norms, transpose_a=True))
