"""Explains at import, in one sentence, why the installed TensorFlow or Keras cannot be used.

The package runs on two stacks: TensorFlow 2.15 with Keras 2.15, and newer TensorFlow with Keras 3. `setup.cfg` declares
the same TensorFlow versions; a test keeps them in sync.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from importlib import metadata

OLDEST_TENSORFLOW = (2, 15, 1)  # the last that supports Addons, in its last patch release; older ones are not tested
OLDEST_KERAS_3_TENSORFLOW = (2, 16)  # from this version on, TensorFlow uses Keras 3
KERAS_2 = (2, 15)  # the Keras of TensorFlow 2.15; only with this version are `tf.keras` and `keras` the same
OLDEST_KERAS_3 = (3, 12)  # the newest Keras for Python 3.10, and so the oldest that is tested
_INSTALL = "`pip install --upgrade tensorflow`"


def problem(tensorflow: str | None, keras: str | None, backend: str) -> str | None:
    """The rule, the installed versions and the fix if a combination is not supported, in one sentence; otherwise None."""
    if tensorflow is None:
        return f"multihead needs TensorFlow, which is not installed: run {_INSTALL}."
    if numbers(tensorflow) < OLDEST_TENSORFLOW:
        oldest = ".".join(map(str, OLDEST_TENSORFLOW))
        return f"multihead needs TensorFlow {oldest} or newer, but TensorFlow {tensorflow} is installed: run {_INSTALL}."
    if keras is None:
        return f"multihead on TensorFlow {tensorflow} needs Keras, which is not installed: run {_INSTALL}."
    if numbers(tensorflow) < OLDEST_KERAS_3_TENSORFLOW:
        has_keras_2 = numbers(keras)[:2] == KERAS_2
        rule = f"TensorFlow {tensorflow} needs Keras 2.15, but Keras {keras} is installed"
        return None if has_keras_2 else f"{rule}: run `pip install 'keras==2.15.*'`."
    if numbers(keras) < OLDEST_KERAS_3:
        return (
            f"multihead on TensorFlow {tensorflow} needs Keras {'.'.join(map(str, OLDEST_KERAS_3))} or newer, "
            f"but Keras {keras} is installed: run `pip install --upgrade keras`."
        )
    if backend != "tensorflow":
        return (
            f"multihead needs the TensorFlow backend of Keras, but the backend is {backend!r}: set the environment "
            "variable KERAS_BACKEND=tensorflow before Python starts."
        )
    return None


def check() -> None:
    """Raises a one-sentence `ImportError` if the installed TensorFlow or Keras cannot be used."""
    try:
        import tensorflow as tf
    except ImportError as error:
        remedy = "run `pip install --force-reinstall tensorflow`."
        message = f"TensorFlow is installed, but importing it fails ({error}): {remedy}"
        is_absent = getattr(error, "name", None) == "tensorflow"
        raise ImportError(problem(None, None, "tensorflow") if is_absent else message) from error
    version = None
    for distribution in ("keras-nightly", "keras"):
        with suppress(metadata.PackageNotFoundError):
            version = metadata.version(distribution)
    # Checked before Keras is imported: an unsupported version or a missing backend would raise an error of its own.
    reason = problem(tf.__version__, version, os.environ.get("KERAS_BACKEND") or "tensorflow")
    if reason is None:
        import keras  # whose configuration file may set the backend, too

        reason = problem(tf.__version__, version, keras.backend.backend())
    if reason is not None:
        raise ImportError(reason)


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 16, 0) for "2.16.0rc1"."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in match.group().split(".")) if match else ()


check()
