"""Training steps of several stages: each is traced once, when training enters it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class StagedFunction:
    """A train function that is made again when the next stage begins.

    Args:
        function: The train function of the present stage.
        updates_left: Returns how many updates, at least, are left in this stage; 0 or less if it has ended. None if no
            stage follows.
        make_next: Makes the train function of the stage that has begun.
        at_once: How many updates one call makes at most.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        updates_left: Callable[[], int | None],
        make_next: Callable[[], Callable[[Any], Any]],
        at_once: int,
    ) -> None:
        self._function = function
        self._updates_left = updates_left
        self._make_next = make_next
        self._at_once = at_once
        self._calls_left: int | None = 0  # before the number of updates, which is on the device, must be read again

    def __call__(self, iterator: Any) -> Any:
        if self._calls_left is not None and self._calls_left <= 0:
            left = self._updates_left()
            if left is not None and left <= 0:
                return self._make_next()(iterator)
            self._calls_left = None if left is None else -(-left // self._at_once)
        if self._calls_left is not None:
            self._calls_left -= 1
        return self._function(iterator)
