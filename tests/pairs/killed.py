"""The runs of `tests.pairs.kills`: rows of the covering array with shuffled data and many callbacks, and what they leave."""

from __future__ import annotations

import random

import h5py
import keras
import numpy as np
import tensorflow as tf

from multihead._runs.variables import values_of, variables_of
from multihead.callbacks import Checkpoint, HeadEarlyStopping, UpdateLogger
from tests.pairs.factors import rows
from tests.pairs.feed import batches_of, fit_arguments
from tests.pairs.model import examples

EPOCHS = 4
_SPREAD = (
    "data",
    "validation",
    "mode",
    "devices",
    "encoder",
    "optimizer",
    "gradient_accumulation_steps",
    "balancer",
    "weighting",
    "telemetry",
)


def drawn(seed, number=10, salt="0"):
    """Rows in which each value of the factors that matter here occurs, as far as there are enough rows."""
    rng, found, seen = random.Random(seed), [], set()
    left = rows(salt)
    rng.shuffle(left)
    while left and len(found) < number:
        best = max(left, key=lambda row: len({(name, row[name]) for name in _SPREAD} - seen))
        left.remove(best)
        found.append(best)
        seen |= {(name, best[name]) for name in _SPREAD}
    return found


class Draws(keras.callbacks.Callback):
    """Draws global random numbers, as callbacks do."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def on_train_batch_end(self, batch, logs=None):
        self.drawn = [*self.drawn[-3:], float(np.random.random()), random.random()]


def permuted(batches):
    """Batches without an end, in an order from NumPy's global random numbers."""
    while True:
        for place in np.random.permutation(len(batches)):
            yield batches[place]


def arguments_of(row, number):
    """The arguments of `fit`, with shuffled data and, for every third row each, another form of validation data."""
    found = {**fit_arguments(row), "epochs": EPOCHS, "shuffle": True}
    if row["data"] == "dataset":
        found["x"] = found["x"].shuffle(9, seed=4)
    elif row["data"] == "generator":
        found["x"] = permuted([batch if batch[2] is not None else batch[:2] for batch in batches_of(row)])
    if row["validation"] == "given" and number % 3:
        x, y, weights = examples(row, seed=1)
        parts = (x, y) if weights is None else (x, y, weights)
        whole = tf.data.Dataset.from_tensor_slices(parts)
        batches = list(whole.batch(8).as_numpy_iterator())
        if number % 3 == 1:
            found["validation_data"] = whole.shuffle(30, seed=5).batch(8).take(2)
        else:
            found.update(validation_data=permuted(batches), validation_steps=2)
    return found


def callbacks_of(row, number, folder):
    monitored = "val_loss" if row["validation"] != "none" else "loss"
    best = keras.callbacks.ModelCheckpoint(
        str(folder / "best.weights.h5"), monitor=monitored, mode="min", save_best_only=True, save_weights_only=True
    )
    every = keras.callbacks.ModelCheckpoint(str(folder / "epoch_{epoch}.weights.h5"), save_weights_only=True)
    found = [Draws(), best, every, keras.callbacks.CSVLogger(str(folder / "log.csv"))]
    found.append(keras.callbacks.EarlyStopping(monitored, patience=9, mode="min"))
    if row["optimizer"] != "schedule":  # Keras: a schedule cannot be set
        found.append(keras.callbacks.ReduceLROnPlateau(monitored, patience=1, mode="min", min_delta=0.05))
    if row["telemetry"] != "none":
        found.append(UpdateLogger(folder / "ledger.jsonl", every=1 + number % 2))
    if row["validation"] != "none":
        found.append(HeadEarlyStopping(patience=2, min_delta=0.02))
    return [*found[1:], found[0]] if row["devices"] == "one" else found[1:]


def state(trainer, history, used, folder):
    """Everything that a run leaves, as arrays by name."""
    found = dict(values_of(variables_of(trainer)))
    for place, variable in enumerate([*trainer.variables, *trainer.optimizer.variables]):
        found[f"keras/{place}"] = np.array(tf.convert_to_tensor(variable))
    texts = {"history": repr({name: np.array(values, "float64").tolist() for name, values in history.history.items()})}
    for callback in used:
        if isinstance(callback, HeadEarlyStopping):
            decisions = (
                callback.best,
                callback.best_epoch,
                callback.best_score,
                callback.idle_heads,
                callback.stopped_epoch,
            )
            texts["HeadEarlyStopping"] = repr(decisions)
        elif isinstance(callback, Draws):
            texts["drawn"] = repr(callback.drawn)
        elif not isinstance(callback, (UpdateLogger, Checkpoint)):
            names = ("best", "wait", "best_epoch", "cooldown_counter", "stopped_epoch")
            state = [
                (name, float(vars(callback)[name])) for name in names if isinstance(vars(callback).get(name), (int, float))
            ]
            texts[type(callback).__name__] = texts.get(type(callback).__name__, "") + repr(state)
    for path in sorted(folder.iterdir()):
        if path.suffix in (".csv", ".jsonl"):
            texts[path.name] = path.read_text()
        elif path.suffix == ".h5":
            with h5py.File(path) as file:
                visit = lambda name, item, place=path.name: (  # noqa: E731
                    found.update({f"{place}/{name}": np.array(item)}) if isinstance(item, h5py.Dataset) else None
                )
                file.visititems(visit)
    found.update({name: np.frombuffer(text.encode(), np.uint8) for name, text in texts.items()})
    return {name: value.view("uint16") if value.dtype.name == "bfloat16" else value for name, value in found.items()}
