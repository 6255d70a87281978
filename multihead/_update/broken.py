"""Losses and gradients of an update that are not finite: those of which heads, and of which variables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.tensors import is_finite
from multihead._ground.types import Gradient
from multihead._update.network import Gradients, Network


class Broken(NamedTuple):
    """The losses and gradients of an update that are not finite, before clipping; equal on all replicas.

    Attributes:
        heads: `[num_heads]` booleans: the loss, or one of the gradients, of a head that the update trains.
        losses: `[num_heads]` booleans: the loss.
        variables: A boolean for the gradient of each of the network's variables.
    """

    heads: tf.Tensor
    losses: tf.Tensor
    variables: tf.Tensor

    @classmethod
    def of_gradients(cls, network: Network, gradients: Gradients) -> Broken:
        """Of an update whose losses are not known."""
        variables, losses = _broken(gradients.all), tf.zeros([len(network.heads)], tf.bool)
        return cls(heads=_broken_heads(network, variables), losses=losses, variables=variables)

    @classmethod
    def of(
        cls,
        network: Network,
        gradients: Gradients,
        active: tf.Tensor,
        *,
        loss_sums: tf.Tensor,
        at_representation: tf.Tensor,
        norms: tf.Tensor | None,
    ) -> Broken:
        """Of an update.

        Args:
            network: The network.
            gradients: The gradients, reduced over replicas.
            active: `[num_heads]`: which heads the update trains.
            loss_sums: `[num_heads]` loss sums of this replica.
            at_representation: `[num_heads]`: above 0 where a gradient of this replica at the representation is not finite,
                other than those whose `norms` are given.
            norms: `[num_heads]` norms of the heads' gradients, or None.
        """
        variables = _broken(gradients.all)
        losses, at_representation = replicas.on_any_replica([~tf.math.is_finite(loss_sums), at_representation > 0])
        found = [losses, at_representation, _broken_heads(network, variables)]
        if norms is not None:
            found.append(~tf.math.is_finite(norms))
        return cls(heads=active & reduce(tf.logical_or, found), losses=active & losses, variables=variables)

    @property
    def is_any(self) -> tf.Tensor:
        """Whether there is anything, a boolean scalar."""
        return tf.reduce_any(tf.concat([self.heads, self.variables], axis=0))

    def __or__(self, other: Broken) -> Broken:
        return Broken(*map(tf.logical_or, self, other))


def _broken(gradients: Sequence[Gradient]) -> tf.Tensor:
    """A boolean per gradient: whether it is not finite."""
    return (
        ~tf.stack([True if each is None else is_finite(each) for each in gradients]) if gradients else tf.zeros([0], tf.bool)
    )


def _broken_heads(network: Network, variables: tf.Tensor) -> tf.Tensor:
    """`[num_heads]` booleans: whether a gradient of one of the head's own variables is not finite."""
    first, number = len(network.variables.encoder), len(network.variables.all)
    own = [[i - first in positions for i in range(number)] for positions in network.own]
    return tf.reduce_any(tf.constant(own, tf.bool) & variables, axis=1)
