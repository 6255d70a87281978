"""The metric that holds the losses and the counts of an epoch or of an evaluation."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from multihead._ground.keras import Untracked, first_replica_variable, tensor_variable


class EpochSums(keras.metrics.Metric):
    """Sums over updates in one vector, so that they cost few operations. Its result is the total loss.

    The total loss is `sum_k (sum_u w_ku * S_ku) / (sum_u n_ku) + (sum_u m_u * r_u) / (sum_u m_u)`, over heads `k` and
    updates `u`, with the weights `w`, the loss sums `S`, their counts `n`, the numbers of examples `m` and the rest `r`. If
    the weights are constant, the first sum is that of the weights times the heads' losses.

    Args:
        num_heads: The number of heads.
        num_variables: The number of trainable variables.

    Attributes:
        sums: The vector; for the names and sizes of its parts see `add`.
        batches: The variable that counts the batches of the epoch.
    """

    def __init__(self, num_heads: int, num_variables: int) -> None:
        super().__init__(name="loss", dtype="float32")
        of_heads = dict.fromkeys(("losses", "weighted", "counts", "broken_heads"), num_heads)
        scalars = dict.fromkeys(("rest", "examples", "skipped", "overflows"), 1)
        self._sizes = {**of_heads, **scalars, "broken_variables": num_variables}
        self.sums = self.add_weight(name="sums", shape=(sum(self._sizes.values()),), initializer="zeros", dtype="float32")
        self.batches = Untracked(first_replica_variable(tf.constant(0, tf.int64)))

    def add(self, **parts: tf.Tensor) -> None:
        """Adds this replica's part of an update, or of a batch of an evaluation; 0 for what is not given.

        Args:
            **parts: `losses`: `[num_heads]` loss sums; `weighted`: the same times the weights of their heads; `counts`:
                their counts; `rest`: losses that do not belong to a head, times the number of examples that they count
                for; `examples`: that number; `skipped`: skipped updates; `overflows`: those of them with which loss scaling
                lowers its scale; `broken_heads` and `broken_variables`: other updates with gradients that are not finite.
        """
        values = [
            tf.reshape(parts[name], [size]) if name in parts else tf.zeros([size]) for name, size in self._sizes.items()
        ]
        tensor_variable(self.sums).assign_add(tf.concat(values, axis=0))

    def update_state(self, **parts: tf.Tensor) -> None:
        """As `add`, which Keras does not wrap."""
        self.add(**parts)

    def reset_state(self) -> None:
        """Resets all sums to zero."""
        self.sums.assign(tf.zeros(self.sums.shape))
        self.batches.value.assign(0)

    def parts(self) -> dict[str, tf.Tensor]:
        """The parts of the vector by name, `[num_heads]` for those of heads."""
        vector = tf.convert_to_tensor(tensor_variable(self.sums))
        return dict(zip(self._sizes, tf.split(vector, list(self._sizes.values()))))

    def result(self) -> tf.Tensor:
        """The total loss; NaN if nothing was added."""
        return total_loss(self.parts())


def total_loss(parts: dict[str, Any]) -> tf.Tensor:
    """The total loss of `EpochSums.parts`; NaN if nothing was added."""
    of_heads = tf.math.divide_no_nan(parts["weighted"], parts["counts"])
    return tf.where(parts["examples"][0] > 0, tf.reduce_sum(of_heads) + mean_rest(parts), float("nan"))


def mean_rest(parts: dict[str, Any]) -> tf.Tensor:
    """The losses that do not belong to a head, as a mean over examples; 0 without any."""
    return tf.math.divide_no_nan(parts["rest"], parts["examples"])[0]


def mean_losses(parts: dict[str, Any]) -> tf.Tensor:
    """`[num_heads]`: the heads' losses over their labelled elements; NaN for a head without any."""
    return tf.where(parts["counts"] > 0, tf.math.divide_no_nan(parts["losses"], parts["counts"]), float("nan"))
