"""A lower limit on the norm of a head's gradient, from running norms."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import where
from multihead._ground.validation import check_between
from multihead.balancing._kinds import PreferenceBalancer
from multihead.balancing._rows import unit_rows


@keras.saving.register_keras_serializable(package="multihead")
class NormFloor(PreferenceBalancer):
    """Scales gradients up so that no head's running norm is below a fixed fraction of the largest.

    For models in which some heads starve, and those that do well must pay little for the others. Gradients above the floor
    keep their proportions, and the heads' loss weights keep their effect there. Conflicts in direction remain; add `UPGrad`
    after it with `Chain` to remove them as well.

    Formula: `s_k <- beta s_k + (1 - beta) |g_k|^2`, and `r_k = sqrt(s_k / (1 - beta^n))` after `n` updates of the head, its
    running root mean square; `t_k = max(r_k, floor p_k max_j r_j / p_j)`, with `p` the `preference`; and
    `d = (|r| / |t|) sum_k (t_k / r_k) g_k`. A head whose preference is 0 is never scaled up, and is not in the maximum.

    Guarantee: `t_i / t_j >= floor p_i / p_j` for any two heads whose preference is above 0. `floor=0` is the plain sum,
    `floor=1` has `t` in proportion to `p`, as `EqualNorms` has the norms of each batch. If the heads' gradients are
    orthogonal on average and the optimizer normalizes the update, as Adam does, a head's pace is `t_k / |t|` of its pace
    alone; with equal preferences it is never below `1 / sqrt(1 + (num_heads - 1) floor^2)` of its pace in the plain sum.

    What it fixes: magnitude. Size of the update: that of the plain sum, as a root mean square over updates, if the gradients
    are orthogonal; the gradient of a single head is unchanged.

    State: `lengths`, `[num_heads]` float32, the `sqrt(s_k)`, and `masses`, `[num_heads]` float32, the `1 - beta^n`. The
    state of an idle head does not change, and its last running norm still counts in the maximum, so that the coefficients
    do not depend on which heads have labels in a batch. Call `reset` after a head was switched off for good.

    Args:
        floor: The smallest fraction of the largest running norm that a head is given, from 0 to 1.
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.
        beta: Decay rate of the running squares, at least 0 and below 1.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of range, or all preferences are 0.

    Example:
        >>> rows = [[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]
        >>> NormFloor(floor=1.0)(rows).numpy().tolist()
        [0.1615, 2.1056, 2.1056]
    """

    def __init__(
        self,
        floor: float = 0.2,
        preference: Mapping[str, float] | None = None,
        beta: float = 0.98,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(preference, name=name)
        self.floor = check_between("floor", floor, 0.0, 1.0)
        self.beta = check_between("beta", beta, 0.0, 1.0, with_high=False)

    def create_state(self, num_heads: int) -> None:
        self.lengths = self.add_state("lengths", (num_heads,))
        self.masses = self.add_state("masses", (num_heads,))

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        lengths, masses = tensor_variable(self.lengths), tensor_variable(self.masses)
        length, mass = [tf.cast(tf.convert_to_tensor(each), tf.float64) for each in (lengths, masses)]
        trains = (rows.active > 0) & rows.finite
        square = self.beta * length**2 + (1.0 - self.beta) * rows.norms**2
        length = where(trains, tf.sqrt(square), length)
        mass = where(trains, self.beta * mass + 1.0 - self.beta, mass)
        lengths.assign(tf.cast(length, tf.float32))
        masses.assign(tf.cast(mass, tf.float32))

        known = mass > 0
        running = length / tf.sqrt(where(known, mass, 1.0))
        preference = self._preference_vector(rows.num_heads)
        largest = tf.reduce_max(where(preference > 0, running / where(preference > 0, preference, 1.0), 0.0))
        target = where(known, tf.maximum(running, self.floor * preference * largest), 0.0)
        size = tf.math.divide_no_nan(tf.norm(running), tf.norm(target))
        return rows.coefficients(rows.norms * size * tf.math.divide_no_nan(target, running))
