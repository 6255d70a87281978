"""The function that Keras calls for each step, with errors of updates that are not finite in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multihead._update.faults import Faults


class GuardedFunction:
    """A train function that raises what `Faults` says.

    Args:
        function: The train function.
        faults: Returns the faults, or None before they exist.
        asks: Returns whether to ask them after each call, as XLA needs, which has no errors.
        instead: Called first; what it returns is returned, unless it is None.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        faults: Callable[[], Faults | None],
        asks: Callable[[], bool],
        instead: Callable[[Any], Any],
    ) -> None:
        self._function = function
        self._faults = faults
        self._asks = asks
        self._instead = instead

    def __call__(self, iterator: Any) -> Any:
        logs, failure = self._instead(iterator), None
        if logs is not None:
            return logs
        try:
            logs = self._function(iterator)
        except tf.errors.InvalidArgumentError as error:
            failure = error
        faults = self._faults()
        if faults is not None and (failure is not None or self._asks()):
            faults.stop()
        if failure is not None:
            raise failure
        return logs
