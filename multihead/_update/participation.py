"""Who takes part in an update: which heads it trains, and so which groups of variables it may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from multihead._ground.tensors import all_of
from multihead._update.network import Network


class Participation(NamedTuple):
    """Who takes part in an update.

    A group of variables takes part if one of the heads that train it is active. Whatever does not stays as it is, to the
    bit: the variables, their optimizer slots and, of the encoder and the methods, what computing the update has changed.
    """

    active: tf.Tensor  # `[num_heads]` booleans: which heads the update trains
    at_encoder: tf.Tensor  # `[num_heads]` booleans: which of these train the encoder; the methods see no others
    any: tf.Tensor  # whether there is anything to apply, a boolean scalar
    # For each of the network's groups, whether the update trains it; None: every update that is applied does
    groups: tuple[tf.Tensor | None, ...]
    conditional: tuple[bool, ...] = ()  # for each head, whether it is computed only if it is active

    @classmethod
    def of(
        cls, network: Network, active: tf.Tensor, *, always: Sequence[bool] = (), conditional: Sequence[bool] = ()
    ) -> Participation:
        """That of an update which trains the active heads, `[num_heads]`.

        `always` is, for each head, whether it is known that every update that is applied trains it.
        """
        known, by_head = {k for k, each in enumerate(always) if each}, tf.unstack(active)
        flags: list[tf.Tensor | None] = []
        for heads, _ in network.groups:
            if known & set(heads) or len(heads) == len(network.heads):  # an update that trains no head is not applied
                flags.append(None)
            elif len(heads) == 1:
                flags.append(by_head[heads[0]])
            else:
                flags.append(tf.reduce_any([by_head[k] for k in heads]) if heads else tf.constant(False))
        return cls(active, at_encoder_of(network, active), tf.reduce_any(active), tuple(flags), tuple(conditional))

    @property
    def encoder(self) -> tf.Tensor | None:
        """Whether the update trains the encoder; None: every update that is applied does."""
        return self.groups[0]

    def unless_left_out(self, applied: tf.Tensor) -> tf.Tensor:
        """Whether an update was applied, and trains the encoder, so that the methods see it."""
        return applied if self.encoder is None else all_of([applied, self.encoder])


def at_encoder_of(network: Network, active: tf.Tensor) -> tf.Tensor:
    """`[num_heads]` booleans: which active heads train the encoder."""
    if len(network.encoder_heads) == len(network.heads):
        return active
    return active & [head.trains_encoder for head in network.heads]
