"""Multi-task learning as a bargaining game (Nash-MTL)."""

from __future__ import annotations

import tensorflow as tf

from multihead._ground.keras import keras
from multihead.balancing._base import MANY_HEADS, Balancer
from multihead.balancing._cone import bargaining_weights
from multihead.balancing._rows import unit_rows


@keras.saving.register_keras_serializable(package="multihead")
class NashMTL(Balancer):
    """Takes the Nash bargaining solution: the update that maximizes the product of the heads' improvements.

    Formula: `d = sum_k w_k g_k` with `w > 0` and `(G w)_k = 1 / w_k`, with `G` the Gramian.

    What it fixes: direction (`d . g_k > 0` for every head) and magnitude; the update does not change when a head's loss
    is scaled, so loss weights have no effect. Size of the update: the square root of the number of heads, regardless of
    the gradients; set the learning rate accordingly.

    Heads that exactly oppose each other have no bargaining solution. The update is then orthogonal to their gradients
    and solves the problem for the other heads in the remaining subspace; it is zero if there are no other heads.

    Args:
        name: Name of the layer.

    Raises:
        ValueError: There are more than 1024 heads.

    Example:
        >>> NashMTL()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.0766, 0.9985, 0.9985]

    Source: Navon et al., Multi-Task Learning as a Bargaining Game, ICML 2022, claim 3.2. The equation is solved exactly
    and the update is not clipped (use `multihead.clipping`).
    """

    scale_invariant = True
    max_heads = MANY_HEADS

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        return rows.coefficients(bargaining_weights(rows, tf.ones_like(rows.norms), power=1.0))
