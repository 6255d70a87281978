"""Who takes part in an update: which heads it trains, and so which groups of variables it may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from multihead._ground.tensors import all_hold

Flag: TypeAlias = tf.Tensor | None
"""Whether an update does something, a boolean scalar; None: every update that is applied does."""


class Group(NamedTuple):
    """Variables that the same heads train, so that an update trains or leaves out all of them.

    What is left out stays as it is, to the bit: the variables, their optimizer slots, and the state.
    """

    heads: tuple[int, ...]  # the heads that train them
    positions: tuple[int, ...]  # of the variables, in `variables.all` of the network
    variables: tuple[tf.Variable, ...]  # with their optimizer slots
    state: tuple[tf.Variable, ...] = ()  # other variables, which computing an update changes
    trained: Flag = None  # whether the update trains the group


class Participation(NamedTuple):
    """Who takes part in an update."""

    active: tf.Tensor  # `[num_heads]` booleans: the heads that the update trains
    trains_encoder: tf.Tensor  # `[num_heads]` booleans: those of them that train the encoder; the methods see no others
    any: tf.Tensor  # whether there is anything to apply, a boolean scalar
    groups: tuple[Group, ...]  # of all trainable variables, the encoder's first
    computed: tuple[Flag, ...] = ()  # by head, whether its losses and gradients are computed

    @classmethod
    def of(
        cls, groups: Sequence[Group], active: tf.Tensor, *, always: Sequence[bool], conditional: Sequence[bool]
    ) -> Participation:
        """The participation in an update that trains the `active` heads, `[num_heads]`.

        `always` is, by head, whether it is known that every update that is applied trains it; `conditional`, whether
        it is not computed while it is idle.
        """
        by_head, encoder_heads = tf.unstack(active), groups[0].heads
        known, number = {k for k, is_always in enumerate(always) if is_always}, len(by_head)

        def trained(heads: Sequence[int]) -> Flag:
            if known & set(heads) or len(heads) == number:  # an update that trains no head is not applied
                return None
            flags = [by_head[k] for k in heads] or [tf.constant(False)]
            return flags[0] if len(flags) == 1 else tf.reduce_any(flags)

        trains_encoder = active if len(encoder_heads) == number else active & [k in encoder_heads for k in range(number)]
        return cls(
            active=active,
            trains_encoder=trains_encoder,
            any=tf.reduce_any(active),
            groups=tuple(group._replace(trained=trained(group.heads)) for group in groups),
            computed=tuple(flag if is_conditional else None for flag, is_conditional in zip(by_head, conditional)),
        )

    @property
    def encoder(self) -> Flag:
        """Whether the update trains the encoder."""
        return self.groups[0].trained

    def methods_see(self, applied: tf.Tensor) -> tf.Tensor:
        """Whether an update was applied, and trains the encoder, so that the methods see it."""
        return applied if self.encoder is None else all_hold([applied, self.encoder])
