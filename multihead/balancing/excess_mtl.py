"""Weights by estimated excess risk (ExcessMTL)."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import where
from multihead._ground.validation import check_positive
from multihead.balancing._kinds import RunningBalancer, combined, prepared


@keras.saving.register_keras_serializable(package="multihead")
class ExcessMTL(RunningBalancer):
    """Gives more weight to heads that are still far from their own optimum, but none to noise in the labels.

    Formula: `S_k <- S_k + g_k^2`; the estimated excess risk `E_k = sum_i g_ki^2 / sqrt(S_ki)`, divided by its value at
    the head's first update; `w_k <- w_k exp(step_size E_k)`, scaled to sum to 1; `d = sum_k w_k g_k`.

    What it fixes: magnitude, slowly; conflicts remain. Size of the update: that of a weighted mean of the gradients,
    since the weights sum to 1.

    State: `running` (the square roots of the `S_k`), `counts`, and two `[num_heads]` float32 variables: `first_risks`
    (the risks at the first update) and `log_weights` (the logarithms of the `w_k`, up to a common constant). The state
    of an idle head does not change, and the head does not contribute to the update.

    Args:
        step_size: Step size of the weights, above 0.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of range, or the balancer is built without the numbers of parameters.

    Example:
        >>> ExcessMTL()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [1.0, 1.0, 1.0]

    Source: He et al., Robust Multi-Task Learning with Excess Risks, ICML 2024, equations 6, 7 and 9, without the
    epsilon under the square root (0/0 is 0), so that the method does not depend on the scale of the gradients.
    """

    rescales = False

    def __init__(self, step_size: float = 0.01, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.step_size = check_positive("step_size", step_size)

    def create_state(self, num_heads: int) -> None:
        super().create_state(num_heads)
        self.first_risks = self.add_state("first_risks", (num_heads,))
        self.log_weights = self.add_state("log_weights", (num_heads,))

    def combine(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        self._check_gradients(gradients)
        rows, active, finite = prepared(gradients)
        is_first = active & (self._count(active) <= 1)
        roots = [where(active[:, None], tf.sqrt(old**2 + new**2), old) for old, new in zip(self._read(), rows)]
        self._write(roots)
        risks = tf.add_n([tf.reduce_sum(tf.math.divide_no_nan(new**2, root), 1) for new, root in zip(rows, roots)])

        first_risks, log_weights = tensor_variable(self.first_risks), tensor_variable(self.log_weights)
        first = where(is_first, risks, tf.cast(tf.convert_to_tensor(first_risks), tf.float64))
        first_risks.assign(tf.cast(first, tf.float32))
        logs = tf.cast(tf.convert_to_tensor(log_weights), tf.float64)
        logs = where(active, logs + self.step_size * tf.math.divide_no_nan(risks, first), logs)
        # A common constant has no effect. This one keeps the largest logarithm at 0 and shifts idle heads too.
        log_weights.assign(tf.cast(logs - tf.reduce_max(logs), tf.float32))
        lowest = tf.constant(-1e300, tf.float64)
        weights = tf.nn.softmax(where(active, logs, lowest)) * tf.cast(active, tf.float64)
        return combined(weights, rows, gradients, finite)
