"""What AutoGraph converts: users' functions, and nothing of this package.

AutoGraph rewrites functions so that Python's `if`, `for` and `while` work with tensors, by reading their source. Nothing in
this package needs that, and reading all of it would take longer than to trace a step. So its functions are marked, and call
what users wrote through `call_users`, as Keras calls a layer's `call`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import keras
import tensorflow as tf

Function = TypeVar("Function", bound=Callable[..., Any])

_BY_DEFAULT = int(keras.__version__.split(".")[0]) < 3
"""Whether users' functions are converted where nothing says so: Keras 2 converts, and Keras 3 does not."""

_LIBRARIES = {__name__.partition(".")[0], "keras", "tensorflow", "numpy"}

_MARKS = {**vars(tf.autograph.experimental.do_not_convert(lambda: None))}
"""The attributes by which AutoGraph knows what it must not convert."""
del _MARKS["__wrapped__"]


def as_is(function: Function) -> Function:
    """Marks a function: AutoGraph calls it as it is.

    Unlike under `tf.autograph.experimental.do_not_convert`, users' functions that it calls are converted.
    """
    vars(function).update(_MARKS)
    return function


def mark_functions(package: str) -> None:
    """Marks the functions and methods of a package, as far as it is imported.

    Functions inside of functions are not among them; they need `as_is` where they are passed to TensorFlow.
    """
    for name, module in list(sys.modules.items()):
        if not name.startswith(package):
            continue
        classes = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == name]
        for owner in (module, *classes):
            for each in vars(owner).values():
                function = getattr(each, "__func__", each)
                if inspect.isfunction(function) and function.__module__ == name:
                    as_is(function)
        for each in classes:
            if "__call__" in vars(each):  # AutoGraph asks the object, not its method
                for mark, value in _MARKS.items():
                    setattr(each, mark, value)


def call_users(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function that a user wrote, converted by AutoGraph if a graph is built and AutoGraph is not switched off.

    A function whose source cannot be read is called as it is, without a warning.

    Args:
        function: Any callable. Functions of Keras, TensorFlow and this package are not converted.
        *args: Its arguments.
        **kwargs: Its keyword arguments.
    """
    if not tf.executing_eagerly():
        around = tf.__internal__.autograph.control_status_ctx()
        converts = {"ENABLED": True, "DISABLED": False}.get(around.status.name, _BY_DEFAULT)
        if converts and _is_convertible(function):
            function = tf.__internal__.autograph.tf_convert(function, around, user_requested=True)
    return function(*args, **kwargs)


def users(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method that a user wrote, called by `call_users`; one of this package is returned as it is."""
    if _is_of_library(function):
        return function

    @as_is
    @functools.wraps(function, assigned=("__name__", "__qualname__", "__doc__"))
    def called(*args: Any, **kwargs: Any) -> Any:
        return call_users(function, *args, **kwargs)

    return called


def graph_function(function: Callable[..., Any], **options: Any) -> Any:
    """A `tf.function` of a function of this package, inside which users' functions are converted if they are outside.

    Args:
        function: The function.
        **options: Options of `tf.function` except `autograph`.
    """
    around = tf.__internal__.autograph.control_status_ctx()

    def inside(*args: Any, **kwargs: Any) -> Any:
        with around:
            return function(*args, **kwargs)

    return tf.function(inside, autograph=False, **options)


def _is_of_library(function: Any) -> bool:
    return str(getattr(function, "__module__", None)).partition(".")[0] in _LIBRARIES


def _is_convertible(function: Any) -> bool:
    """Whether a function is a user's and AutoGraph can read it. Its result is kept by AutoGraph, for the call."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    function = getattr(function, "__func__", function)
    if _is_of_library(function):
        return False
    try:
        tf.autograph.to_graph(function)
    except Exception:  # noqa: BLE001 - AutoGraph raises many kinds
        return False
    return True
