"""The values that variables had before, and the way back to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensorflow as tf

from multihead._ground.replicas import assign


class RollBack:
    """Remembers the values of variables, to restore them later.

    Args:
        variables: The variables; their values are read when this is created.

    Attributes:
        values: The values to restore. They must be passed through `merge_call` to leave the replicas.
    """

    def __init__(self, variables: Iterable[tf.Variable] = ()) -> None:
        self._variables = list(variables)
        self.values = [variable.value() for variable in self._variables]

    def restore(self) -> None:
        """Restores the values, outside of replicas or each replica for itself."""
        for variable, value in zip(self._variables, self.values):
            variable.assign(value)

    def restore_all(self, strategy: tf.distribute.Strategy, values: Sequence[tf.Tensor]) -> None:
        """Restores the values on all replicas.

        Args:
            strategy: The strategy, in its cross-replica context.
            values: The attribute `values`, as `merge_call` passes it.
        """
        for variable, value in zip(self._variables, values):
            assign(strategy, variable, value)
