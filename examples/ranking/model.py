"""The model: an encoder that reads raw columns, strings and numbers, and a head for each label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from multihead import Head, MultiHeadTrainer, scaling
from multihead.models import CGC, MMoE

ENCODERS = ("shared", "mmoe", "cgc")
KINDS = ("probability", "number", "price")
"""What a head predicts: the probability of a 1, a number, or a price, whose logarithm it is trained on."""
EMBEDDING, UNITS, TOWER = 8, (128, 64), 32
RANGES = 48  # of a column of numbers
RARE = 5  # a value that was seen fewer times is read as one that was never seen
UNUSED, UNUSED_ID = " ", -2  # no cell; Keras's layers need a value where all are rare
DROPOUT_OF_FEATURES, DROPOUT, DECAY = 0.1, 0.2, 0.05
PARTS = 10  # of a training run, for the progress bar

Arrays = dict[str, np.ndarray]


class Column(NamedTuple):
    """How a column of the inputs is read.

    Attributes:
        dtype: `"string"`, `"int64"` for ids, or `"float32"`.
        values: The strings or ids that are known, or the edges between ranges of numbers.
        mean: The mean of the numbers' signed logarithms; 0 for others.
        variance: Their variance; 1 for others.
    """

    dtype: str
    values: list[Any]
    mean: float = 0.0
    variance: float = 1.0


def column_of(cells: np.ndarray) -> Column:
    """How to read a column, from its cells in the training data.

    Args:
        cells: Strings, whole numbers, which are ids, or floats, NaN if missing, `[n]`.
    """
    if cells.dtype.kind != "f":
        values, counts = np.unique(cells, return_counts=True)
        unknown = "[UNK]" if cells.dtype.kind == "U" else -1  # to Keras's layers
        kept = values[(counts >= RARE) & (values != unknown)]
        return Column("int64" if cells.dtype.kind == "i" else "string", kept.tolist())
    numbers = np.sort(cells[np.isfinite(cells)]).astype("float64")
    if not len(numbers):
        return Column("float32", [])
    edges = np.unique(numbers)[1:]
    if len(edges) >= RANGES:
        most = np.median(numbers)  # a value of more than half of the rows, such as 0, is a range by itself
        others = numbers[numbers != most] if np.mean(numbers == most) > 0.5 else numbers
        edges = np.unique(np.quantile(others, np.linspace(0, 1, RANGES), method="nearest"))
    logs = signed_log(numbers)
    return Column("float32", edges.tolist(), float(logs.mean()), float(logs.var()) or 1.0)


def signed_log(numbers: Any) -> Any:
    """`log(1 + x)`, of the absolute value, with the sign of `x`: amounts of any size become comparable."""
    return np.sign(numbers) * np.log1p(np.abs(numbers))


class Reader(keras.layers.Layer):
    """Raw columns to numbers `[batch, features]`: an embedding of each string, id and range, and the numbers themselves.

    Args:
        columns: How columns are read, by name.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        super().__init__(name="reader")
        self.lookups, sizes = {}, []
        for name, column in columns.items():
            if column.dtype == "float32":
                self.lookups[name] = keras.layers.Discretization(column.values)
            elif column.dtype == "int64":
                self.lookups[name] = keras.layers.IntegerLookup(vocabulary=column.values or [UNUSED_ID])
            else:
                self.lookups[name] = keras.layers.StringLookup(vocabulary=column.values or [UNUSED])
            sizes.append(len(column.values) + 2)  # with unknown values, or missing numbers
        self.first = np.cumsum([0, *sizes[:-1]])  # the first of a column's rows in the table of all
        self.embedding = keras.layers.Embedding(sum(sizes), EMBEDDING)
        self.numbers = [name for name, column in columns.items() if column.dtype == "float32"]
        moments = [[getattr(columns[name], moment) for name in self.numbers] for moment in ("mean", "variance")]
        self.normalization = keras.layers.Normalization(mean=moments[0], variance=moments[1]) if self.numbers else None
        if self.numbers:
            self.normalization.build((None, len(self.numbers)))  # here, since Keras 3 keeps tensors that it makes of these

    def call(self, inputs: dict[str, Any]) -> Any:
        ids = []
        for name, lookup in self.lookups.items():
            if name in self.numbers:
                is_missing = tf.math.is_nan(inputs[name])
                ids.append(tf.where(is_missing, 0, 1 + tf.cast(lookup(tf.where(is_missing, 0.0, inputs[name])), tf.int32)))
            else:
                ids.append(tf.cast(lookup(inputs[name]), tf.int32))
        vectors = self.embedding(tf.stack(ids, axis=1) + self.first)
        parts = [tf.reshape(vectors, [-1, len(ids) * EMBEDDING])]
        if self.normalization is not None:
            numbers = tf.stack([inputs[name] for name in self.numbers], axis=1)
            logs = tf.sign(numbers) * tf.math.log1p(tf.abs(numbers))
            parts.append(tf.where(tf.math.is_nan(logs), 0.0, tf.clip_by_value(self.normalization(logs), -6.0, 6.0)))
        return tf.concat(parts, axis=1)

    def compute_output_shape(self, shapes: Any) -> tuple[int | None, int]:
        return None, len(self.lookups) * EMBEDDING + len(self.numbers)


class Bought(keras.layers.Layer):
    """ESMM's head: `p(bought) = p(click) * p(bought | click)`, trained on all impressions (Ma et al., SIGIR 2018, eq. 3).

    It reads what both modules read, and trains both.
    """

    def __init__(self, click: keras.layers.Layer, purchase: keras.layers.Layer) -> None:
        super().__init__(name="bought")
        self.click, self.purchase = click, purchase

    def call(self, representation: Sequence[Any]) -> Any:
        of_click, of_purchase = representation
        return self.click(of_click) * self.purchase(of_purchase)


def encoder_and_head(
    kind: str, columns: Mapping[str, Column], heads: Sequence[str]
) -> tuple[keras.Model, Callable[[keras.layers.Layer], keras.layers.Layer]]:
    """An encoder of raw columns, and what makes a head's module of its tower.

    Args:
        kind: One of `ENCODERS`: two layers that all heads share, or experts.
        columns: How the columns are read.
        heads: The heads; the representation has an entry for each.
    """
    inputs = {name: keras.Input((), name=name, dtype=column.dtype) for name, column in columns.items()}
    features = keras.layers.Dropout(DROPOUT_OF_FEATURES)(Reader(columns)(inputs))
    if kind == "shared":
        for units in UNITS:
            features = keras.layers.Dropout(DROPOUT)(keras.layers.Dense(units, "relu")(features))
        return keras.Model(inputs, dict.fromkeys(heads, features)), lambda tower: tower
    # The gates read trained features, so they train them, too.
    experts: Any = (
        MMoE(heads, num_experts=4, units=UNITS, trains_below=True)
        if kind == "mmoe"
        else CGC(heads, shared_experts=2, own_experts=1, units=UNITS, trains_below=True)
    )
    return keras.Model(inputs, experts(features)), experts.head


def tower_of(kind: str, labels: np.ndarray) -> keras.layers.Layer:
    """The layers of a head; a probability begins with that of the training labels, as rare ones would take long to learn."""
    hidden = keras.layers.Dense(TOWER, "relu")
    if kind != "probability":
        return keras.Sequential([hidden, keras.layers.Dense(1)])
    mean = np.clip(np.nanmean(labels), 1e-6, 1 - 1e-6)
    bias = keras.initializers.Constant(float(np.log(mean / (1 - mean))))
    return keras.Sequential([hidden, keras.layers.Dense(1, "sigmoid", bias_initializer=bias)])


def scaling_of(kind: str, labels: np.ndarray) -> scaling.Standardize:
    """Numbers are trained on as standardized, prices as standardized logarithms; both are predicted in their own units."""
    labels = labels[~np.isnan(labels)].astype("float64")
    labels = np.log(labels) if kind == "price" else labels
    kinds = {"price": scaling.Log, "number": scaling.Standardize}
    return kinds[kind](mean=float(labels.mean()), deviation=float(labels.std()) or 1.0)


def build_trainer(
    columns: Mapping[str, Column], kinds: Mapping[str, str], targets: Arrays, encoder: str = "shared"
) -> MultiHeadTrainer:
    """A trainer with a head for each label.

    Args:
        columns: How the columns are read.
        kinds: What each head predicts, one of `KINDS`. With `click`, `purchase` and `bought`, the model is ESMM: `bought`
            is the product of both others, and `purchase` is predicted but has no loss of its own.
        targets: The training labels, NaN where missing.
        encoder: One of `ENCODERS`.
    """
    network, module_of = encoder_and_head(encoder, columns, list(kinds))
    is_product = {"click", "purchase", "bought"} <= set(kinds)
    towers = {name: tower_of(kind, targets[name]) for name, kind in kinds.items() if name != "bought" or not is_product}
    modules = {name: module_of(tower) for name, tower in towers.items()}
    heads = {}
    for name, kind in kinds.items():
        if name == "bought" and is_product:
            module = Bought(modules["click"], modules["purchase"])
            heads[name] = Head(module, "binary_crossentropy", reads=["click", "purchase"])
        elif name == "purchase" and is_product:
            heads[name] = Head(modules[name], None, reads=name)
        elif kind == "probability":
            heads[name] = Head(modules[name], "binary_crossentropy", reads=name)
        else:
            heads[name] = Head(modules[name], "mse", reads=name, target_scaling=scaling_of(kind, targets[name]))
    return MultiHeadTrainer(network, heads)


def batches(inputs: Arrays, targets: Arrays, size: int, seed: int) -> tf.data.Dataset:
    """Batches of the rows with a label, in random order, without end."""
    rows = np.flatnonzero(np.any([~np.isnan(labels) for labels in targets.values()], axis=0))
    parts = [{name: tf.constant(values[rows]) for name, values in part.items()} for part in (inputs, targets)]

    def gather(places: Any) -> tuple[Any, ...]:
        return tuple({name: tf.gather(values, places) for name, values in part.items()} for part in parts)

    data = tf.data.Dataset.range(len(rows)).shuffle(len(rows), seed=seed).repeat().batch(size)
    return data.map(gather, num_parallel_calls=tf.data.AUTOTUNE).prefetch(8)


def fit(
    trainer: MultiHeadTrainer,
    data: tf.data.Dataset,
    updates: int,
    rate: float,
    balancer: Any = None,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Trains with a rate that decays to zero; calls `advance` `PARTS` times."""
    steps = -(-updates // PARTS)
    decay = keras.optimizers.schedules.CosineDecay(rate, PARTS * steps)
    trainer.compile(keras.optimizers.AdamW(decay, weight_decay=DECAY), balancer=balancer, telemetry=None)
    tell = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: advance())
    trainer.fit(data, epochs=PARTS, steps_per_epoch=steps, callbacks=[tell], verbose=0)


def predict(trainer: MultiHeadTrainer, inputs: Arrays) -> Arrays:
    """What each head predicts, float64 `[n]`."""
    rows = tf.data.Dataset.from_tensor_slices({name: tf.constant(values) for name, values in inputs.items()})
    found = trainer.predict(rows.batch(4096), verbose=0)
    found = found if isinstance(found, dict) else {next(iter(trainer.heads)): found}
    return {name: np.asarray(values, "float64")[:, 0] for name, values in found.items()}
