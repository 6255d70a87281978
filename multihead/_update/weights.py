"""How much the heads' losses count in one update: weights of the heads (constant or functions of the step), weighting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.tensors import precision_of, where
from multihead._ground.validation import quoted
from multihead._update.participation import Participation
from multihead.heads._named import NamedHead
from multihead.weighting import Weighting


def head_weights_at(heads: Sequence[NamedHead], step: tf.Tensor) -> tf.Tensor:
    """`[num_heads]`: the weights of the heads after `step` updates, before the weighting."""
    weights = [head.weight_at(step) for head in heads]
    dtype = precision_of([weight.dtype for weight in weights])
    weights = tf.stack([tf.cast(weight, dtype) for weight in weights])
    if not any(head.has_weight_function for head in heads):
        return weights
    message = f"`weight` of a head must be at least 0 at every step; the heads are {quoted(head.name for head in heads)}"
    with tf.control_dependencies([tf.debugging.assert_non_negative(weights, message=message)]):
        return tf.identity(weights)


def depends_on_losses(weighting: Weighting | None) -> bool:
    """Whether the weights of a weighting depend on the losses of the same update; False for None."""
    return weighting is not None and "losses" in weighting.uses


def weigh(
    weighting: Weighting, losses: tf.Tensor, participation: Participation, step: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The weights by a weighting, `[num_heads]`, and the total loss, from the losses times the weights of the heads.

    Active heads that do not train the encoder count as they are.
    """
    active, trains_encoder = participation.active, participation.trains_encoder
    used = weighting.used(step=step)
    factors, total = weighting.weigh(tf.cast(losses, tf.float32), trains_encoder, **used)  # as its variables are
    factors, total = tf.cast(factors, losses.dtype), tf.cast(total, losses.dtype)
    if trains_encoder is active:
        return factors, total
    others = active & ~trains_encoder
    return factors + tf.cast(others, losses.dtype), total + tf.reduce_sum(where(others, losses, 0.0))


class LossWeights(NamedTuple):
    """How much the losses of one update count, before they are known.

    Those that depend on losses are known only after the last micro-batch. Therefore a weight has two factors: an element's
    loss is multiplied by the fixed one, and gradients are multiplied by the loss-dependent one later.
    """

    weighting: Weighting | None  # None for a weighted sum
    step: tf.Tensor  # the number of updates applied so far, an int64 scalar
    participation: Participation  # which heads the update trains
    counts: tf.Tensor  # `[num_heads]` counts of labelled elements in the whole update, over all replicas
    examples: tf.Tensor  # the number of examples in the whole update, over all replicas, float32
    scale: tf.Tensor | None  # the factor of loss scaling, or None
    head_weights: tf.Tensor  # `[num_heads]`: the weights of the heads at this step
    fixed: tf.Tensor  # `[num_heads]`: the fixed factor; 0 for an idle head
    # `[num_heads]`: the fixed factor divided by the count, by which the elements' losses are multiplied
    per_element: tf.Tensor

    @classmethod
    def of(cls, weighting: Weighting | None, head_weights: tf.Tensor, *, counts: tf.Tensor, **known: Any) -> LossWeights:
        """The weights at a step; the arguments are the attributes."""
        fixed = where(known["participation"].active, head_weights, 0.0)
        if weighting is not None and not depends_on_losses(weighting):
            fixed *= weigh(weighting, tf.zeros_like(head_weights), known["participation"], known["step"])[0]
        per_element = tf.math.divide_no_nan(fixed, counts)
        return cls(weighting, head_weights=head_weights, counts=counts, fixed=fixed, per_element=per_element, **known)


class Losses:
    """The losses of an update over all replicas and their weights, from this replica's loss sums, `[num_heads]`.

    `total` is this replica's contribution to the total loss, without added losses; `weights`, `[num_heads]`, its derivatives
    with respect to the heads' losses, 0 for idle heads.
    """

    def __init__(self, loss_weights: LossWeights, sums: tf.Tensor) -> None:
        self.loss_weights, self._sums = loss_weights, sums
        # `[num_heads]`: the loss-dependent factors, by which the heads' gradients must still be multiplied; None if the
        # weighting does not depend on losses. The regularizer is the part of the total without losses, or None.
        self._by_weighting = self.factors = self.regularizer = None
        weighting, participation = loss_weights.weighting, loss_weights.participation
        if weighting is None:
            self.total, self.weights = tf.reduce_sum(loss_weights.per_element * sums), loss_weights.fixed
            return
        self.regularizer = weighting.regularizer(participation.trains_encoder)  # now: an update changes what it reads
        self._by_weighting, total = weigh(weighting, self.weighted, participation, loss_weights.step)
        self.total, self.weights = total / replicas.num_replicas(), loss_weights.head_weights * self._by_weighting
        self.factors = self._by_weighting if depends_on_losses(weighting) else None

    @cached_property
    def means(self) -> tf.Tensor:
        """`[num_heads]`: the unweighted mean losses."""
        return tf.math.divide_no_nan(replicas.all_reduce_sum(self._sums), self.loss_weights.counts)

    @cached_property
    def weighted(self) -> tf.Tensor:
        """`[num_heads]`: the mean losses times the weights of the heads; 0 for idle heads."""
        return where(self.loss_weights.participation.active, self.loss_weights.head_weights * self.means, 0.0)

    def learned(self, norms: tf.Tensor | None) -> list[tf.Tensor]:
        """The gradients of the weighting's variables, from the norms of the heads' weighted gradients."""
        weighting, trains_encoder = self.loss_weights.weighting, self.loss_weights.participation.trains_encoder
        if weighting is None:
            return []
        losses, factors = (tf.cast(numbers, tf.float32) for numbers in (self.weighted, self._by_weighting))
        norms = None if norms is None else tf.math.divide_no_nan(norms, factors)
        return list(weighting.gradients(losses, norms, trains_encoder, **weighting.used(step=self.loss_weights.step)))

    def times_factors(self, coefficients: tf.Tensor) -> tf.Tensor:
        """`[num_heads]` coefficients times the loss-dependent factors, if there are any."""
        return coefficients if self.factors is None else coefficients * tf.cast(self.factors, coefficients.dtype)
