"""What AutoGraph converts: users' functions, and nothing of this package.

AutoGraph rewrites functions so that Python's `if`, `for` and `while` work with tensors, by reading their source. Nothing in
this package needs that, and reading all of it would take longer than to trace a step. So the package is exempt, as Keras is,
and calls what users wrote through `call_users`, as Keras calls a layer's `call`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import keras
import tensorflow as tf

_BY_DEFAULT = int(keras.__version__.split(".")[0]) < 3
"""Whether users' functions are converted where nothing says so: Keras 2 converts, and Keras 3 does not."""

_PACKAGE = __name__.partition(".")[0]
_LIBRARIES = {_PACKAGE, "keras", "tensorflow", "numpy"}

with suppress(ImportError, AttributeError):  # without this, AutoGraph also converts the package: slow, but no error
    _config: Any = importlib.import_module("tensorflow.python.autograph.core.config")
    _config.CONVERSION_RULES = (_config.DoNotConvert(_PACKAGE), *_config.CONVERSION_RULES)


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

    # It keeps the name of this module, so that AutoGraph does not convert it.
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
