"""What a `Checkpoint` refuses, so that nothing is lost, and what it says about what cannot be restored."""

from __future__ import annotations

import errno
import io
import os
import resource
import subprocess
import sys
import tracemalloc

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead._runs import snapshot
from multihead.callbacks import Checkpoint, UpdateLogger
from tests.helpers import tiny
from tests.helpers.cases import quick

pytestmark = pytest.mark.usefixtures("eager_updates")

X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


class Stopped(Exception):
    """What ends a run."""


class Stop(keras.callbacks.Callback):
    """Ends a run after a number of updates."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.update_count) == self.after:
            raise Stopped


def made(kind=MultiHeadTrainer):
    keras.utils.set_random_seed(2)
    trainer = kind(keras.layers.Dense(2, activation="tanh"))
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.SGD(0.1), run_eagerly=True, telemetry=None)
    trainer.compute_gradients((X[:2], Y[:2]))  # builds
    return trainer


def fit(trainer, folder, *, stop=None, data=None, strict=True, every=1, **options):
    given = [] if folder is None else [Checkpoint(folder, every=every, strict=strict)]
    given += [] if stop is None else [Stop(stop)]
    arguments = {"x": X, "y": Y, "batch_size": 4} if data is None else dict(data)
    try:
        return trainer.fit(**{**arguments, "epochs": 2, "verbose": 0, **options}, callbacks=given)
    except Stopped:
        return None


def updates(trainer):
    return int(trainer.update_count)


# ------------------------------------------------------------------------------------------- variables of a subclass


class Holding(MultiHeadTrainer):
    """A trainer with variables of its own, held in every way, which change at each update."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        new = lambda: tf.Variable(0.0, trainable=False)  # noqa: E731
        self.alone, self.listed, self.named, self.both = new(), [new()], {"in": new()}, (new(), [new()])
        self.weight = self.add_weight(name="own", shape=(), initializer="zeros", trainable=False)
        self.mean = keras.metrics.Mean()
        self.module = tf.Module()
        self.module.inner = new()
        self.inner = keras.layers.BatchNormalization()
        self.inner.build((None, 1))
        self.numbers = tf.random.Generator.from_seed(1)

    def held(self):
        inner = tiny.tensor_variable(self.inner.moving_mean)
        own = tiny.tensor_variable(self.weight)
        mean = tiny.tensor_variable(self.mean.total)
        plain = [self.alone, self.listed[0], self.named["in"], self.both[0], self.both[1][0], self.module.inner]
        return [*plain, own, inner, mean, self.numbers.state]

    def train_step(self, data):
        logs = super().train_step(data)
        for variable in self.held()[:-1]:
            variable.assign_add(tf.ones_like(variable))
        self.numbers.normal([3])
        return logs


@pytest.mark.thorough
def test_variables_that_a_subclass_adds_are_restored(tmp_path):
    whole, cut, resumed = made(Holding), made(Holding), made(Holding)
    fit(whole, None)
    fit(cut, tmp_path, stop=4, every=2)
    fit(resumed, tmp_path, every=2)
    values = tiny.values(whole.held())
    *plain, mean, _ = values
    assert all(value.max() == 6 for value in plain) and mean == 3  # a metric is reset in each epoch
    for one, other in zip(values, tiny.values(resumed.held()), strict=True):
        np.testing.assert_array_equal(one, other)


# ------------------------------------------------------------------------------------------- never back


def test_a_folder_never_takes_back_what_was_trained_since(tmp_path):
    trainer = made()
    fit(trainer, tmp_path)
    with pytest.raises(ValueError, match="(?s)of a run that has not ended.*epochs=2.*Pass more `epochs`"):
        fit(trainer, tmp_path)
    assert updates(trainer) == 6
    fit(trainer, None)
    for _ in range(2):  # a refusal is no permission
        with pytest.raises(ValueError, match="(?s)would be lost. Received: a trainer after 12 updates.*saved after 6"):
            fit(trainer, tmp_path)
        assert updates(trainer) == 12


def test_a_run_goes_on_in_the_process_in_which_it_was_stopped(tmp_path):
    whole, trainer = made(), made()
    fit(whole, None, epochs=3)
    fit(trainer, tmp_path, stop=5, every=2)  # saved after four updates
    assert updates(trainer) == 5
    fit(trainer, tmp_path, every=2)
    assert updates(trainer) == 6
    fit(trainer, tmp_path, epochs=3)
    assert updates(trainer) == 9


# ------------------------------------------------------------------------------------------- other data


def dataset(size=12, seed=3, batch=4):
    return tf.data.Dataset.from_tensor_slices((X[:size], Y[:size])).shuffle(12, seed=seed).batch(batch)


def endless(rng):
    while True:
        rows = rng.permutation(12)[:4]
        yield X[rows], Y[rows]


ARRAYS = {"x": X, "y": Y, "batch_size": 4}
VALIDATED = {**ARRAYS, "validation_data": dataset()}
OTHERS = {
    "batch size": (ARRAYS, {**ARRAYS, "batch_size": 3}, r"batch_size +4 +3"),
    "length": (ARRAYS, {**ARRAYS, "x": X[:8], "y": Y[:8]}, "arrays of 12 examples +arrays of 8 examples"),
    "shuffle": (ARRAYS, {**ARRAYS, "shuffle": False}, "shuffle +True +False"),
    "form": (ARRAYS, {"x": dataset()}, "x +arrays of 12 examples +a dataset of 3 batches"),
    "steps": ({"x": endless(np.random), "steps_per_epoch": 3}, {"x": endless(np.random), "steps_per_epoch": 2}, "steps_per_epoch"),
    "seed of a dataset": ({"x": dataset()}, {"x": dataset(seed=4)}, "seed2=3.*seed2=4"),
    "seed of validation": (VALIDATED, {**VALIDATED, "validation_data": dataset(seed=4)}, "validation_data, part 1.*seed2=4"),
}  # fmt: skip
QUICK = ("length", "seed of a dataset", "seed of validation")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("what", quick(3, sorted(OTHERS, key=lambda what: what not in QUICK)))
def test_other_data_are_refused_with_both_lists(what, tmp_path):
    data, other, row = OTHERS[what]
    fit(made(), tmp_path, stop=2, data=data)
    before = (tmp_path / "run.checkpoint").read_bytes()
    trainer = made()
    with pytest.raises(ValueError, match=rf"(?s)does not fit the data of `fit`. Received:\n.*{row}.*choose another folder"):
        fit(trainer, tmp_path, data=other)
    assert updates(trainer) == 0 and (tmp_path / "run.checkpoint").read_bytes() == before
    if what == "length":
        with pytest.warns(RuntimeWarning, match="does not fit the data of `fit`"):
            fit(trainer, tmp_path, data=other, strict=False)
        assert updates(trainer) == 4


def test_what_cannot_be_restored_is_said_when_fit_begins(tmp_path):
    tf.random.set_seed(None)
    unseeded = dataset(seed=None)
    with pytest.warns(RuntimeWarning, match="`x` is shuffled without a seed.*Pass `seed=`"):
        fit(made(), tmp_path / "dataset", data={"x": unseeded})
    with pytest.warns(RuntimeWarning, match="`validation_data` is shuffled without a seed"):
        fit(made(), tmp_path / "validation", data={**ARRAYS, "validation_data": unseeded})
    fit(made(), tmp_path / "generator", stop=2, data={"x": endless(np.random.default_rng(0)), "steps_per_epoch": 3})
    with pytest.warns(RuntimeWarning, match="`x` is not reproducible: its first batch differs"):
        fit(made(), tmp_path / "generator", data={"x": endless(np.random.default_rng(1)), "steps_per_epoch": 3})


# ------------------------------------------------------------------------------------------- disks and folders


def refusing(code):
    def refuse(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize("call", quick(1, ["os.fsync", "os.replace", "builtins.open", "pathlib.Path.mkdir"]))
def test_a_disk_that_takes_nothing_more_leaves_the_last_good_checkpoint(call, tmp_path, monkeypatch):
    class Full(keras.callbacks.Callback):
        """From here on, the disk is full."""

        def on_train_batch_begin(self, batch, logs=None):
            if int(self.model.update_count) == 4:
                monkeypatch.setattr(call, refusing(errno.ENOSPC))

    trainer, whole = made(), made()
    fit(whole, None, shuffle=False)
    with pytest.raises(
        RuntimeError, match="(?s)`directory` must take a checkpoint of .*No space left.*call `fit` again to continue"
    ):
        trainer.fit(
            X, Y, batch_size=4, epochs=2, verbose=0, shuffle=False, callbacks=[Full(), Checkpoint(tmp_path, every=2)]
        )
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.checkpoint", "run.lock"]
    for each in (trainer, made()):  # in this process, and in a new one
        fit(each, tmp_path, every=2, shuffle=False)
        for one, other in zip(tiny.values(each.weights), tiny.values(whole.weights), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_checkpoint_is_written_without_a_copy_in_memory_and_is_whole_or_not_there(tmp_path):
    path, rng = tmp_path / "run.checkpoint", np.random.default_rng(0)
    arrays = {f"layer/{i}": rng.normal(size=(256, 1024)) for i in range(8)}
    arrays |= {"step": np.array(3), "none": np.zeros([0, 2], "float32"), "flags": np.array([True, False])}
    tracemalloc.start()
    snapshot.write_snapshot(path, snapshot.Snapshot({"parts": ["a"]}, arrays))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 0.3 * sum(array.nbytes for array in arrays.values())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        with pytest.raises(RuntimeError, match="must take a checkpoint of 16,[0-9,]* bytes.*File too large"):
            snapshot.write_snapshot(path, snapshot.Snapshot({}, arrays))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [each.name for each in tmp_path.iterdir()] == ["run.checkpoint"]
    found = snapshot.read_snapshot(path)
    assert found.description == {"parts": ["a"]} and list(found.arrays) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)
    with np.load(io.BytesIO(path.read_bytes()[path.read_bytes().index(b"PK") :])) as stored:  # as NumPy reads it
        np.testing.assert_array_equal(stored["step"], 3)


@pytest.mark.thorough
def test_a_ledger_that_has_lost_lines_says_so(tmp_path):
    def run(stop):
        trainer = made()
        trainer.compile("sgd", run_eagerly=True)
        given = [UpdateLogger(tmp_path / "run.jsonl"), Checkpoint(tmp_path, every=1), *([Stop(stop)] if stop else [])]
        try:
            trainer.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=given)
        except Stopped:
            pass

    run(4)
    lines = (tmp_path / "run.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run.jsonl").write_text("".join(lines[:1]))
    with pytest.warns(RuntimeWarning, match="(?s)must hold the lines before its checkpoint.*Lines are missing"):
        run(None)
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 1 + 6 - 3


def test_a_folder_that_cannot_be_used_is_refused_before_training(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for folder in ("file", "file/inner"):
        with pytest.raises(ValueError, match="(?s)`directory` must be a folder that can be written.*Choose another folder"):
            fit(made(), tmp_path / folder)
    monkeypatch.setattr("pathlib.Path.mkdir", refusing(errno.EACCES))
    with pytest.raises(ValueError, match="(?s)must be a folder that can be written.*Permission denied"):
        fit(made(), tmp_path / "other")
    monkeypatch.undo()
    (tmp_path / "run" / "run.checkpoint").mkdir(parents=True)
    with pytest.raises(ValueError, match="(?s)must be a whole file.*which cannot be read"):
        fit(made(), tmp_path / "run")


HOLD = "import fcntl, sys; f = open(sys.argv[1], 'a+b'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"


def test_two_processes_cannot_have_one_folder(tmp_path):
    fit(made(), tmp_path, stop=2)
    before = (tmp_path / "run.checkpoint").read_bytes()
    command = [sys.executable, "-S", "-c", HOLD, str(tmp_path / "run.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="(?s)must be the folder of one run. Received: .*another process trains"):
            fit(made(), tmp_path)
        other.kill()
    assert (tmp_path / "run.checkpoint").read_bytes() == before
    fit(made(), tmp_path)


def test_a_folder_of_the_version_before_is_refused(tmp_path):
    (tmp_path / "run.checkpoint").write_bytes(b"multihead checkpoint 1\n" + b"0" * 100)
    with pytest.raises(ValueError, match="of format 1, while this is 2. End the run with the version that began it"):
        fit(made(), tmp_path)
