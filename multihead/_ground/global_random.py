"""The global random numbers of Python and of NumPy, whose state a resumed run restores."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def random_numbers() -> Any:
    """The state of Python's and NumPy's random numbers, as JSON."""
    (version, numbers, gauss), (name, key, *others) = _present()
    return {"python": [version, list(numbers), gauss], "numpy": [name, np.asarray(key).tolist(), *others]}


def restore_random_numbers(saved: Any) -> None:
    """Restores the result of `random_numbers`."""
    version, numbers, gauss = saved["python"]
    name, key, *others = saved["numpy"]
    _set(((version, tuple(numbers), gauss), (name, np.array(key, np.uint32), *others)))


_END = object()


class RandomStream:
    """Global random numbers of one part of a program, which do not depend on what other parts draw.

    Batches are read again in a resumed run, but callbacks are not called again. Both may draw global random numbers; with a
    stream of their own, the batches are the same.
    """

    def __init__(self) -> None:
        self._state: Any = None
        self._first: Any = None

    def start(self) -> None:
        """Begins the stream with the present state; before, everybody draws from the same numbers."""
        self._first = random_numbers()
        self._state = _present()

    def end(self) -> None:
        """Ends the stream. If nobody else has drawn meanwhile, the global state is what it would be without the stream."""
        state, self._state = self._state, None
        if state is not None and random_numbers() == self._first:
            _set(state)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """A context in which global random numbers come from the stream."""
        if self._state is None:
            yield
            return
        outside = _present()
        _set(self._state)
        try:
            yield
        finally:
            self._state = _present()
            _set(outside)

    def over(self, batches: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Batches whose making draws from the stream."""
        with self.drawing():
            iterator = batches()
        while True:
            with self.drawing():
                found = next(iterator, _END)
            if found is _END:
                return
            yield found


def _present() -> Any:
    return random.getstate(), np.random.get_state(legacy=True)


def _set(state: Any) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
