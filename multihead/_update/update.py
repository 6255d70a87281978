"""An update as a value, from its computation to the logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from multihead._update.broken import Broken
from multihead._update.combined import Combined
from multihead._update.micro_batches import MicroBatches
from multihead._update.network import Gradients
from multihead._update.roll_back import RollBack
from multihead._update.weights import Losses, TotalLoss
from multihead.rates import Rates


@dataclass(frozen=True, kw_only=True)
class Change:
    """Gradients to apply as one update.

    Attributes:
        gradients: The gradients, reduced over replicas, without loss scaling.
        clipped: The same after clipping; before it, `gradients`.
        step: The number of updates applied before this one, an int64 scalar.
        active: `[num_heads]` booleans: which heads the update trains.
        never_idle: For each head, whether every update that is applied trains it; empty if that is not known.
        without_heads: Whether it is applied even if no head is active: gradients of the encoder alone.
        broken: Which losses and gradients are not finite.
        roll_back: Restores the state that computing the update has changed, if it is skipped.
    """

    gradients: Gradients
    clipped: Gradients
    step: tf.Tensor
    active: tf.Tensor
    broken: Broken
    roll_back: RollBack = field(default_factory=RollBack)
    without_heads: bool = False
    never_idle: tuple[bool, ...] = ()

    @property
    def trains_any(self) -> tf.Tensor:
        """Whether there is anything to train, a boolean scalar."""
        return tf.constant(True) if self.without_heads else tf.reduce_any(self.active)

    @property
    def data(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The floating-point tensors of this replica's inputs, and those of its labels and their weights, if known."""
        return [], []


@dataclass(frozen=True, kw_only=True)
class Update(Change):
    """One update, computed from batches.

    Attributes:
        loss_sums: `[num_heads]` unweighted loss sums over this replica's labelled elements.
        counts: `[num_heads]` counts of these elements; 0 for idle heads.
        added_loss: This replica's regularization and `add_loss` losses; None without any.
        num_examples: The number of examples over all replicas, float32.
        combined: The encoder's gradient, and how it was combined.
        norms: `[num_heads]` norms of the heads' weighted gradients, or None; see `Combined.norms`.
        losses: The losses over all replicas, and their weights.
        total: The total loss.
        by_layer: `[layers, num_heads + 1, num_heads + 1]` inner products of the heads' weighted gradients and, last, the
            combined gradient in each encoder layer; zeros in updates that do not measure them, None if none does.
        micro_batches: The examples on this replica.
        rates: The factors of learning rates.
        loss_scale: The factor of loss scaling in this update, or None.
    """

    loss_sums: tf.Tensor
    counts: tf.Tensor
    added_loss: tf.Tensor | None
    num_examples: tf.Tensor
    combined: Combined
    norms: tf.Tensor | None
    losses: Losses
    total: TotalLoss
    by_layer: tf.Tensor | None
    micro_batches: MicroBatches
    rates: Rates
    loss_scale: tf.Tensor | None

    @property
    def total_loss(self) -> tf.Tensor:
        """This replica's contribution to the total loss, with added losses."""
        return self.total.total if self.added_loss is None else self.total.total + self.added_loss

    @property
    def data(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The floating-point tensors of this replica's inputs, and those of its labels and their weights."""
        batches = self.micro_batches.batches
        return _floats([batch.inputs for batch in batches]), _floats([batch.labels for batch in batches])

    @property
    def total_counts(self) -> tf.Tensor:
        """`[num_heads]` counts of labelled elements over all replicas."""
        return self.losses.given.counts


def _floats(nest: Any) -> list[tf.Tensor]:
    leaves = tf.nest.flatten(nest, expand_composites=True)
    return [leaf for leaf in leaves if leaf is not None and leaf.dtype.is_floating]
