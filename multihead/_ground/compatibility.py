"""Explains at import, in one sentence, why the installed TensorFlow or Keras cannot be used.

The package runs on two stacks: TensorFlow 2.15 with Keras 2.15, and newer TensorFlow with Keras 3. `setup.cfg` declares
the same TensorFlow versions; a test keeps them in sync.
"""

from __future__ import annotations

import os
import re
from importlib import metadata

OLDEST_TENSORFLOW = (2, 15, 1)
"""The last TensorFlow that supports TensorFlow Addons, in its last patch release; older versions are not tested."""

OLDEST_KERAS_3_TENSORFLOW = (2, 16)
"""From this version on, TensorFlow uses Keras 3."""

KERAS_2 = (2, 15)
"""The Keras version of TensorFlow 2.15; only with this version are `tf.keras` and `keras` the same."""

OLDEST_KERAS_3 = (3, 12)
"""The newest Keras for Python 3.10, and so the oldest that is tested."""

_INSTALL = "`pip install --upgrade tensorflow`"


def problem(tensorflow: str | None, keras: str | None, backend: str) -> str | None:
    """One sentence with the rule, the installed versions and the fix if a combination is not supported; otherwise None.

    Args:
        tensorflow: Version of the installed TensorFlow, or None if it is not installed.
        keras: Version of the installed Keras, or None if it is not installed.
        backend: Name of the Keras 3 backend.
    """
    if tensorflow is None:
        return f"multihead needs TensorFlow, which is not installed: run {_INSTALL}."
    if not usable_tensorflow(tensorflow):
        oldest = ".".join(map(str, OLDEST_TENSORFLOW))
        return f"multihead needs TensorFlow {oldest} or newer, but TensorFlow {tensorflow} is installed: run {_INSTALL}."
    if keras is None:
        return f"multihead on TensorFlow {tensorflow} needs Keras, which is not installed: run {_INSTALL}."
    if _numbers(tensorflow) < OLDEST_KERAS_3_TENSORFLOW:
        has_keras_2 = _numbers(keras)[:2] == KERAS_2
        rule = f"TensorFlow {tensorflow} needs Keras 2.15, but Keras {keras} is installed"
        return None if has_keras_2 else f"{rule}: run `pip install 'keras==2.15.*'`."
    if _numbers(keras) < OLDEST_KERAS_3:
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


def usable_tensorflow(version: str) -> bool:
    """Whether the package supports this version of TensorFlow."""
    return _numbers(version) >= OLDEST_TENSORFLOW


def check() -> None:
    """Raises a one-sentence `ImportError` if the installed TensorFlow or Keras cannot be used."""
    try:
        import tensorflow as tf
    except ImportError as error:
        remedy = "run `pip install --force-reinstall tensorflow`."
        message = f"TensorFlow is installed, but importing it fails ({error}): {remedy}"
        is_absent = getattr(error, "name", None) == "tensorflow"
        raise ImportError(problem(None, None, "tensorflow") if is_absent else message) from error
    # Checked before Keras is imported: an unsupported version or a missing backend would raise an error of its own.
    found = problem(tf.__version__, _keras_version(), os.environ.get("KERAS_BACKEND") or "tensorflow")
    if found is None:
        try:  # the backend can also be set in Keras's configuration file
            import keras

            backend = keras.backend.backend()
        except ModuleNotFoundError as error:
            if error.name not in ("jax", "openvino", "torch"):
                raise
            backend = error.name
        found = problem(tf.__version__, _keras_version(), backend)
    if found is not None:
        raise ImportError(found)


def _keras_version() -> str | None:
    for distribution in ("keras", "keras-nightly"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 16, 0) for "2.16.0rc1"."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in match.group().split(".")) if match else ()


check()
