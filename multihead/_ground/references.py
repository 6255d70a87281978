"""What functions and objects of users refer to by name."""

from __future__ import annotations

import functools
import inspect
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import tensorflow as tf

_ENDS = (types.ModuleType, type, str, bytes, int, float, np.ndarray, tf.Tensor, tf.Variable, tf.Graph)
"""What refers to nothing of the user's own, or to everything."""


def referenced(roots: Iterable[object]) -> Iterator[object]:
    """Objects and all that they refer to, nearest first, without duplicates.

    It follows the variables around a function, the globals that it uses, its defaults, the object of a method, the
    attributes of an object and the elements of a container.
    """
    waiting, seen = deque(roots), dict[int, object]()
    while waiting:
        part = waiting.popleft()
        if id(part) in seen or isinstance(part, _ENDS) or part is None:
            continue
        seen[id(part)] = part  # kept, so that no other object gets the same number
        yield part
        if isinstance(part, types.FunctionType):
            waiting.extend(_of_function(part))
        elif isinstance(part, types.MethodType):
            waiting.extend((part.__self__, part.__func__))
        elif isinstance(part, functools.partial):
            waiting.extend((part.func, *part.args, *part.keywords.values()))
        elif isinstance(part, Mapping):
            waiting.extend(part.values())
        elif isinstance(part, (list, tuple, set, frozenset)):
            waiting.extend(part)
        elif not inspect.isroutine(part):
            waiting.extend(getattr(part, "__dict__", {}).values())


def _of_function(function: types.FunctionType) -> Iterator[object]:
    """The values of the names that a function uses, not those of its whole module."""
    for cell in function.__closure__ or ():
        if cell != types.CellType():  # an empty one
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    codes = [function.__code__]
    for code in codes:
        codes.extend(constant for constant in code.co_consts if isinstance(constant, types.CodeType))  # of functions inside
        yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)
