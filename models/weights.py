"""Weights in files that load on both Keras 2 and Keras 3."""

from __future__ import annotations

import os
from collections.abc import Mapping

import keras
import numpy as np

from ._checks import did_you_mean


def save_weights(path: str | os.PathLike[str], layers: Mapping[str, keras.layers.Layer]) -> None:
    """Writes the weights of named layers to an `.npz` file.

    Keras's own `.weights.h5` files name the layers of a model differently on Keras 2 and Keras 3; these files hold
    arrays in the order in which the layers of this package create their weights, which is the same on both.

    Args:
        path: The file, ending in `.npz`.
        layers: Built layers by name.

    Raises:
        ValueError: If the file name does not end in `.npz`, or a layer is not built.
    """
    _check_path(path)
    for name, layer in layers.items():
        if not layer.built:
            raise ValueError(
                f"`layers` must be built. Received: {name!r}, which has no weights yet. Call each layer once before saving."
            )
    np.savez(
        path,
        **{f"{name}/{i:03d}": value for name, layer in layers.items() for i, value in enumerate(layer.get_weights())},
    )


def load_weights(path: str | os.PathLike[str], layers: Mapping[str, keras.layers.Layer]) -> None:
    """Loads weights that `save_weights` wrote, on either Keras, into layers with the same options.

    Args:
        path: The file, ending in `.npz`.
        layers: Built layers by the names under which they were saved. The file may hold other layers, too.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a name is not in the file, or the shapes of weights differ; nothing is loaded in either case.
    """
    _check_path(path)
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in sorted(file.files)}
    known = sorted({key.rsplit("/", 1)[0] for key in arrays})
    loaded = {}
    for name, layer in layers.items():
        values = [value for key, value in arrays.items() if key.rsplit("/", 1)[0] == name]
        shapes, expected = [value.shape for value in values], [tuple(weight.shape) for weight in layer.weights]
        if name not in known:
            hint = did_you_mean(name, known, "Correct the name.")
            raise ValueError(f"`layers` must be named as in the file, which holds {known}. Received: {name!r}. {hint}")
        if shapes != expected:
            raise ValueError(
                f"`layers` must have the options of the saved ones. Received: {name!r} with weights of shapes {expected}; "
                f"the file holds {shapes}. Build the layer with the options of the saved one."
            )
        loaded[name] = values
    for name, values in loaded.items():
        layers[name].set_weights(values)


def _check_path(path: str | os.PathLike[str]) -> None:
    if not os.fspath(path).endswith(".npz"):
        raise ValueError(f"`path` must end in .npz. Received: path={os.fspath(path)!r}. Add the extension.")
