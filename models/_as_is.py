"""Functions that AutoGraph calls as they are: to read the source of all of them would take longer than to trace a model."""

from __future__ import annotations

import inspect
import sys

import tensorflow as tf

_MARKS = {**vars(tf.autograph.experimental.do_not_convert(lambda: None))}
del _MARKS["__wrapped__"]


def mark_functions(package: str) -> None:
    """Marks the functions and methods of a package. AutoGraph goes on to convert what these call, such as users' layers."""
    for name, module in list(sys.modules.items()):
        if name.startswith(package):
            classes = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == name]
            for owner in (module, *classes):
                for each in vars(owner).values():
                    function = getattr(each, "__func__", each)
                    if inspect.isfunction(function) and function.__module__ == name:
                        vars(function).update(_MARKS)
