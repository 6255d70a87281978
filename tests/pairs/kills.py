"""Runs that are killed (SIGKILL) again and again, and must end as if they had not been: `python -m tests.pairs.kills`.

Rows of `tests/pairs`, with shuffled data, validation of several forms and many callbacks, and some cases with other methods and
data, are trained once without a kill and then killed until there were as many kills as asked for: by a timer, or while a
checkpoint is written. Whenever a run ends, everything that it leaves must have the bytes of the run that was never killed.
`--output` gets a line of JSON for each run.
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
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import keras
import numpy as np

from multihead._runs import snapshot
from tests.helpers import prepared  # noqa: F401 - TensorFlow as the tests want it
from tests.helpers.forked import forked
from tests.pairs.killed import CASES, arguments_of, callbacks_of, case, drawn, saver_of, state
from tests.pairs.model import trainer_of
from tests.pairs.oracles import scope

WRITING = ("in the file", "before fsync", "before the renaming", "after the renaming")


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


def train(run, number, folder, result, kill):
    """Trains a row with its changes, in a process of its own; writes everything that it leaves, and the seconds from the first update on."""
    row, changed = run
    kind, *how = kill or (None,)
    if kind == "begin":
        kill_after(*how)
    elif kind == "writing":
        kill_while_writing(*how)
    timer = KilledBy(how[0] if kind == "timer" else None)
    keras.utils.set_random_seed(11)
    with scope(row):
        trainer = trainer_of(row, **changed)
    used = callbacks_of(row, number, folder)
    history = trainer.fit(**arguments_of(row, number), callbacks=[*used, timer, saver_of(number, folder)])
    found = state(trainer, history, used, folder)
    found["seconds"] = np.zeros(0)
    np.savez(result, **found)
    result.with_suffix(".seconds").write_text(str(time.monotonic() - (timer.begun or time.monotonic())))


def in_child(*args, log):
    """Trains in a forked process; whether it was killed."""
    child = forked(lambda: train(*args), log)
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


def difference(one, other):
    """The names of the arrays in which two results differ."""
    with np.load(one) as a, np.load(other) as b:
        kinds = [{name: (found[name].dtype, found[name].tobytes()) for name in found.files} for found in (a, b)]
    return sorted(name for name in {**kinds[0], **kinds[1]} if kinds[0].get(name) != kinds[1].get(name))


def killed_again_and_again(run, number, root, kills, rng):
    root.mkdir(parents=True)
    whole, cut = root / "whole", root / "cut"
    whole.mkdir()
    begin = time.monotonic()
    in_child(run, number, whole, root / "whole.npz", None, log=root / "log")
    elapsed = time.monotonic() - begin
    seconds = float((root / "whole.seconds").read_text())
    found = {"kills": 0, "ended": 0, "differ": []}
    while found["kills"] < kills or found["ended"] == 0:
        cut.mkdir(exist_ok=True)
        kill = next_kill(rng, seconds, elapsed) if found["kills"] < kills else None
        if in_child(run, number, cut, root / "cut.npz", kill, log=root / "log"):
            found["kills"] += 1
            continue
        found["ended"] += 1
        found["differ"] = sorted({*found["differ"], *difference(root / "whole.npz", root / "cut.npz")})
        shutil.rmtree(cut)
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.pairs.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many in all")
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES), help="the cases; all by default")
    parser.add_argument("--rows", type=int, default=10, help="how many rows of the covering array beside them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eager", action="store_true", help="train eagerly, which begins sooner")
    parser.add_argument("--output", help="a file, to which a line is appended for each run")
    given = parser.parse_args(arguments)
    runs = [(name, *case(name)) for name in given.cases]
    runs += [(f"row {number}", row, {}) for number, row in enumerate(drawn(given.seed, given.rows))]
    kills = failed = 0
    for number, (name, row, changed) in enumerate(runs):
        if (given.eager or row["mode"] == "eager") and row["devices"] == "one":
            row = {**row, "mode": "eager", "steps_per_execution": "1"}
            changed = {**changed, "run_eagerly": True, "jit_compile": False}
        share = given.kills // len(runs) + (number < given.kills % len(runs))
        rng = random.Random(f"{given.seed} {number}")
        with tempfile.TemporaryDirectory() as folder:
            found = killed_again_and_again((row, changed), number, Path(folder) / "run", share, rng)
        kills, failed = kills + found["kills"], failed + bool(found["differ"])
        line = json.dumps({"stack": keras.__version__, "seed": given.seed, "run": name, **found})
        print(line, flush=True)
        if given.output:
            with open(given.output, "a", encoding="utf-8") as file:
                file.write(line + "\n")
    print(f"{kills} kills, {failed} runs that differ")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
