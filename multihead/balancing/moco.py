"""Multi-objective gradient correction (MoCo)."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from multihead._ground.keras import keras, tensor_variable
from multihead._ground.validation import check_between, check_positive
from multihead._ground.where import where
from multihead.balancing._running import RunningBalancer, combined, gramian_of, prepared
from multihead.balancing._simplex import among_active, back_among_all, project_onto_simplex


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
        weights = among_active(kept, takes_part)
        step = self.gamma / tf.pow(tf.maximum(tf.reduce_max(counts), 1.0), self.gamma_decay)
        slope = tf.linalg.matvec(gramian_of(running), weights) + self.rho * weights
        weights = project_onto_simplex(weights - step * slope, takes_part)
        variable.assign(tf.cast(back_among_all(weights, kept, takes_part), tf.float32))
        return combined(weights, running, gradients, finite)
