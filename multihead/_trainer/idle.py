"""Which heads a callback has made idle."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from multihead._ground.keras import first_replica_variable


class IdleHeads:
    """Who is awake, as a variable that training steps read, so that nothing is traced again.

    Attributes:
        names: The heads that are idle.
        may_change: Whether heads were ever made idle, so that idle heads should cost nothing.
        awake: `[num_heads]`: 1 for each head that may be trained, 0 for idle ones; None before it is created.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.may_change = False
        self.awake: tf.Variable | None = None

    def set(self, idle: Sequence[str], heads: Sequence[str]) -> None:
        """Makes some of the heads idle, and all others awake."""
        self.names = list(idle)
        if self.awake is not None:
            self.awake.assign(self._awake(heads))

    def create(self, heads: Sequence[str]) -> tf.Variable:
        """The variable for these heads, created at the first call."""
        if self.awake is None:
            self.awake = first_replica_variable(tf.constant(self._awake(heads)))
        return self.awake

    @property
    def never(self) -> bool:
        """Whether no head was ever made idle, here or in the run that this one continues."""
        if self.may_change or self.awake is None:
            return not self.may_change
        with tf.init_scope():
            return bool(tf.reduce_all(tf.convert_to_tensor(self.awake) > 0))

    def forget(self) -> None:
        """Drops the variable, whose length is the number of heads; all heads are awake again."""
        self.names, self.awake = [], None

    def _awake(self, heads: Sequence[str]) -> list[float]:
        return [float(name not in self.names) for name in heads]
