"""MultiMNIST: two digits in one image, beside the published tables. What do balancers and weightings do?

    python -m benchmarks.multimnist [--tasks cl_rr cl_cr] [--epochs 30] [--seeds 3] [--variants "plain sum" EqualNorms ...]

Tasks: `cl_rr` classifies the left digit and reconstructs the right one (Gama and Grassi, arXiv:2505.10347, table 3);
`cl_cr` classifies both (Sener and Koltun, "Multi-Task Learning as Multi-Objective Optimization", NeurIPS 2018, table 3).
The images, the network (LeNet) and the pairs of digits are those of Gama and Grassi. The protocol is that of
`multihead.compare`: Adam with cosine decay to zero and the figures of the last epoch, where theirs lowers the rate by 5 %
per epoch for 100 epochs, chooses rate and dropout for each method, and takes the best epoch on the validation images. Here
all variants have one rate and no dropout.

A variant is `"plain sum"`; a balancer or a weighting by the name of its class; a balancer with `", parameters"`, which acts
there instead of at the representation; or a head and its weight: `"cl 0.1"`. With `", as large"` at the end, the
representation is as wide as it can be while the joint model has no more parameters than the single-task models together.
Finished runs are lines in `--results`; the command continues where it stopped, also with other variants or more seeds; each
number of images (`--every`) and epochs has a file of its own. `--table` prints the tables of the lines beside the published
ones.

The data are `multimnist.npz` in the folder `--data`. Without it, `keras.datasets.mnist` is used, and the pairs are drawn by
the same rule: to each left digit a right one from the same part, with replacement.
"""

from __future__ import annotations

import functools
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import multihead
from benchmarks import _published
from benchmarks._as_large import LARGE, width_as_large
from benchmarks._multimnist_table import TASKS, tables
from examples._command_line import InputError, whole
from multihead import MultiHeadTrainer, balancing, weighting

METHODS = (
    _published.PLAIN,
    "MGDA",
    "MGDA loss+",
    "EqualNorms, parameters",
    "EqualNorms",
    "CAGrad",
    "NashMTL",
    "IMTLG",
    "FAMO",
    "cl 0.3",
    "cl 0.1",
    "PCGrad",
    "GradDrop",
    "Uncertainty",
    "RandomLossWeighting",
    "UPGrad",
    "ConFIG",
    "AlignedMTL",
    "LogLoss",
    "DWA",
    "UWSO",
    "ConicGrad",
    "GO4Align",
    *(f"{name}{_published.AT_PARAMETERS}" for name in ("NashMTL", "IMTLG", "CAGrad", "MGDA", "PCGrad", "UPGrad")),
)
"""The variants, the most telling ones first."""
SPECIAL = {
    "CAGrad": {"balancer": balancing.CAGrad(c=0.8)},
    "FAMO": {"weighting": weighting.FAMO(weight_decay=1e-4)},
    "MGDA loss+": {"balancer": balancing.MGDA("loss+")},
}
"""Options of methods as in the table of Gama and Grassi, and `MGDA` as Sener and Koltun use it."""
BATCH = 256
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
    """The figure of each head and its direction: accuracy, or the mean squared error of a pixel."""
    return {head: (f"{head}_accuracy", "max") if head[0] == "c" else (f"{head}_loss", "min") for head in heads}


def run(task: str, digits: Digits, options: Namespace) -> None:
    """Trains the variants of a task."""
    heads = TASKS[task]
    data = data_of(digits, heads, every=10 if options.quick else options.every)
    variants = variants_of(options.variants or METHODS, heads, data)
    multihead.compare(
        functools.partial(build, heads),
        data,
        variants,
        options.seeds,
        {"epochs": options.epochs},
        metrics=metrics_of(heads),
        rates=options.rates,
        batch_size=BATCH,
        equal_cost=[name for name in options.equal_cost if name in variants],
        file=options.results / f"multimnist_{task}_{len(data['train'][0])}x{options.epochs}.jsonl",
    )


def variants_of(names: Sequence[str], heads: Sequence[str], data: Mapping[str, Any]) -> dict[str, _published.Variant]:
    """The variants by their names, as large ones with a `build` of their own."""
    found = _published.variants_of([name.removesuffix(LARGE) for name in names], heads, SPECIAL)
    large: dict[str, Any] = {}
    if any(name.endswith(LARGE) for name in names):
        large["build"] = functools.partial(
            build, heads, width_as_large(functools.partial(build, heads), UNITS, data, heads, BATCH)
        )
    return {name: {**found[name.removesuffix(LARGE)], **(large if name.endswith(LARGE) else {})} for name in names}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = _published.parser_of("benchmarks.multimnist", __doc__, seeds=3, epochs=30, rates=(2e-3,))
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="TASK", help="the tasks")
    parser.add_argument(
        "--equal-cost", nargs="*", default=[], metavar="VARIANT", help="variants that are trained at equal cost, too"
    )
    parser.add_argument("--every", type=whole(1), default=1, metavar="N", help="use only each N-th image (default: 1)")
    options = _published.asked(parser, arguments)
    try:
        digits = {} if options.table else read(options.data)
        for task in () if options.table else options.tasks:
            run(task, digits, options)
    except InputError as error:
        parser.error(str(error))
    print(tables(options.results, options.tasks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
