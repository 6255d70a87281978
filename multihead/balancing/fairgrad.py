"""Fair resource allocation among the heads (FairGrad)."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead._ground.validation import check_positive
from multihead.balancing._base import MANY_HEADS, Balancer
from multihead.balancing._rows import unit_rows
from multihead.balancing.nash_mtl import bargaining_weights


@keras.saving.register_keras_serializable(package="multihead")
class FairGrad(Balancer):
    """Maximizes the alpha-fair utility of the heads' improvements.

    Formula: `d = sum_k w_k g_k` with `w > 0` and `(G w)_k = w_k^(-1 / alpha)`, with `G` the Gramian. `alpha = 1` is
    `NashMTL`; `alpha -> 0` is the plain sum; a larger `alpha` favors the head that improves least.

    What it fixes: direction (`d . g_k > 0` for every head) and, increasingly with `alpha`, magnitude. Size of the
    update: `|d|^2 = sum_k w_k^(1 - 1/alpha)`, which differs from that of the sum; set the learning rate accordingly.

    Heads that exactly oppose each other are handled as in `NashMTL`.

    Args:
        alpha: A number above 0.
        name: Name of the layer.

    Raises:
        ValueError: `alpha` is not above 0, or there are more than 1024 heads.

    Example:
        >>> FairGrad()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.0313, 0.7908, 0.7908]

    Source: Ban and Ji, Fair Resource Allocation in Multi-Task Learning, ICML 2024, equation 4. The paper tunes `alpha`
    for each dataset; the default is its value for NYU-v2.
    """

    max_heads = MANY_HEADS

    def __init__(self, alpha: float = 2.0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.alpha = check_positive("alpha", alpha)
        self.scale_invariant = self.alpha == 1

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        power = 1.0 / self.alpha
        return rows.coefficients(bargaining_weights(rows, tf.pow(rows.norms, power - 1.0), power))
