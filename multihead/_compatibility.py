"""Explains, at import and in one sentence, why the installed TensorFlow or Keras cannot be used.

The package runs on two stacks: TensorFlow 2.15 with Keras 2.15, and newer TensorFlow with Keras 3. `setup.cfg` states
the same TensorFlow versions to installers; a test keeps the two alike.
"""

from __future__ import annotations

import os
import re
from importlib import metadata

OLDEST_TENSORFLOW = (2, 15, 1)
"""The last TensorFlow on which TensorFlow Addons imports, in its last patch release; older ones are not tested."""

OLDEST_KERAS_3_TENSORFLOW = (2, 16)
"""From here on TensorFlow brings Keras 3."""

KERAS_2 = (2, 15)
"""The Keras that TensorFlow 2.15 is built with; `tf.keras` and `keras` are the same only there."""

OLDEST_KERAS_3 = (3, 12)
"""The newest Keras on Python 3.10, so the oldest that is tested."""

_INSTALL = "`pip install --upgrade tensorflow`"
_INSTALL_KERAS_2 = "`pip install 'keras==2.15.*'`"
_REINSTALL = "`pip install --force-reinstall tensorflow`"


def problem(tensorflow: str | None, keras: str | None, backend: str) -> str | None:
    """What is wrong with a combination of versions.

    Args:
        tensorflow: Version of the installed TensorFlow, None where there is none.
        keras: Version of the installed Keras, None where there is none.
        backend: Name of the backend that Keras 3 runs on.

    Returns:
        One sentence that names the rule, what was found, and the remedy; None where all is well.
    """
    if tensorflow is None:
        return f"multihead needs TensorFlow, which is not installed: run {_INSTALL}."
    if not usable_tensorflow(tensorflow):
        return (
            f"multihead needs TensorFlow {_text(OLDEST_TENSORFLOW)} or newer, "
            f"but TensorFlow {tensorflow} is installed: run {_INSTALL}."
        )
    if keras is None:
        return f"multihead needs Keras beside TensorFlow {tensorflow}, but Keras is not installed: run {_INSTALL}."
    if _numbers(tensorflow) < OLDEST_KERAS_3_TENSORFLOW:
        if _numbers(keras)[:2] != KERAS_2:
            return f"TensorFlow {tensorflow} needs Keras 2.15, but Keras {keras} is installed: run {_INSTALL_KERAS_2}."
        return None
    if _numbers(keras) < OLDEST_KERAS_3:
        return (
            f"multihead on TensorFlow {tensorflow} needs Keras {_text(OLDEST_KERAS_3)} or newer, "
            f"but Keras {keras} is installed: run `pip install --upgrade keras`."
        )
    if backend != "tensorflow":
        return (
            f"multihead needs Keras on its TensorFlow backend, but the backend is {backend!r}: set the environment "
            "variable KERAS_BACKEND=tensorflow before Python starts."
        )
    return None


def usable_tensorflow(version: str) -> bool:
    """Whether the package runs on this version of TensorFlow."""
    return _numbers(version) >= OLDEST_TENSORFLOW


def check() -> None:
    """Raises an `ImportError` of one sentence if the installed TensorFlow and Keras cannot be used."""
    try:
        import tensorflow as tf
    except ImportError as error:
        if getattr(error, "name", None) == "tensorflow":
            raise ImportError(problem(None, None, "tensorflow")) from error
        raise ImportError(f"TensorFlow is installed, but its import fails ({error}): run {_REINSTALL}.") from error
    # Before Keras is imported: an unsuitable version, or one whose backend is missing, fails with words of its own.
    keras = _keras_version()
    _raise(problem(tf.__version__, keras, os.environ.get("KERAS_BACKEND") or "tensorflow"))
    # The backend can also stand in Keras's configuration file.
    try:
        import keras as installed_keras

        backend = installed_keras.backend.backend()
    except ModuleNotFoundError as error:
        if error.name not in ("jax", "openvino", "torch"):
            raise
        backend = error.name
    _raise(problem(tf.__version__, keras, backend))


def _keras_version() -> str | None:
    for distribution in ("keras", "keras-nightly"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _raise(message: str | None) -> None:
    if message is not None:
        raise ImportError(message)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 16, 0) for "2.16.0rc1"."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in match.group().split(".")) if match else ()


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in numbers)


check()
