"""MultiMNIST: two digits in one image, which are classified or reconstructed.

`cl` classifies the left digit, `cr` the right one, and `rr` reconstructs it. Images, network (LeNet) and pairs of digits
are those of Gama and Grassi, arXiv:2505.10347. The data are `multimnist.npz`; without it, `keras.datasets.mnist` is used,
and the pairs are drawn by the same rule: to each left digit a right one from the same part, with replacement.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from benchmarks.research.runner import DataSet, Part
from examples._command_line import InputError
from multihead import MultiHeadTrainer

MEAN, DEVIATION = 0.1307, 0.3081
PARTS = ("train", "validation", "test")
SIZES = {"train": 50000, "validation": 10000, "test": 10000}

Digits = dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
"""By part: single digits, uint8 `[digits, 28, 28]`, their classes, and for each left digit the index of its right one."""


def read(folder: Path) -> Digits:
    """The digits and their pairs.

    Args:
        folder: The folder with multimnist.npz.

    Raises:
        InputError: There is no such file, and Keras cannot get MNIST.
    """
    path = folder / "multimnist.npz"
    if path.exists():
        with np.load(path) as file:
            (x, y), test = (file["x_train"], file["y_train"]), (file["x_test"], file["y_test"])
            pairs = [file[f"pairs_{part}"] for part in ("train", "val", "test")]
            return _parts(x, y, test, pairs[0], pairs[1] - SIZES["train"], pairs[2])
    try:
        (x, y), test = keras.datasets.mnist.load_data()
    except Exception as error:  # noqa: BLE001 - Keras raises what urllib raises
        raise InputError(
            f"`--data` must be a folder with multimnist.npz, or Keras must be able to load MNIST. Received: "
            f"{str(folder)!r}, without, and {error} Pass the folder that has "
            "it, or connect to the internet once: Keras keeps the file."
        ) from error
    generator = np.random.default_rng(0)
    return _parts(x, y, test, *(generator.integers(0, size, size) for size in SIZES.values()))


def _parts(x: np.ndarray, y: np.ndarray, test: tuple[np.ndarray, np.ndarray], *pairs: np.ndarray) -> Digits:
    size = SIZES["train"]
    digits = ((x[:size], y[:size]), (x[size:], y[size:]), test)
    return {part: (*each, pair) for part, each, pair in zip(PARTS, digits, pairs)}


def joined(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Two digits in one image, uint8 `[images, 28, 28]`.

    The left digit is at the top left of 36 x 36 pixels, the right one 6 pixels lower and further right, the brighter of the
    two where they overlap; then shrunk to 28 x 28 by nearest neighbours.

    Args:
        left: The left digits, uint8 `[images, 28, 28]`.
        right: The right ones.
    """
    canvas = np.zeros((len(left), 36, 36), np.uint8)
    canvas[:, :28, :28] = left
    canvas[:, 6:34, 6:34] = np.maximum(canvas[:, 6:34, 6:34], right)
    nearest = ((np.arange(28) + 0.5) * 36 / 28).astype(int)
    return canvas[:, nearest][:, :, nearest]


def standardized(images: np.ndarray) -> np.ndarray:
    """Pixels with mean 0 and deviation 1 over MNIST, float32."""
    return (images.astype(np.float32) / 255 - MEAN) / DEVIATION


def data_of(digits: Digits, heads: Sequence[str], every: int = 1) -> dict[str, tuple[np.ndarray, dict[str, np.ndarray]]]:
    """The images and the targets of the heads, by part.

    Args:
        digits: The digits and pairs.
        heads: Names of heads: `c` classifies and `r` reconstructs, `l` the left digit and `r` the right one.
        every: Only each n-th image is used.
    """
    found = {}
    for part, (images, classes, pairs) in digits.items():
        left = np.arange(len(pairs))[::every]
        sides = {"l": left, "r": pairs[::every]}
        x = standardized(joined(images[sides["l"]], images[sides["r"]]))[..., None]
        targets = {}
        for head in heads:
            kind, rows = head[0], sides[head[1]]
            pixels = standardized(images[rows]).reshape(len(rows), -1) if kind == "r" else None
            targets[head] = classes[rows].astype(np.int32) if pixels is None else pixels
        found[part] = (x, targets)
    return found


UNITS = 50
"""The width of the representation."""


def build(heads: Sequence[str], units: int = UNITS) -> MultiHeadTrainer:
    """LeNet with a head for each task: 50 units and a class for each digit, or 256 units and an image."""
    layers = keras.layers
    encoder = keras.Sequential(
        [
            layers.Conv2D(10, 5),
            layers.MaxPooling2D(2),
            layers.ReLU(),
            layers.Conv2D(20, 5),
            layers.MaxPooling2D(2),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(units, activation="relu"),
        ]
    )
    trainer = MultiHeadTrainer(encoder)
    for head in heads:
        if head[0] == "c":
            module = keras.Sequential([layers.Dense(50, activation="relu"), layers.Dense(10, activation="softmax")])
            trainer.add_head(head, module, "sparse_categorical_crossentropy", metrics=["accuracy"])
        else:
            trainer.add_head(head, keras.Sequential([layers.Dense(256, activation="relu"), layers.Dense(784)]), "mse")
    return trainer


def metrics_of(heads: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The metric of each head and its direction: accuracy, or the mean squared error of a pixel."""
    return {head: (f"{head}_accuracy", "max") if head[0] == "c" else (f"{head}_loss", "min") for head in heads}


def small(heads: tuple[str, str], folder: Path, every: int = 1) -> DataSet:
    """A tenth of the training images, and a fifth of the others."""
    data = data_of(read(folder), heads, every=5 * every)
    x, y = data["train"]
    data["train"] = (x[::2], {head: each[::2] for head, each in y.items()})
    adam = (2e-3, 4e-3, 8e-3, 16e-3)
    return _data_set(heads, data, 300, 128, {"Adam": adam, "AdamW": adam, "SGD": (0.01, 0.03, 0.1, 0.3, 1.0)})


def published(heads: tuple[str, str], step: int, epochs: int, folder: Path, every: int = 1) -> DataSet:
    """As in the published tables, but for the rate of each method: one rate, each `step`-th image."""
    data = data_of(read(folder), heads, every=step * every)
    updates = epochs * -(-len(data["train"][0]) // 256)
    return _data_set(heads, data, updates, 256, {"Adam": (2e-3,)})


def _data_set(
    heads: tuple[str, str], data: dict[str, Part], updates: int, size: int, rates: dict[str, tuple[float, ...]]
) -> DataSet:
    return DataSet(functools.partial(build, heads), UNITS, data, metrics_of(heads), updates, size, rates)


SMALL = {f"multimnist_{'_'.join(heads)}": functools.partial(small, heads) for heads in (("cl", "rr"), ("cl", "cr"))}
PUBLISHED = {
    "cl_rr, 10,000 images": functools.partial(published, ("cl", "rr"), 5, 30),
    "cl_rr, 50,000 images": functools.partial(published, ("cl", "rr"), 1, 100),
    "cl_cr, 5,000 images": functools.partial(published, ("cl", "cr"), 10, 30),
}
METHODS = (
    "plain sum", "MGDA", "MGDA loss+", "EqualNorms, parameters", "EqualNorms", "NormFloor", "CAGrad 0.8", "NashMTL", "IMTLG",
    "FAMO decayed", "cl 0.3", "cl 0.1", "PCGrad", "GradDrop", "Uncertainty", "RandomLossWeighting", "UPGrad", "ConFIG",
    "AlignedMTL", "LogLoss", "DWA", "UWSO", "ConicGrad", "GO4Align", "NashMTL, parameters", "IMTLG, parameters",
    "CAGrad 0.8, parameters", "MGDA, parameters", "PCGrad, parameters", "UPGrad, parameters",
)  # fmt: skip
"""The variants, the most telling ones first."""
