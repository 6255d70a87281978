"""Multi-objective gradient correction (MoCo)."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import gramian, where
from multihead._ground.validation import check_between, check_positive
from multihead.balancing._kinds import RunningBalancer, combined, prepared


@keras.saving.register_keras_serializable(package="multihead")
class MoCo(RunningBalancer):
    """Approximates `MGDA` on *running* gradients, one step per update, which reduces the bias due to gradient noise.

    Formula, at update t: `y_k <- y_k - b (y_k - g_k)`, `b = beta / t_k^beta_decay`;
    `w <- P(w - c (Y Y^T + rho I) w)`, `c = gamma / t^gamma_decay`, with `P` the projection onto the simplex and the
    `y_k` as rows of `Y`; `d = sum_k w_k y_k`. `t_k` is the number of updates in which head k took part, and `t` the
    largest of these.

    What it fixes: direction and magnitude, on average over updates. Like `MGDA`, it follows the smallest gradients.
    Size of the update: that of a weighted mean of the running gradients, since the weights sum to 1. `gamma` has the
    unit of one over a squared gradient norm.

    State: `running` (the `y_k`, initially the first gradient), `counts`, and `weights`, `[num_heads]` float32, the
    `w_k`, initially equal. The state of an idle head does not change, and the head does not contribute to the update.

    Args:
        beta: Weight of the newest gradient, above 0 and at most 1.
        beta_decay: How fast this weight decreases, at least 0.
        gamma: Step size of the weights, above 0.
        gamma_decay: How fast this step size decreases, at least 0.
        rho: Regularization that pulls the weights towards each other, at least 0.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of range, or the balancer is built without the numbers of parameters.

    Example:
        >>> MoCo()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [-4.0, 1.0, 1.0]

    Source: Fernando et al., Mitigating Gradient Bias in Multi-Objective Learning, ICLR 2023, algorithm 1, without the
    softmax and the scaling of gradients by losses that some implementations add.
    """

    rescales = False

    def __init__(
        self,
        beta: float = 0.5,
        beta_decay: float = 0.5,
        gamma: float = 0.1,
        gamma_decay: float = 0.5,
        rho: float = 0.0,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.beta = check_between("beta", beta, 0.0, 1.0, with_low=False)
        self.beta_decay = check_between("beta_decay", beta_decay, 0.0, float("inf"), with_high=False)
        self.gamma = check_positive("gamma", gamma)
        self.gamma_decay = check_between("gamma_decay", gamma_decay, 0.0, float("inf"), with_high=False)
        self.rho = check_between("rho", rho, 0.0, float("inf"), with_high=False)

    def create_state(self, num_heads: int) -> None:
        super().create_state(num_heads)
        uniform = keras.initializers.Constant(1.0 / num_heads)
        self.weights_of_heads = self.add_state("weights", (num_heads,), uniform)

    def combine(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        self._check_gradients(gradients)
        rows, active, finite = prepared(gradients)
        counts = self._count(active)
        rate = self.beta / tf.pow(tf.maximum(counts, 1.0), self.beta_decay)
        rate = where(active, where(counts > 1, rate, 1.0), 0.0)[:, None]
        # Not `old + rate (new - old)`: rows that are not finite have rate 0.
        running = [where(rate > 0, (1.0 - rate) * old + rate * new, old) for old, new in zip(self._read(), rows)]
        self._write(running)

        takes_part = tf.cast(active, tf.float64)
        variable = tensor_variable(self.weights_of_heads)
        kept = tf.cast(tf.convert_to_tensor(variable), tf.float64)
        share = tf.reduce_sum(kept * takes_part)
        exists = share > 1e-30  # otherwise equal weights
        weights = where(exists, kept, 1.0) * takes_part / where(exists, share, tf.maximum(tf.reduce_sum(takes_part), 1.0))
        step = self.gamma / tf.pow(tf.maximum(tf.reduce_max(counts), 1.0), self.gamma_decay)
        slope = tf.linalg.matvec(gramian(running), weights) + self.rho * weights
        weights = _onto_simplex(weights - step * slope, takes_part)
        variable.assign(tf.cast(where(active, weights * share, kept), tf.float32))
        return combined(weights, running, gradients, finite)


def _onto_simplex(point: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
    """The weights on the simplex that are closest to a point.

    Args:
        point: `[num_heads]` float64.
        active: `[num_heads]` float64, 1 for active heads and 0 for idle ones, whose weight is 0.

    Returns:
        `[num_heads]` float64; zeros if no head is active.

    Source: Duchi et al., Efficient Projections onto the l1-Ball, ICML 2008, figure 1.
    """
    takes_part = active > 0
    lowest = tf.constant(-1e300, tf.float64)
    highest = tf.reduce_max(where(takes_part, point, lowest))
    below = where(takes_part, tf.maximum(point - highest, -2.0), -2.0)  # values 1 below the highest get weight 0
    descending = tf.sort(below, direction="DESCENDING")
    counts = tf.range(1.0, float(int(point.shape[0])) + 1.0, dtype=tf.float64)
    thresholds = (tf.cumsum(descending) - 1.0) / counts
    threshold = thresholds[tf.maximum(tf.reduce_sum(tf.cast(descending > thresholds, tf.int32)) - 1, 0)]
    return where(takes_part, tf.maximum(below - threshold, 0.0), 0.0 * point)
