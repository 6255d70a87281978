"""An update as a value, from its computation to the logs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import tensorflow as tf

from multihead._ground.types import Gradient
from multihead._update.faults import Broken
from multihead._update.micro_batches import MicroBatches
from multihead._update.network import ByOwner
from multihead._update.participation import Flag, Participation
from multihead._update.representation import Rows, cosines_of
from multihead._update.weights import Losses
from multihead.rates import Rates


class RollBack:
    """Remembers the values of variables as they are when it is created, to restore them later."""

    def __init__(self, variables: Iterable[tf.Variable] = ()) -> None:
        self.variables = list(variables)
        # They must be passed through `merge_call` to leave the replicas.
        self.values = [variable.value() for variable in self.variables]

    def restore(self) -> None:
        """Restores the values, outside of replicas or each replica for itself."""
        for variable, value in zip(self.variables, self.values):
            variable.assign(value)


class Combined(NamedTuple):
    """The heads' encoder gradients combined into one, over all micro-batches and replicas, and what was measured for it."""

    gradients: list[Gradient]  # the combined gradient and that of added losses, one per encoder variable
    coefficients: tf.Tensor  # `[num_heads]`: those of the heads' weighted gradients in the combined one; 0 for idle heads
    # `[num_heads, num_heads]` inner products of the heads' weighted gradients where they are combined, at the representation
    # or the parameters; possibly only the diagonal; None if nothing is measured
    gramian: tf.Tensor | None
    at_representation: tf.Tensor | None  # the inner products at the representation; possibly only the diagonal, or None
    # The squared norm of the combined gradient, where `gramian` is measured, if it is no sum of the heads' gradients times
    # their coefficients; otherwise None
    square: tf.Tensor | None = None
    is_measured: Flag = None  # whether `gramian` was computed; otherwise it is zero
    # By head, the gradients of its loss over all replicas, one per encoder variable, without loss-dependent factors;
    # empty if they are not known
    rows: Rows = ()
    leaves: Rows = ()  # by head, this replica's weighted gradients at the representation; empty if they are not kept

    @property
    def cosines(self) -> tf.Tensor | None:
        """`[num_heads + 1, num_heads + 1]` cosines of the heads' weighted gradients and, last, the combined gradient.

        NaN for a gradient that is zero; None without a whole `gramian`.
        """
        if self.gramian is None:
            return None
        coefficients = tf.cast(self.coefficients, tf.float64)
        if self.square is None:
            along = tf.linalg.matvec(self.gramian, coefficients)
            square = tf.tensordot(coefficients, along, 1)
        else:
            along, square = coefficients * tf.linalg.diag_part(self.gramian), tf.cast(self.square, tf.float64)
        top = tf.concat([self.gramian, along[:, tf.newaxis]], axis=1)
        return cosines_of(tf.concat([top, tf.concat([along, [square]], axis=0)[tf.newaxis]], axis=0))


@dataclass(frozen=True, kw_only=True)
class Change:
    """Gradients to apply as one update."""

    gradients: ByOwner  # the gradients, reduced over replicas, without loss scaling
    clipped: ByOwner  # the same after clipping; before it, `gradients`
    step: tf.Tensor  # the number of updates applied before this one, an int64 scalar
    participation: Participation  # which heads and groups of variables the update trains
    broken: Broken  # which losses and gradients are not finite
    # Restores the state that computing the update has changed, if it is skipped
    roll_back: RollBack = field(default_factory=RollBack)
    # The floating-point tensors of this replica's inputs, and those of its labels and their weights, if known
    data: tuple[list[tf.Tensor], list[tf.Tensor]] = ([], [])


@dataclass(frozen=True, kw_only=True)
class Update(Change):
    """One update, computed from batches."""

    loss_sums: tf.Tensor  # `[num_heads]` unweighted loss sums over this replica's labelled elements
    counts: tf.Tensor  # `[num_heads]` counts of these elements; 0 for idle heads
    added_loss: tf.Tensor | None  # this replica's regularization and `add_loss` losses; None without any
    combined: Combined  # the encoder's gradient, and how it was combined
    norms: tf.Tensor | None  # `[num_heads]` norms of the heads' weighted gradients where they are combined, or None
    losses: Losses  # the losses over all replicas, their weights and their total
    micro_batches: MicroBatches  # the examples on this replica
    rates: Rates

    @property
    def total_loss(self) -> tf.Tensor:
        """This replica's contribution to the total loss, with added losses."""
        return self.losses.total if self.added_loss is None else self.losses.total + self.added_loss
