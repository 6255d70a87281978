"""How much each head's loss counts in one update: weights of the heads (constant or functions of the step), weighting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.tensors import where
from multihead._ground.validation import quoted
from multihead.heads._named import NamedHead
from multihead.weighting import Weighting


def head_weights_at(heads: Sequence[NamedHead], step: tf.Tensor) -> tf.Tensor:
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


def depends_on_losses(weighting: Weighting | None) -> bool:
    """Whether the weights of a weighting depend on the losses of the same update; False for None."""
    return weighting is not None and "losses" in weighting.uses


def meeting_of(heads: Sequence[NamedHead], active: tf.Tensor) -> tf.Tensor:
    """`[num_heads]` booleans: which active heads train the encoder, and so meet there; the methods see no others."""
    return active if all(head.trains_encoder for head in heads) else active & [head.trains_encoder for head in heads]


def weigh(
    weighting: Weighting, losses: tf.Tensor, *, active: tf.Tensor, meeting: tf.Tensor, step: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The weights by a weighting, `[num_heads]`, and the total loss; see `Weighting.weigh`.

    Args:
        weighting: The weighting.
        losses: `[num_heads]` losses times the weights of the heads.
        active: `[num_heads]` booleans: the heads whose losses count.
        meeting: `[num_heads]` booleans: those of them that it weighs; the others count as they are.
        step: The number of updates applied so far.
    """
    factors, total = weighting.weigh(losses, meeting, **weighting.used(step=step))
    if meeting is active:
        return factors, total
    others = active & ~meeting
    return factors + tf.cast(others, tf.float32), total + tf.reduce_sum(where(others, losses, 0.0))


class LossWeights(NamedTuple):
    """The weights of the heads' losses in one update, before the losses are known.

    Loss-dependent weights are known only after the last micro-batch of the update. Therefore a weight has two factors:
    each element's loss is multiplied by the fixed factor, and gradients are multiplied by the loss-dependent one later.

    Attributes:
        weighting: A weighting, or None for a weighted sum.
        step: The number of updates applied so far.
        active: `[num_heads]` booleans: which heads the update trains.
        meeting: `[num_heads]` booleans: which of these train the encoder.
        counts: `[num_heads]` counts of labelled elements in the whole update, over all replicas.
        of_heads: `[num_heads]`: the weights of the heads at this step.
        fixed: `[num_heads]`: the fixed factor; 0 for an idle head.
        per_element: `[num_heads]`: the fixed factor divided by the count, by which each element's loss is multiplied.
    """

    weighting: Weighting | None
    step: tf.Tensor
    active: tf.Tensor
    meeting: tf.Tensor
    counts: tf.Tensor
    of_heads: tf.Tensor
    fixed: tf.Tensor
    per_element: tf.Tensor

    @classmethod
    def of(
        cls,
        weighting: Weighting | None,
        of_heads: tf.Tensor,
        *,
        counts: tf.Tensor,
        active: tf.Tensor,
        meeting: tf.Tensor,
        step: tf.Tensor,
    ) -> LossWeights:
        """The weights at a step.

        Args:
            weighting: A weighting, or None for a weighted sum.
            of_heads: `[num_heads]`: the weights of the heads at this step.
            counts: `[num_heads]` counts of labelled elements in the whole update, over all replicas.
            active: `[num_heads]` booleans.
            meeting: `[num_heads]` booleans: which of these train the encoder.
            step: The number of updates applied so far.
        """
        fixed = where(active, of_heads, 0.0)
        if weighting is not None and "losses" not in weighting.uses:
            fixed *= weigh(weighting, tf.zeros_like(of_heads), active=active, meeting=meeting, step=step)[0]
        per_element = tf.math.divide_no_nan(fixed, counts)
        known = {"active": active, "meeting": meeting, "counts": counts, "of_heads": of_heads}
        return cls(weighting=weighting, step=step, **known, fixed=fixed, per_element=per_element)

    @property
    def depend_on_losses(self) -> bool:
        """Whether there is a loss-dependent factor."""
        return depends_on_losses(self.weighting)

    def mean_losses(self, loss_sums: tf.Tensor) -> tf.Tensor:
        """`[num_heads]`: the unweighted mean losses of the update, reduced over replicas.

        Args:
            loss_sums: `[num_heads]` loss sums of this replica over all micro-batches, from any forward pass on them.
        """
        return tf.math.divide_no_nan(replicas.all_reduce_sum(loss_sums), self.counts)

    def times_means(self, means: tf.Tensor) -> tf.Tensor:
        """`[num_heads]`: mean losses times the weights of the heads; 0 for idle heads."""
        return where(self.active, self.of_heads * means, 0.0)

    def weigh(self, loss_sums: tf.Tensor) -> Losses:
        """The losses of the update, and what their weights are; to be called once.

        Args:
            loss_sums: As for `mean_losses`.
        """
        if self.weighting is None:
            return SummedLosses(given=self, sums=loss_sums)
        means = self.mean_losses(loss_sums)
        weighted = self.times_means(means)
        known = {"active": self.active, "meeting": self.meeting, "step": self.step}
        factors, total = weigh(self.weighting, weighted, **known)
        return WeighedLosses(given=self, means=means, weighted=weighted, by_weighting=factors, total_of_all=total)


class TotalLoss(NamedTuple):
    """The total loss of an update.

    Attributes:
        total: This replica's contribution to the total loss, without added losses.
        weights: `[num_heads]`: the derivatives of the total with respect to the heads' losses; 0 for idle heads.
        regularizer: The part of the total that does not depend on the losses, or None.
        learned: The gradients of the weighting's variables.
    """

    total: tf.Tensor
    weights: tf.Tensor
    regularizer: tf.Tensor | None
    learned: list[tf.Tensor]


class SummedLosses(NamedTuple):
    """The losses of an update whose total is their weighted sum.

    Attributes:
        given: The weights.
        sums: `[num_heads]` loss sums of this replica, over all micro-batches.
    """

    given: LossWeights
    sums: tf.Tensor

    @property
    def factors(self) -> None:
        """None: there is no loss-dependent factor."""
        return None

    @property
    def means(self) -> tf.Tensor:
        """`[num_heads]`: the unweighted mean losses over all replicas."""
        return self.given.mean_losses(self.sums)

    @property
    def weighted(self) -> tf.Tensor:
        """`[num_heads]`: the mean losses times the weights of the heads; 0 for idle heads."""
        return self.given.times_means(self.means)

    def total(self, norms: tf.Tensor | None) -> TotalLoss:
        """The total loss; `norms` are as for `WeighedLosses.total`."""
        total = tf.reduce_sum(self.given.per_element * self.sums)
        return TotalLoss(total=total, weights=self.given.fixed, regularizer=None, learned=[])


class WeighedLosses(NamedTuple):
    """The losses of an update, and their weights by a weighting.

    Attributes:
        given: The weights before the losses were known.
        means: `[num_heads]`: the unweighted mean losses over all replicas.
        weighted: `[num_heads]`: the mean losses times the weights of the heads; 0 for idle heads.
        by_weighting: `[num_heads]`: the derivatives of the total loss with respect to `weighted`.
        total_of_all: The total loss over all replicas.
    """

    given: LossWeights
    means: tf.Tensor
    weighted: tf.Tensor
    by_weighting: tf.Tensor
    total_of_all: tf.Tensor

    @property
    def factors(self) -> tf.Tensor | None:
        """`[num_heads]` factors by which gradients must still be multiplied; None if the fixed ones are the weights."""
        return self.by_weighting if self.given.depend_on_losses else None

    def total(self, norms: tf.Tensor | None) -> TotalLoss:
        """The total loss, its weights, and the gradients of the weighting's variables.

        Args:
            norms: `[num_heads]` norms of the heads' weighted gradients where they are combined, or None.
        """
        weighting: Any = self.given.weighting
        if norms is not None:
            norms = tf.math.divide_no_nan(norms, self.by_weighting)
        used = weighting.used(step=self.given.step)
        return TotalLoss(
            total=self.total_of_all / replicas.num_replicas(),
            weights=self.given.of_heads * self.by_weighting,
            regularizer=weighting.regularizer(self.given.meeting),
            learned=weighting.gradients(self.weighted, norms, self.given.meeting, **used),
        )


Losses = SummedLosses | WeighedLosses


def times_factors(coefficients: tf.Tensor, losses: Losses) -> tf.Tensor:
    """`[num_heads]` coefficients times the loss-dependent factors, if there are any."""
    return coefficients if losses.factors is None else coefficients * losses.factors
