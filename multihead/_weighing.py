"""How much each head's loss counts in one update: constants, functions of the update count, and a weighting method."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from multihead._update import all_reduce_sum


class Weighed(NamedTuple):
    """What a weighting made of an update's losses.

    Attributes:
        total: The total loss of the heads, over all replicas, without added losses.
        weights: `[num_heads]`: the derivatives of the total by the heads' losses; 0 for idle heads.
        regularizer: The part of the total that no loss is in, or None.
        learned: The gradients of the variables that the weighting learns.
    """

    total: tf.Tensor
    weights: tf.Tensor
    regularizer: tf.Tensor | None
    learned: list[tf.Tensor]


class Weighing:
    """The heads' weights in one update.

    Args:
        method: A weighting, or None for a weighted sum.
        constants: `[num_heads]`: the heads' own weights at this update.
        counts: `[num_heads]` counts of labelled elements in the whole update, over all replicas.
        active: `[num_heads]` booleans.
        update_count: The count of updates made so far.

    Attributes:
        scales: `[num_heads]`: what each element's loss is multiplied by: the part of the weight that is known before the
            losses are, over the count; 0 for an idle head.
        early: `[num_heads]`: that part of the weight; 0 for an idle head.
        is_late: Whether there is a further part that depends on the losses; see `late_factors`.
    """

    def __init__(
        self, method: Any, constants: tf.Tensor, counts: tf.Tensor, active: tf.Tensor, update_count: tf.Tensor
    ) -> None:
        self._method = method
        self._constants = constants
        self._counts = counts
        self._active = active
        self._used = {} if method is None else method.used(update_count)
        self._cached: tuple[tf.Tensor, tf.Tensor, tf.Tensor] | None = None
        self.is_late = method is not None and method.reads_losses
        self.early = tf.where(active, constants, 0.0)
        if method is not None and not self.is_late:
            self.early *= method.weigh(tf.zeros_like(constants), active, **self._used)[0]
        self.scales = tf.math.divide_no_nan(self.early, counts)

    def _weighed(self, loss_sums: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Losses, the method's weights and its total; computed once, and reduced over the replicas once."""
        if self._cached is None:
            means = tf.math.divide_no_nan(all_reduce_sum(loss_sums), self._counts)
            losses = tf.where(self._active, self._constants * means, 0.0)
            self._cached = (losses, *self._method.weigh(losses, self._active, **self._used))
        return self._cached

    def late_factors(self, loss_sums: tf.Tensor) -> tf.Tensor | None:
        """`[num_heads]` factors by which gradients computed with `scales` are to be multiplied, or None.

        Args:
            loss_sums: `[num_heads]` sums of this replica's losses, over all slices.
        """
        return self._weighed(loss_sums)[1] if self.is_late else None

    def finish(self, loss_sums: tf.Tensor, norms: tf.Tensor | None) -> Weighed | None:
        """The total, the weights and what the weighting learns; it takes note of the losses. None without a method.

        Args:
            loss_sums: As for `late_factors`.
            norms: `[num_heads]` norms of the heads' weighted gradients where they meet, or None.
        """
        if self._method is None:
            return None
        losses, weights, total = self._weighed(loss_sums)
        if norms is not None:
            norms = tf.math.divide_no_nan(norms, weights)
        learned = self._method.gradients(losses, norms, self._active, **self._used)
        regularizer = self._method.regularizer(self._active)
        self._method.observe(losses, self._active)
        return Weighed(total, self._constants * weights, regularizer, learned)

    def observe_after(self, loss_sums: tf.Tensor, loss_sums_after: tf.Tensor, made: tf.Tensor) -> None:
        """Tells the weighting what the losses on the same examples are after the update.

        Args:
            loss_sums: As for `late_factors`.
            loss_sums_after: The same after the update.
            made: Whether it was made.
        """
        means = tf.math.divide_no_nan(all_reduce_sum(loss_sums_after), self._counts)
        after = tf.where(self._active, self._constants * means, 0.0)
        self._method.observe_after(self._weighed(loss_sums)[0], after, self._active, made)
