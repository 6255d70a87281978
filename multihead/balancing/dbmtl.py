"""Dual-balancing multi-task learning (DB-MTL)."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import gramian, where
from multihead._ground.types import Tensor
from multihead._ground.validation import check_between
from multihead.balancing._kinds import RunningBalancer, combined, prepared


@keras.saving.register_keras_serializable(package="multihead")
class DBMTL(RunningBalancer):
    """Takes the logarithm of each loss and scales the heads' running gradients to the same norm.

    Formula: `q_k <- b q_k + (1 - b) g_k / L_k`, the running gradient of `log L_k`, with `b = beta / t^sigma` at the
    head's t-th update; `d = sum_k (max_j |q_j| / |q_k|) q_k`.

    What it fixes: magnitude; conflicts remain. The direction does not depend on the scales of the losses. Size of the
    update: every head contributes the norm of the largest running gradient of a log-loss; set the learning rate
    accordingly.

    State: `running` (the `q_k`, before bias correction), `counts`, and `masses`, `[num_heads]` float32, the sums of the
    averaging weights in `q_k`. Each `q_k` is divided by its sum, so that the first updates are not too small. The state
    of an idle head does not change, and the head does not contribute to the update.

    Args:
        beta: Decay rate of the running gradients, at least 0 and below 1.
        sigma: How fast this decay rate decreases, at least 0.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of range, or the balancer is built without the numbers of parameters.

    Example:
        >>> DBMTL()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.1881, 2.4530, 2.4530]

    Source: Lin et al., Dual-Balancing for Multi-Task Learning, arXiv 2308.12029, 2023, algorithm 1. Gradients are not
    divided by the loss if `losses` is not given, or for a head whose loss is not above 0.
    """

    scale_invariant = True
    uses = ("gradients", "losses")
    rescales = False

    def __init__(self, beta: float = 0.9, sigma: float = 0.0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.beta = check_between("beta", beta, 0.0, 1.0, with_high=False)
        self.sigma = check_between("sigma", sigma, 0.0, float("inf"), with_high=False)

    def create_state(self, num_heads: int) -> None:
        super().create_state(num_heads)
        self.masses = self.add_state("masses", (num_heads,))

    def combine(self, gradients: Sequence[tf.Tensor], *, losses: Tensor = None) -> list[tf.Tensor]:
        self._check_gradients(gradients)
        rows, active, finite = prepared(gradients)
        if losses is not None:
            losses = tf.cast(losses, tf.float64)
            rows = [each / where(losses > 0, losses, 1.0)[:, None] for each in rows]
        past = self.beta / tf.pow(tf.maximum(self._count(active), 1.0), self.sigma)
        running = [
            where(active[:, None], past[:, None] * old + (1.0 - past)[:, None] * new, old)
            for old, new in zip(self._read(), rows)
        ]
        masses = tensor_variable(self.masses)
        old_mass = tf.cast(tf.convert_to_tensor(masses), tf.float64)
        mass = where(active, past * old_mass + 1.0 - past, old_mass)
        self._write(running)
        masses.assign(tf.cast(mass, tf.float32))

        norms = tf.sqrt(tf.linalg.diag_part(gramian(running)))
        norms = where(active, tf.math.divide_no_nan(norms, mass), 0.0 * norms)
        inverses = tf.math.divide_no_nan(tf.cast(active, tf.float64), norms * mass)
        return combined(tf.reduce_max(norms) * inverses, running, gradients, finite)
