"""What functions and objects of users refer to by name."""

from __future__ import annotations

import functools
import inspect
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.random import random_numbers, restore_random_numbers

_ENDS = (types.ModuleType, type, str, bytes, int, float, np.ndarray, tf.Tensor, tf.Graph)
"""What refers to nothing of the user's own, or to everything."""


@contextmanager
def unchanged(root: object, *, eagerly: bool) -> Iterator[None]:
    """A context after which what a function or an object refers to has the values that it had before, if it runs `eagerly`.

    A trace computes nothing. The values are variables, the attributes of objects that are no layers, and the global random
    numbers of Python and NumPy; not what a list, a dict or an array holds.
    """
    if not eagerly:
        yield
        return
    parts, numbers = list(referenced([root])), random_numbers()
    variables = [(part, tf.identity(part)) for part in parts if isinstance(part, tf.Variable)]
    kept = (tf.Module, keras.layers.Layer, tf.Variable)
    objects = [part for part in parts if not isinstance(part, kept) and hasattr(part, "__dict__")]
    attributes = [(vars(part), dict(vars(part))) for part in objects]
    try:
        yield
    finally:
        for variable, value in variables:
            variable.assign(value)
        for own, values in attributes:
            for name in own.keys() - values.keys():
                del own[name]
            own.update({name: value for name, value in values.items() if name not in own or own[name] is not value})
        restore_random_numbers(numbers)


def referenced(roots: Iterable[object]) -> Iterator[object]:
    """Objects and all that they refer to, variables included, nearest first, without duplicates.

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
        if isinstance(part, tf.Variable):
            continue
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
