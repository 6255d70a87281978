"""Runs that are killed (SIGKILL) at random moments and go on: `python -m tests.helpers.resumed FOLDER SEED EAGER CASE=KILLS ...`.

Each case trains a small trainer with dropout, stateful methods and callbacks, once without a kill and then killed again and
again until there were that many kills. Prints, as JSON, by case: the kills, the runs that ended, the names of the states in
which they differ from the run that was never stopped.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import threading
import time
import traceback
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing, clipping, mix_datasets, schedules
from multihead._runs.variables import values_of, variables_of
from multihead.callbacks import Checkpoint, HeadEarlyStopping

ROWS = 30
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
Y = {"a": X.sum(1, keepdims=True), "b": (X[:, 0] > 0).astype("int64")}
VALID = (X[:8], {name: values[:8] for name, values in Y.items()})


def made(**options):
    keras.utils.set_random_seed(3)
    encoder = keras.Sequential([keras.layers.Dense(6, activation="tanh"), keras.layers.Dropout(0.3)])
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("a", keras.layers.Dense(1), "mse", weight=0.5)
    classifier = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(2, activation="softmax")])
    trainer.add_head("b", classifier, "sparse_categorical_crossentropy", metrics=["accuracy"], ignore_label=-1)
    trainer.compile(keras.optimizers.Adam(0.02), **options)
    return trainer


class Draws(keras.callbacks.Callback):
    """Draws random numbers and counts batches, as callbacks do."""

    def __init__(self):
        super().__init__()
        self.drawn, self.batches = [], 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        self.drawn = [*self.drawn[-3:], float(np.random.random())]


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(20, seed=5).batch(4)


def mixed():
    parts = {name: tf.data.Dataset.from_tensor_slices((X, values)).shuffle(9, seed=2).batch(4) for name, values in Y.items()}
    return mix_datasets(parts, seed=4)


CASES = {
    "dataset": ({"balancer": "MoCo", "balance_at": "parameters"}, lambda: {"x": dataset()}),
    "arrays": (
        {"weighting": "DWA", "balancer": balancing.NormBudget({"a": 0.3}), "head_schedule": schedules.Sample({"a": 2, "b": 1}, seed=1)},
        lambda: {"x": X, "y": Y, "batch_size": 4, "validation_data": VALID},
    ),
    "mixed": ({"weighting": "Uncertainty", "clip": clipping.ByGlobalNorm(1.0)}, lambda: {"x": mixed()}),
    "windows": ({"gradient_accumulation_steps": 3, "balancer": "GradVac", "weighting": "FAMO"}, lambda: {"x": dataset()}),
    "late": ({}, lambda: {"x": dataset(), "validation_data": VALID}),
}  # fmt: skip


def callbacks(case, folder):
    extra = {
        "late": [
            keras.callbacks.ReduceLROnPlateau("val_a_loss", mode="min", patience=1, factor=0.7, min_delta=0.1),
            keras.callbacks.EarlyStopping("val_a_loss", mode="min", patience=30, restore_best_weights=True),
        ],
        "arrays": [
            HeadEarlyStopping(patience=3),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.95),
            keras.callbacks.CSVLogger(str(folder / "log.csv")),
        ],
    }
    saver = Checkpoint(folder / "checkpoint", every=3)
    if case == "windows":
        saver = keras.callbacks.BackupAndRestore(str(folder / "checkpoint"), save_freq=3, delete_checkpoint=False)
    return [Draws(), *extra.get(case, []), saver]


def state(trainer, history, used):
    found = values_of(variables_of(trainer))
    for name, values in history.history.items():
        found[f"history/{name}"] = np.array(values, "float64")
    found["epochs"] = np.array(history.epoch)
    found["drawn"], found["batches"] = np.array(used[0].drawn), np.array(used[0].batches)
    for place, callback in enumerate(used):
        for name in ("best", "wait", "best_epoch", "cooldown_counter"):
            if isinstance(getattr(callback, name, None), (int, float, np.number)):
                found[f"callback/{place}/{name}"] = np.array(float(getattr(callback, name)))
    return found


def run(case, folder, result, epochs=2, **others):
    options, arguments = CASES[case]
    trainer, used = made(**options, **others), callbacks(case, folder)
    history = trainer.fit(**arguments(), epochs=epochs, verbose=0, callbacks=used)
    found = state(trainer, history, used)
    if (folder / "log.csv").is_file():
        text = (folder / "log.csv").read_bytes()
        found["log"] = np.frombuffer(text, np.uint8)
    np.savez(result, **found)


class _Begun(keras.callbacks.Callback):
    """Tells the parent process that training begins."""

    def __init__(self, kill_at):
        super().__init__()
        self._kill_at = kill_at

    def on_train_begin(self, logs=None):
        if self._kill_at is not None:
            threading.Thread(target=self._kill, daemon=True).start()

    def _kill(self):
        time.sleep(self._kill_at)
        os.kill(os.getpid(), 9)


def in_child(case, folder, result, kill_at, eager):
    """Runs in a process of its own; whether it was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(1)
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
            plain = callbacks
            globals()["callbacks"] = lambda case, folder: [*plain(case, folder), _Begun(kill_at)]
            run(case, folder, result, run_eagerly=eager)
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError(f"{case}: the run failed")
    return os.WIFSIGNALED(status)


def difference(one, other):
    with np.load(one) as a, np.load(other) as b:
        names = set(a.files) | set(b.files)
        return sorted(
            name
            for name in names
            if name not in a.files
            or name not in b.files
            or a[name].dtype != b[name].dtype
            or a[name].tobytes() != b[name].tobytes()
        )


def killed_again_and_again(case, root, kills, rng, eager):
    whole, cut = root / "whole", root / "cut"
    whole.mkdir(parents=True)
    begin = time.monotonic()
    in_child(case, whole, root / "whole.npz", None, eager)
    seconds = time.monotonic() - begin
    found = {"kills": 0, "ended": 0, "differ": []}
    while found["kills"] < kills or found["ended"] == 0:
        cut.mkdir(exist_ok=True)
        moment = rng.uniform(0, 0.8 * seconds) if found["kills"] < kills else None
        if in_child(case, cut, root / "cut.npz", moment, eager):
            found["kills"] += 1
        else:
            found["ended"] += 1
            found["differ"] += difference(root / "whole.npz", root / "cut.npz")
            shutil.rmtree(cut)
    return found


if __name__ == "__main__":
    root, seed, eager = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "eager"
    generator = random.Random(seed)
    wanted = dict(each.split("=") for each in sys.argv[4:])
    sys.stdout.write(
        json.dumps({name: killed_again_and_again(name, root / name, int(n), generator, eager) for name, n in wanted.items()})
    )
