"""Runs of rows of the covering array that are killed (SIGKILL) again and again: `python -m tests.pairs.kills`.

Ten rows of `tests/pairs`, with shuffled data, validation of several forms and many callbacks, are trained once without a kill
and then killed until there were as many kills as asked for: by a timer, or while a checkpoint is written. Whenever a run ends,
everything that it leaves must have the bytes of the run that was never killed. `--output` gets a line of JSON for each row.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import h5py
import keras
import numpy as np
import tensorflow as tf

from multihead._runs import snapshot
from multihead._runs.variables import values_of, variables_of
from multihead.callbacks import Checkpoint, Ledger, PerHead
from tests.helpers.resumed import difference
from tests.pairs.factors import as_text, rows
from tests.pairs.feed import batches_of, fit_arguments
from tests.pairs.model import examples, trainer_of
from tests.pairs.oracles import scope
from tests.pairs.worker import start

EPOCHS = 4
WRITING = ("in the file", "before fsync", "before the renaming", "after the renaming")
_SPREAD = (
    "data",
    "validation",
    "mode",
    "devices",
    "encoder",
    "optimizer",
    "accumulate_steps",
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
        found.append(Ledger(folder / "ledger.jsonl", every=1 + number % 2))
    if row["validation"] != "none":
        found.append(PerHead(patience=2, min_delta=0.02))
    return [*found[1:], found[0]] if row["devices"] == "one" else found[1:]


def state(trainer, history, used, folder):
    """Everything that a run leaves, as arrays by name."""
    found = dict(values_of(variables_of(trainer)))
    for place, variable in enumerate([*trainer.variables, *trainer.optimizer.variables]):
        found[f"keras/{place}"] = np.array(tf.convert_to_tensor(variable))
    texts = {"history": repr({name: np.array(values, "float64").tolist() for name, values in history.history.items()})}
    for callback in used:
        if isinstance(callback, PerHead):
            decisions = (
                callback.best,
                callback.best_epoch,
                callback.best_score,
                callback.idle_heads,
                callback.stopped_epoch,
            )
            texts["PerHead"] = repr(decisions)
        elif isinstance(callback, Draws):
            texts["drawn"] = repr(callback.drawn)
        elif not isinstance(callback, (Ledger, Checkpoint)):
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


class KilledBy(keras.callbacks.Callback):
    """Kills this process some seconds after its first update, which writes how long the updates took."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.begun = seconds, None

    def on_train_batch_end(self, batch, logs=None):
        if self.begun is None:
            self.begun = time.monotonic()
            if self.seconds is not None:
                kill_after(self.seconds)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_after(seconds):
    threading.Thread(target=lambda: (time.sleep(seconds), die()), daemon=True).start()


def kill_while_writing(moment, after, fraction):
    """Makes this process die while it writes a checkpoint.

    Args:
        moment: One of `WRITING`.
        after: The number of checkpoints that are written before.
        fraction: The part of the file that is written if it dies in the file.
    """
    left, plain = [after], open

    def opening(path, mode):
        left[0] -= 1
        file = plain(path, mode)
        if left[0] < 0 and moment == "in the file":
            write = file.write

            class Dying:
                def __enter__(self):
                    return self

                def __exit__(self, *args):
                    file.close()

                def write(self, content):
                    write(content[: int(fraction * len(content))])
                    file.flush()
                    die()

            return Dying()
        return file

    class System:
        def __getattr__(self, name):
            return getattr(os, name)

        def fsync(self, number):
            if left[0] < 0 and moment == "before fsync":
                die()
            os.fsync(number)

        def replace(self, draft, path):
            if left[0] < 0 and moment == "before the renaming":
                die()
            os.replace(draft, path)
            if left[0] < 0 and moment == "after the renaming":
                die()

    snapshot.open, snapshot.os = opening, System()


def train(row, number, folder, result, kill):
    """Trains a row, in a process of its own; writes everything that it leaves, and the seconds from the first update on."""
    start()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    kind, *how = kill or (None,)
    if kind == "begin":
        kill_after(*how)
    elif kind == "writing":
        kill_while_writing(*how)
    timer = KilledBy(how[0] if kind == "timer" else None)
    keras.utils.set_random_seed(11)
    with scope(row):
        trainer = trainer_of(row, run_eagerly=True, jit_compile=False) if row["mode"] == "eager" else trainer_of(row)
    used = callbacks_of(row, number, folder)
    saver = Checkpoint(folder / "run", every=1 + number % 3)
    history = trainer.fit(**arguments_of(row, number), callbacks=[*used, timer, saver])
    found = state(trainer, history, used, folder)
    found["seconds"] = np.zeros(0)
    np.savez(result, **found)
    result.with_suffix(".seconds").write_text(str(time.monotonic() - (timer.begun or time.monotonic())))


def in_child(*args, log):
    """Trains in a forked process; whether it was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
            train(*args)
            code = 0
        finally:
            if code:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError(f"the run failed:\n{Path(log).read_text()[-3000:]}")
    return os.WIFSIGNALED(status)


def next_kill(rng, seconds, whole):
    """How the next run is killed: of four, two by a timer from the first update on, one at any time, one while it writes."""
    kind = rng.choice(["timer", "timer", "begin", "writing"])
    if kind == "writing":
        return kind, rng.choice(WRITING), rng.randrange(5), rng.random()
    return (kind, rng.uniform(0, seconds)) if kind == "timer" else (kind, rng.uniform(0, whole))


def killed_again_and_again(row, number, root, kills, rng):
    root.mkdir(parents=True)
    whole, cut = root / "whole", root / "cut"
    whole.mkdir()
    begin = time.monotonic()
    in_child(row, number, whole, root / "whole.npz", None, log=root / "log")
    elapsed = time.monotonic() - begin
    seconds = float((root / "whole.seconds").read_text())
    counts = dict.fromkeys(("timer", "begin", "writing"), 0)
    found = {"row": as_text(row), "kills": counts, "ended": 0, "differ": []}
    while sum(counts.values()) < kills or found["ended"] == 0:
        cut.mkdir(exist_ok=True)
        kill = next_kill(rng, seconds, elapsed) if sum(counts.values()) < kills else None
        if in_child(row, number, cut, root / "cut.npz", kill, log=root / "log"):
            counts[kill[0]] += 1
            continue
        found["ended"] += 1
        found["differ"] = sorted({*found["differ"], *difference(root / "whole.npz", root / "cut.npz")})
        shutil.rmtree(cut)
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.pairs.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many in all")
    parser.add_argument("--rows", type=int, default=10, help="over how many rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eager", action="store_true", help="train all rows eagerly, which begins sooner")
    parser.add_argument("--only", type=int, nargs="*", help="the numbers of rows; all by default")
    parser.add_argument("--output", help="a file, to which a line is appended for each row")
    given = parser.parse_args(arguments)
    chosen = drawn(given.seed, given.rows)
    kills = failed = 0
    for number, row in enumerate(chosen):
        if given.only is not None and number not in given.only:
            continue
        if given.eager and row["devices"] == "one":
            row = {**row, "mode": "eager", "steps_per_execution": "1"}
        share = given.kills // len(chosen) + (number < given.kills % len(chosen))
        rng = random.Random(f"{given.seed} {number}")
        with tempfile.TemporaryDirectory() as name:
            found = killed_again_and_again(row, number, Path(name) / "run", share, rng)
        kills, failed = kills + sum(found["kills"].values()), failed + bool(found["differ"])
        line = json.dumps({"stack": keras.__version__, "seed": given.seed, "number": number, **found})
        print(line, flush=True)
        if given.output:
            with open(given.output, "a", encoding="utf-8") as file:
                file.write(line + "\n")
    print(f"{kills} kills, {failed} rows that differ")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
