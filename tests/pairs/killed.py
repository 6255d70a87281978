"""The runs of `tests.pairs.kills`: rows of the covering array with shuffled data and many callbacks, and what they leave.

Some have methods with a state, or data, that no row has.
"""

from __future__ import annotations

import random

import h5py
import keras
import numpy as np
import tensorflow as tf

from multihead import balancing, mix_datasets, schedules
from multihead._runs.variables import values_of, variables_of
from multihead.callbacks import Checkpoint, HeadEarlyStopping, UpdateLogger
from tests.pairs.factors import FACTORS, rows
from tests.pairs.feed import batches_of, fit_arguments
from tests.pairs.model import HEADS, examples

EPOCHS = 4
_SPREAD = ("data", "validation", "mode", "devices", "encoder", "optimizer", "gradient_accumulation_steps")
_SPREAD += ("balancer", "weighting", "telemetry")
_USUAL = {**{name: values[0] for name, values in FACTORS.items()}, "encoder": "dropout"}

# What differs from the usual row, and from its arguments of `compile`.
CASES = {
    "arrays": (
        {"validation": "given", "telemetry": "full"},
        {
            "weighting": "DWA",
            "balancer": balancing.NormBudget({"size": 0.3}),
            "head_schedule": schedules.Sample({"kind": 2, "size": 1, "flags": 1}, seed=1),
        },
    ),
    "dataset": ({"data": "dataset", "balance_at": "parameters"}, {"balancer": "MoCo"}),
    "mixed": ({"data": "mixed", "encoder": "batch_normalization", "clip": "global_norm"}, {"weighting": "Uncertainty"}),
    "windows": ({"data": "dataset", "gradient_accumulation_steps": "2"}, {"balancer": "GradVac", "weighting": "FAMO"}),
}


def drawn(seed, number=10, salt="0"):
    """Rows in which each value of the factors that matter here occurs, as far as there are enough rows."""
    rng, found, seen = random.Random(seed), [], set()
    left = rows(salt) if number else []
    rng.shuffle(left)
    while left and len(found) < number:
        best = max(left, key=lambda row: len({(name, row[name]) for name in _SPREAD} - seen))
        left.remove(best)
        found.append(best)
        seen |= {(name, best[name]) for name in _SPREAD}
    return found


def case(name):
    """The row of a case, and the arguments of `compile` that replace the row's."""
    changed, options = CASES[name]
    return {**_USUAL, **changed}, options


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
    if row["data"] == "mixed":
        x, y, _ = examples(row)
        parts = {name: tf.data.Dataset.from_tensor_slices((x, y[name])).shuffle(9, seed=2).batch(4) for name in HEADS}
        return {"x": mix_datasets(parts, seed=4), "epochs": 2, "verbose": 0}
    found = {**fit_arguments(row), "epochs": EPOCHS, "shuffle": True}
    if row["data"] == "dataset":
        found["x"] = found["x"].shuffle(9, seed=4)
    elif row["data"] == "generator":
        found["x"] = permuted([batch if batch[2] is not None else batch[:2] for batch in batches_of(row)])
    if row["validation"] == "given" and number % 3:
        x, y, weights = examples(row, seed=1)
        whole = tf.data.Dataset.from_tensor_slices((x, y) if weights is None else (x, y, weights))
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
    found.append(keras.callbacks.EarlyStopping(monitored, patience=9, mode="min", restore_best_weights=True))
    if row["optimizer"] != "schedule":  # Keras: a schedule cannot be set
        found.append(keras.callbacks.ReduceLROnPlateau(monitored, patience=1, mode="min", min_delta=0.05))
    if row["telemetry"] != "none":
        found.append(UpdateLogger(folder / "ledger.jsonl", every=1 + number % 2))
    if row["validation"] != "none":
        found.append(HeadEarlyStopping(patience=2, min_delta=0.02))
    data_draw = row["data"] == "generator" or (row["validation"] == "given" and number % 3 == 2)
    return [*found[1:], found[0]] if row["devices"] == "one" and not data_draw else found[1:]


def saver_of(number, folder):
    """What saves the run: for every fourth one, Keras's own callback."""
    if number % 4 == 3:
        return keras.callbacks.BackupAndRestore(str(folder / "run"), save_freq=3, delete_checkpoint=False)
    return Checkpoint(folder / "run", every=1 + number % 3)


def state(trainer, history, used, folder):
    """Everything that a run leaves, as arrays by name."""
    found = dict(values_of(variables_of(trainer)))
    for place, variable in enumerate([*trainer.variables, *trainer.optimizer.variables]):
        found[f"keras/{place}"] = np.array(tf.convert_to_tensor(variable))
    texts = {"history": repr({name: np.array(values, "float64").tolist() for name, values in history.history.items()})}
    for callback in used:
        if isinstance(callback, UpdateLogger):
            continue
        names = ("best", "best_epoch", "best_score", "idle_heads", "wait", "cooldown_counter", "stopped_epoch", "drawn")
        kept = [(name, getattr(callback, name)) for name in names if hasattr(callback, name)]
        texts[f"callback {type(callback).__name__}"] = repr([(name, _plain(value)) for name, value in kept])
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


def _plain(value):
    return float(value) if isinstance(value, (int, float, np.number)) else value
