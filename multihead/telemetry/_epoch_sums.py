"""The metric that holds the losses, the counts and the statistics of an epoch or of an evaluation."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from multihead._ground.keras import Untracked, first_replica_variable, tensor_variable
from multihead._ground.tensors import where
from multihead._update.faults import Faults


class Sums(NamedTuple):
    """Sums over updates, or over batches of an evaluation, and of how many elements, updates or examples; one scalar each.

    Attributes:
        losses: For each head, the loss.
        statistics: For each statistic of updates, its value.
        added: The losses that layers add, times the number of examples that they count for.
        total: The total by a weighting, times the same number.
        weighted: For each head, the loss times the weight of the head.
    """

    losses: list[Any]
    statistics: list[Any]
    added: Any
    total: Any
    weighted: list[Any]

    @classmethod
    def of(cls, values: tf.Tensor, num_heads: int) -> Sums:
        """Names the parts of a vector."""
        flat = tf.unstack(values)
        *before, added, total = flat[:-num_heads]
        return cls(before[:num_heads], before[num_heads:], added, total, flat[-num_heads:])


class Read:
    """What `EpochSums` holds.

    Args:
        sums: The sums.
        counts: Of how many elements, updates or examples each of them is.
        num_heads: The number of heads.

    Attributes:
        exist: Whether each of the sums is of anything.
        means: The sums over their counts; 0 for nothing.
        known: The same; NaN for nothing.
    """

    def __init__(self, sums: tf.Tensor, counts: tf.Tensor, num_heads: int) -> None:
        self._sums, self._num_heads = sums, num_heads
        exist, means = counts > 0, tf.math.divide_no_nan(sums, counts)
        known = where(exist, means, float("nan"))
        self.exist, self.means, self.known = (Sums.of(each, num_heads) for each in (exist, means, known))

    @cached_property
    def sums(self) -> Sums:
        """The sums, which only some statistics need."""
        return Sums.of(self._sums, self._num_heads)

    @property
    def total_loss(self) -> tf.Tensor:
        """The total loss; NaN if nothing was added."""
        means = self.means
        return where(self.exist.added, tf.add_n([*means.weighted, means.added, means.total]), float("nan"))


class EpochSums(keras.metrics.Metric):
    """Sums over updates in one vector, so that they cost few operations. Its result is the total loss.

    The total loss is `sum_k (sum_u w_ku * S_ku) / (sum_u n_ku) + (sum_u m_u * r_u) / (sum_u m_u)`, over heads `k` and
    updates `u`, with the weights `w`, the loss sums `S`, their counts `n`, the numbers of examples `m` and the losses `r`
    that layers add. If the weights are constant, the first sum is that of the weights times the heads' losses. A weighting
    has its own total in place of the first sum.

    Args:
        num_heads: The number of heads.
        num_statistics: The number of statistics of updates.
        faults: Counts updates that are not finite, epoch by epoch.

    Attributes:
        sums: The vector: the parts of `Sums`, then of how many elements, updates and examples each is.
        batches: The variable that counts the batches of the epoch.
    """

    def __init__(self, num_heads: int, num_statistics: int, faults: Faults) -> None:
        super().__init__(name="loss", dtype="float32")
        self._num_heads, self._num_statistics = num_heads, num_statistics
        self._faults = Untracked(faults)
        size = 2 * (2 * num_heads + num_statistics + 2)
        self.sums = self.add_weight(name="sums", shape=(size,), initializer="zeros", dtype="float32")
        self.batches = Untracked(first_replica_variable(tf.constant(0, tf.int64)))

    def add(
        self,
        *,
        losses: tf.Tensor,
        counts: tf.Tensor,
        examples: tf.Tensor,
        weighted: tf.Tensor | None = None,
        added: tf.Tensor | None = None,
        total: tf.Tensor | None = None,
        statistics: tuple[tf.Tensor, tf.Tensor] | None = None,
    ) -> None:
        """Adds this replica's part of an update, or of a batch of an evaluation.

        Args:
            losses: `[num_heads]` loss sums.
            counts: Their counts.
            examples: The number of examples.
            weighted: The loss sums times the weights of their heads; None counts as 0.
            added: The losses that layers add, times the number of examples; None counts as 0.
            total: The total by a weighting, times the number of examples; None counts as 0.
            statistics: The statistics of an update, and for how many updates each counts; None counts as 0.
        """
        if statistics is None and self._num_statistics:
            statistics = (tf.zeros([self._num_statistics]),) * 2
        values, numbers = ([], []) if statistics is None else map(list, zip(statistics))
        if added is None and total is None:
            of_examples = tf.zeros([2])
        else:
            of_examples = tf.stack([0.0 if each is None else each for each in (added, total)])
        weighted = tf.zeros_like(losses) if weighted is None else weighted
        parts = [losses, *values, of_examples, weighted, counts, *numbers, tf.fill([2], examples), counts]
        tensor_variable(self.sums).assign_add(tf.concat(parts, axis=0))

    def update_state(self, **parts: tf.Tensor) -> None:
        """As `add`, which Keras does not wrap."""
        self.add(**parts)

    def reset_state(self) -> None:
        """Resets all sums to zero, and the counts of updates that are not finite."""
        self.sums.assign(tf.zeros(self.sums.shape))
        self.batches.value.assign(0)
        self._faults.value.reset_epoch()

    def read(self) -> Read:
        """The sums so far."""
        sums, counts = tf.split(tf.convert_to_tensor(tensor_variable(self.sums)), 2)
        return Read(sums, counts, self._num_heads)

    def result(self) -> tf.Tensor:
        """The total loss; NaN if nothing was added."""
        return self.read().total_loss
