"""The metric that holds the total loss of an epoch or of an evaluation."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from multihead._ground.keras import tensor_variable


class EpochLoss(keras.metrics.Metric):
    """The total loss: the heads' weighted losses over their labelled elements, and the rest over examples.

    `sum_k (sum_u w_ku * S_ku) / (sum_u n_ku) + (sum_u m_u * r_u) / (sum_u m_u)`, over heads `k` and updates `u`, with the
    weights `w`, the loss sums `S`, their counts `n`, the numbers of examples `m` and the rest `r`. If the weights are
    constant, the first sum is that of the weights times the heads' logged losses.

    Args:
        num_heads: The number of heads.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__(name="loss", dtype="float32")
        self.weighted = self.add_weight(name="weighted", shape=(num_heads,), initializer="zeros", dtype="float32")
        self.counts = self.add_weight(name="counts", shape=(num_heads,), initializer="zeros", dtype="float32")
        self.rest = self.add_weight(name="rest", shape=(), initializer="zeros", dtype="float32")
        self.examples = self.add_weight(name="examples", shape=(), initializer="zeros", dtype="float32")

    def update_state(self, weighted: tf.Tensor, counts: tf.Tensor) -> None:
        """Adds this replica's loss sums, times the weights of their heads, and their counts; `[num_heads]` each."""
        self.weighted.assign_add(weighted)
        self.counts.assign_add(counts)

    def add_rest(self, rest: tf.Tensor, num_examples: tf.Tensor) -> None:
        """Adds losses that do not belong to a head, as a mean over examples.

        Args:
            rest: This replica's part of the losses, times the number of examples that they count for.
            num_examples: This replica's part of that number.
        """
        self.rest.assign_add(rest)
        self.examples.assign_add(num_examples)

    def reset_state(self) -> None:
        """Resets all sums to zero."""
        for variable in (self.weighted, self.counts, self.rest, self.examples):
            variable.assign(tf.zeros(variable.shape))

    def result(self) -> tf.Tensor:
        """The total loss; NaN if nothing was added."""
        of_heads = tf.math.divide_no_nan(_value(self.weighted), _value(self.counts))
        return tf.where(_value(self.examples) > 0, tf.reduce_sum(of_heads) + self.mean_rest(), float("nan"))

    def mean_rest(self) -> tf.Tensor:
        """The losses that do not belong to a head, as a mean over examples; 0 without any."""
        return tf.math.divide_no_nan(_value(self.rest), _value(self.examples))


def _value(variable: Any) -> tf.Tensor:
    return tf.convert_to_tensor(tensor_variable(variable))
