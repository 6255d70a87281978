"""A tiny model with two heads and its data, at the top level of a file: what comparisons in further processes import."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing

VARIANTS = {
    "plain sum": {},
    "size 0.1": {"weights": {"size": 0.1}},
    "EqualNorms": {"balancer": balancing.EqualNorms()},
}
HEADS = ("kind", "size")
EAGER = {"run_eagerly": True}


def build(dropout=None, units=4):
    """An encoder, a classifier and a regression whose targets are scaled."""
    layers = [keras.layers.Dense(units, activation="tanh"), *([keras.layers.Dropout(dropout)] if dropout else [])]
    trainer = MultiHeadTrainer(keras.Sequential(layers))
    kind = keras.layers.Dense(3, activation="softmax")
    trainer.add_head("kind", kind, "sparse_categorical_crossentropy", metrics=["accuracy"])
    trainer.add_head("size", keras.layers.Dense(1), "mse", target_scaling="standardize")
    return trainer


def build_with_dropout():
    """The same with dropout in the encoder. Seeds then forget the kernels of all operations, which takes time."""
    return build(0.1)


def build_wide():
    """The same with a wider encoder."""
    return build(units=9)


def examples(count, seed=0):
    """Inputs, and targets by head name."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 3)).astype("float32")
    return x, {"kind": np.digitize(x[:, 0], [-0.5, 0.5]), "size": 50 + 10 * x[:, 1:2]}


def arrays(seed=0):
    """The parts of the data as arrays."""
    parts = {"train": (20, seed), "validation": (9, seed + 100), "test": (9, seed + 200)}
    return {name: examples(*each) for name, each in parts.items()}


def datasets(seed=0):
    """The same with data sets, the first of which is shuffled again in each pass."""
    found = {name: tf.data.Dataset.from_tensor_slices(each) for name, each in arrays(seed).items()}
    return {"train": found["train"].shuffle(20).batch(8), **{name: found[name].batch(8) for name in ("validation", "test")}}


def without_times(lines):
    """Lines in a fixed order, without what is measured in seconds."""
    runs = sorted((line for line in lines if "run" in line), key=lambda line: repr(sorted(line.items(), key=lambda x: x[0])))
    runs = [{name: value for name, value in line.items() if name != "seconds"} for line in runs]
    return sorted(map(repr, runs)), [line for line in lines if "run" not in line and "cost" not in line]
