"""Models that nobody picked: encoders, heads, losses, labels and mistakes drawn from a seed, by the number of the model."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from benchmarks.research.runner import DataSet, halves
from multihead import Head, MultiHeadTrainer

SEED, TRAINED, HELD_OUT, STEPS, INPUTS = 58, 768, 512, 8, 12
"""The seed of the population; the examples for training and for the test; the shape of an example, as a sequence."""
L = keras.layers


@dataclass
class Task:
    """What one head has to learn.

    Attributes:
        kind: What its labels are.
        make: Makes its module.
        loss: Its loss.
        metric: The name of the metric that judges it, in the units of its targets, and its direction.
        of: Makes labels of the test and training data from signals of mean 0 and deviation 1, `[examples, columns]`.
        columns: The number of signals.
        options: Options of `Head`.
        planted: The kinds of findings that `diagnose` should have about it.
    """

    kind: str
    make: Callable[[], keras.layers.Layer]
    loss: object
    metric: tuple[str, str]
    of: Callable[[np.ndarray, np.random.Generator], np.ndarray]
    columns: int = 1
    options: dict[str, object] = field(default_factory=dict)
    planted: tuple[str, ...] = ()


def quantile(y: tf.Tensor, p: tf.Tensor) -> tf.Tensor:
    """The pinball loss of the 80 % quantile."""
    return tf.maximum(0.8 * (y - p), -0.2 * (y - p))


def linear(units: int = 1, end: str | None = None) -> Callable[[], keras.layers.Layer]:
    """A dense layer that ends in an activation."""
    return lambda: L.Dense(units, end)


MAE = ("mae", "min")


def raw(rng: np.random.Generator) -> Task:
    """Numbers far from mean 0 and deviation 1."""
    mean, size = rng.uniform(-5, 30), 10 ** rng.uniform(1.3, 4)
    loss = str(rng.choice(["mse", "mae", "huber"]))
    return Task("raw", linear(), loss, MAE, lambda s, _: size * (mean / 3 + s), planted=("units",))


def plain_number(rng: np.random.Generator) -> Task:
    """Numbers of mean 0 and deviation 1."""
    return Task("number", linear(), str(rng.choice(["mse", "mae"])), MAE, lambda s, _: s)


def positive(rng: np.random.Generator) -> Task:
    """Prices from 0 on, of a module that cannot be negative."""
    end, size = str(rng.choice(["relu", "softplus", "exponential"])), 10 ** rng.uniform(1.5, 3)
    loss = str(rng.choice(["mse", "mae", "mape"] if end != "exponential" else ["mse", "mae"]))
    return Task("positive", linear(1, end), loss, MAE, lambda s, _: size * (3.5 + s).clip(0.2), planted=("units",))


def heavy(rng: np.random.Generator) -> Task:
    """Positive numbers over powers of ten, judged by the error of their logarithms: of any other, the largest few decide."""
    width = rng.uniform(1.5, 3)
    return Task("heavy", linear(), "mse", ("msle", "min"), lambda s, _: np.exp(5 + width * s), planted=("units",))


def bounded(rng: np.random.Generator) -> Task:
    """Fractions, of a module that ends in a sigmoid; or ratings up to 5, which it cannot reach."""
    largest = float(rng.choice([1.0, 5.0]))
    planted = ("out of reach",) if largest > 1 else ()
    return Task("bounded", linear(1, "sigmoid"), "mse", MAE, lambda s, _: largest / (1 + np.exp(-2 * s)), planted=planted)


def negative(rng: np.random.Generator) -> Task:
    """Numbers of both signs, of a module that cannot be negative."""
    return Task("negative", linear(1, "relu"), "mse", MAE, lambda s, _: s, planted=("out of reach",))


def counts(rng: np.random.Generator) -> Task:
    """Counts, of the loss for them or of the squared error, whose best prediction, the mean, is not that of `mae`."""
    loss, end = ("poisson", "softplus") if rng.random() < 0.5 else ("mse", None)
    rate = rng.uniform(0.5, 1.5)
    return Task(
        "counts", linear(1, end), loss, ("mse", "min"), lambda s, draw: draw.poisson(np.exp(rate + 0.6 * s)).astype(float)
    )


def quantiles(rng: np.random.Generator) -> Task:
    """A quantile of raw numbers, of a loss that is not Keras's."""
    size = 10 ** rng.uniform(1.5, 3)
    return Task("quantile", linear(), quantile, ("quantile", "min"), lambda s, _: size * s, planted=("units",))


def two_classes(rng: np.random.Generator) -> Task:
    """Two classes, from half to one in two hundred."""
    share = float(rng.choice([0.5, 0.2, 0.05, 0.005]))
    metric = ("auc", "max")
    threshold = {0.5: 0.0, 0.2: 0.84, 0.05: 1.64, 0.005: 2.58}[share]
    return Task("two", linear(1, "sigmoid"), "binary_crossentropy", metric, lambda s, _: (s > threshold).astype(float))


def classes(rng: np.random.Generator) -> Task:
    """Several classes; sometimes without a softmax."""
    number, is_wrong = int(rng.choice([3, 10, 40])), rng.random() < 0.15
    metric = ("accuracy", "max")
    return Task(
        "classes",
        linear(number, None if is_wrong else "softmax"),
        "sparse_categorical_crossentropy",
        metric,
        lambda s, _: np.argmax(s, axis=1)[:, None],
        columns=number,
        planted=("no probabilities",) if is_wrong else (),
    )


def several(rng: np.random.Generator) -> Task:
    """Several labels at once; sometimes after a softmax."""
    is_wrong = rng.random() < 0.3
    end = "softmax" if is_wrong else "sigmoid"
    planted = ("out of reach",) if is_wrong else ()
    metric = ("binary_accuracy", "max")
    return Task(
        "several", linear(6, end), "binary_crossentropy", metric, lambda s, _: (s > 0).astype(float), 6, planted=planted
    )


def noise(rng: np.random.Generator) -> Task:
    """Numbers that do not depend on the inputs."""
    return Task("noise", linear(), "mse", MAE, lambda s, draw: draw.normal(size=s.shape))


def weak(rng: np.random.Generator) -> Task:
    """Numbers with a small weight."""
    return Task("weak", linear(), "mse", MAE, lambda s, _: s, options={"weight": float(10 ** rng.uniform(-3, -1))})


def reconstruction(rng: np.random.Generator) -> Task:
    """A part of the inputs themselves, which `labels_of` puts in."""
    return Task("reconstruction", linear(INPUTS), "mse", MAE, lambda s, _: s, columns=INPUTS)


KINDS = (
    raw, raw, plain_number, positive, heavy, bounded, negative, counts, quantiles, two_classes, classes, several, noise,
    weak, reconstruction,
)  # fmt: skip
ENCODERS = ("dense", "convolutional", "recurrent")
LACKING = ("none", "none", "at random", "in blocks", "disjoint")


@dataclass
class Model:
    """A model of the population: its tasks by name, how to build it, its data, and the findings that are planted."""

    number: int
    tasks: dict[str, Task]
    encoder: str
    width: int
    lacking: str
    learning_rate: float
    planted: set[tuple[str, str]]

    def build(self) -> MultiHeadTrainer:
        """A trainer, with new weights."""
        heads = {
            name: Head(task.make(), task.loss, metrics=[_metric(task.metric[0])], **task.options)  # type: ignore[arg-type]
            for name, task in self.tasks.items()
        }
        return MultiHeadTrainer(_encoder(self.encoder, self.width), heads)

    def data(self) -> dict[str, tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Inputs and targets for training, some of them missing, and for the test."""
        rng = np.random.default_rng((SEED, self.number, 1))
        x = rng.normal(size=(TRAINED + HELD_OUT, STEPS, INPUTS)).astype("float32")
        flat = x.mean(axis=1) * np.sqrt(STEPS)
        hidden = np.tanh(flat @ rng.normal(size=(INPUTS, 16)) / np.sqrt(INPUTS / 4))
        targets = {}
        for name, task in self.tasks.items():
            signal = hidden @ rng.normal(size=(16, task.columns)) + rng.uniform(0.1, 1) * rng.normal(
                size=(len(x), task.columns)
            )
            signal = (signal - signal.mean(axis=0)) / signal.std(axis=0)
            labels = flat if task.kind == "reconstruction" else task.of(signal, rng)
            targets[name] = np.asarray(labels, "float32")
        train = {name: labels[:TRAINED].copy() for name, labels in targets.items()}
        for place, labels in enumerate(train.values()):
            labels[self._missing(place, rng)] = np.nan
        return {
            "train": (x[:TRAINED], train),
            "test": (x[TRAINED:], {name: each[TRAINED:] for name, each in targets.items()}),
        }

    def _missing(self, place: int, rng: np.random.Generator) -> np.ndarray:
        """Which rows of a head have no label."""
        rows = np.arange(TRAINED)
        if self.lacking == "at random" and place:
            return rng.random(TRAINED) < 0.3
        if self.lacking == "in blocks" and place:
            return (rows // 64) % 4 == place % 4
        if self.lacking == "disjoint":
            return rows % len(self.tasks) != place
        return rows < 0


def _metric(name: str) -> object:
    if name == "auc":
        return keras.metrics.AUC(name="auc")
    return quantile if name == "quantile" else name


def _encoder(kind: str, width: int) -> keras.layers.Layer:
    if kind == "dense":
        layers = [L.Flatten(), L.Dense(width, "relu"), L.Dense(width, "tanh")]
    elif kind == "convolutional":
        layers = [L.Conv1D(width, 3, activation="relu"), L.GlobalAveragePooling1D(), L.Dense(width, "relu")]
    else:
        layers = [L.GRU(width)]
    return keras.Sequential(layers)


def model(number: int) -> Model:
    """The model of a number; the same in every call."""
    rng = np.random.default_rng((SEED, number))
    chosen = [KINDS[int(place)](rng) for place in rng.integers(0, len(KINDS), int(rng.integers(1, 6)))]
    tasks = {f"{task.kind}_{place}": task for place, task in enumerate(chosen)}
    lacking = str(rng.choice(LACKING)) if len(tasks) > 1 else "none"
    planted = {(kind, name) for name, task in tasks.items() for kind in task.planted}
    if lacking == "disjoint":
        planted |= {("few common rows", name) for name in tasks}
        if len(tasks) > 10:
            planted |= {("few labels", name) for name in tasks}
    encoder, width = str(rng.choice(ENCODERS)), int(rng.choice([8, 32]))
    return Model(number, tasks, encoder, width, lacking, float(10 ** rng.uniform(-2.5, -1.8)), planted)


def in_like_units(number: int = 5) -> dict[str, Callable[..., DataSet]]:
    """The first models with several heads whose targets need no scaling, as data sets."""
    several = (each for each in map(model, itertools.count()) if len(each.tasks) > 1)
    chosen = (each for each in several if all(kind != "units" for kind, _ in each.planted))
    return {f"model {each.number}": functools.partial(_data_set, each) for each in itertools.islice(chosen, number)}


def _data_set(drawn: Model, folder: Path, every: int = 1) -> DataSet:
    data = drawn.data()
    metrics = {name: (f"{name}_{task.metric[0]}", task.metric[1]) for name, task in drawn.tasks.items()}
    parts = {"train": data["train"], **halves(data["test"])}
    return DataSet(lambda width: drawn.build(), drawn.width, parts, metrics, 600, 64, {"Adam": (drawn.learning_rate,)})
