"""How much each head's loss counts in one update: weights of the heads (constant or functions of the step), weighting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.validation import quoted
from multihead.heads import Head


class TotalLoss(NamedTuple):
    """The total loss of an update.

    Attributes:
        total: This replica's contribution to the total loss, without added losses.
        weights: `[num_heads]`: the derivatives of the total with respect to the heads' losses; 0 for idle heads.
        losses: `[num_heads]`: the losses passed to the weighting, over all replicas; None without a weighting.
        regularizer: The part of the total that does not depend on the losses, or None.
        learned: The gradients of the weighting's variables.
    """

    total: tf.Tensor
    weights: tf.Tensor
    losses: tf.Tensor | None
    regularizer: tf.Tensor | None
    learned: list[tf.Tensor]


def head_weights_at(heads: Sequence[Head], step: tf.Tensor) -> tf.Tensor:
    """`[num_heads]`: the weights of the heads at a step, before the weighting.

    Args:
        heads: The heads.
        step: The number of updates applied so far, an int64 scalar.
    """
    weights = tf.stack([head.weight_at(step) for head in heads])
    if not any(head.has_weight_function for head in heads):
        return weights
    message = f"`weight` of a head must be at least 0 at every step; the heads are {quoted(head.name for head in heads)}"
    with tf.control_dependencies([tf.debugging.assert_non_negative(weights, message=message)]):
        return tf.identity(weights)


class LossWeights:
    """The weights of the heads' losses in one update.

    Loss-dependent weights are known only after the last micro-batch of the update. Therefore a weight has two factors:
    each element's loss is multiplied by the fixed factor, and gradients are multiplied by the loss-dependent one later.

    Args:
        weighting: A weighting, or None for a weighted sum.
        head_weights: `[num_heads]`: the weights of the heads at this step.
        counts: `[num_heads]` counts of labelled elements in the whole update, over all replicas.
        active: `[num_heads]` booleans.
        step: The number of updates applied so far.

    Attributes:
        counts: As given.
        depend_on_losses: Whether there is a loss-dependent factor.
        fixed: `[num_heads]`: the fixed factor; 0 for an idle head.
        per_element: `[num_heads]`: the fixed factor divided by the count, by which each element's loss is multiplied.
    """

    def __init__(
        self, weighting: Any, head_weights: tf.Tensor, counts: tf.Tensor, active: tf.Tensor, step: tf.Tensor
    ) -> None:
        self._weighting = weighting
        self._head_weights = head_weights
        self.counts = counts
        self._active = active
        self._used = {} if weighting is None else weighting.used(step=step)
        self._means: tf.Tensor | None = None
        self._weighed: tuple[tf.Tensor, tf.Tensor, tf.Tensor] | None = None
        self.depend_on_losses = weighting is not None and "losses" in weighting.uses
        self.fixed = tf.where(active, head_weights, 0.0)
        if weighting is not None and not self.depend_on_losses:
            self.fixed *= weighting.weigh(tf.zeros_like(head_weights), active, **self._used)[0]
        self.per_element = tf.math.divide_no_nan(self.fixed, counts)

    def mean_losses(self, loss_sums: tf.Tensor) -> tf.Tensor:
        """`[num_heads]`: the unweighted mean losses of the update, reduced over replicas once.

        Args:
            loss_sums: `[num_heads]` loss sums of this replica, over all micro-batches.
        """
        if self._means is None:
            self._means = tf.math.divide_no_nan(replicas.all_reduce_sum(loss_sums), self.counts)
        return self._means

    def factors(self, loss_sums: tf.Tensor) -> tf.Tensor | None:
        """`[num_heads]` loss-dependent factors, by which gradients must still be multiplied; None if there are none.

        Args:
            loss_sums: As for `mean_losses`.
        """
        return self._weigh(loss_sums)[1] if self.depend_on_losses else None

    def total(self, loss_sums: tf.Tensor, norms: tf.Tensor | None) -> TotalLoss:
        """The total loss, its weights, and the gradients of the weighting's variables.

        Args:
            loss_sums: As for `mean_losses`.
            norms: `[num_heads]` norms of the heads' weighted gradients where they are combined, or None.
        """
        if self._weighting is None:
            return TotalLoss(tf.reduce_sum(self.per_element * loss_sums), self.fixed, None, None, [])
        losses, weights, total = self._weigh(loss_sums)
        if norms is not None:
            norms = tf.math.divide_no_nan(norms, weights)
        learned = self._weighting.gradients(losses, norms, self._active, **self._used)
        regularizer = self._weighting.regularizer(self._active)
        return TotalLoss(total / replicas.num_replicas(), self._head_weights * weights, losses, regularizer, learned)

    def weighted_losses(self, loss_sums: tf.Tensor) -> tf.Tensor:
        """`[num_heads]`: mean losses times the weights of the heads, over all replicas; 0 for idle heads.

        Args:
            loss_sums: As for `mean_losses`, from any forward pass on the update's examples.
        """
        means = tf.math.divide_no_nan(replicas.all_reduce_sum(loss_sums), self.counts)
        return tf.where(self._active, self._head_weights * means, 0.0)

    def _weigh(self, loss_sums: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The losses, and the weighting's weights and total; computed once."""
        if self._weighed is None:
            losses = tf.where(self._active, self._head_weights * self.mean_losses(loss_sums), 0.0)
            self._weighed = (losses, *self._weighting.weigh(losses, self._active, **self._used))
        return self._weighed
