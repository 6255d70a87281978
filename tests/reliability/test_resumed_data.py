"""Runs on every form of data, stopped at any call of a callback: the resumed run repeats batches, statistics and the ledger."""

from __future__ import annotations

import inspect
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead.callbacks import Checkpoint, UpdateLogger
from tests.helpers import tiny
from tests.helpers.cases import pairwise, quick

pytestmark = [
    pytest.mark.usefixtures("eager_updates"),
    pytest.mark.filterwarnings("ignore:Epoch .*updates (was|were) skipped"),
]

X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
Y = {"a": X.sum(1, keepdims=True), "b": X[:, :1] - X[:, 1:2]}
_Sequence = keras.utils.PyDataset if hasattr(keras.utils, "PyDataset") else keras.utils.Sequence


class Drawn(_Sequence):
    """Batches to which global random numbers are added."""

    def __len__(self):
        return 3

    def __getitem__(self, place):
        x = X[4 * place : 4 * place + 4] + np.random.normal(size=(4, 3)).astype("float32") * 0.1
        return x, {name: y[4 * place : 4 * place + 4] for name, y in Y.items()}


def endless(draw):
    """Batches of a permutation that is drawn at the begin of a pass; the second batch makes an update that is skipped."""
    number = 0
    while True:
        order = draw()
        for at in range(0, 12, 4):
            number += 1
            rows = order[at : at + 4]
            yield X[rows] * (np.inf if number == 2 else 1.0), {name: y[rows] for name, y in Y.items()}


def permuted_by_numpy():
    return np.random.permutation(12)


def permuted_by_python():
    return random.sample(range(12), 12)


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(12, seed=3).batch(4)


TRAIN = {
    "arrays": lambda: {"x": X, "y": Y, "batch_size": 4},
    "dataset": lambda: {"x": dataset()},
    "numpy": lambda: {"x": endless(permuted_by_numpy), "steps_per_epoch": 3},
    "python": lambda: {"x": endless(permuted_by_python), "steps_per_epoch": 3},
    "sequence": lambda: {"x": Drawn()},
}
VALID = {
    "arrays": lambda: {"validation_data": (X[:5], {name: y[:5] for name, y in Y.items()})},
    "dataset": lambda: {"validation_data": dataset().take(2)},
    "generator": lambda: {"validation_data": endless(permuted_by_numpy), "validation_steps": 2},
    "sequence": lambda: {"validation_data": Drawn(), "validation_steps": 2},
}


class Stopped(Exception):
    """What ends a run."""


class Counting(keras.callbacks.Callback):
    """Draws global random numbers if the data do not, and stops the run at the given call of it."""

    def __init__(self, stop, draws):
        super().__init__()
        self.stop, self.draws, self.calls, self.drawn = stop, draws, 0, 0.0

    def get_run_state(self):
        return {"drawn": self.drawn}

    def set_run_state(self, state):
        self.drawn = state["drawn"]

    def _count(self, number=0, logs=None):
        self.calls += 1
        self.drawn = float(np.random.random() + random.random()) if self.draws else 0.0
        if self.calls == self.stop:
            raise Stopped

    on_epoch_begin = on_train_batch_begin = on_train_batch_end = on_test_begin = on_test_end = on_epoch_end = _count


CALLS = 3 * 2 + 4
"""The calls of an epoch: two for each batch, and four for its begin and end and for validation."""


def run(folder, train, valid, every, telemetry, stop=None):
    keras.utils.set_random_seed(3)
    trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
    for name in Y:
        trainer.add_head(name, keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.SGD(0.05), run_eagerly=True, telemetry=telemetry)
    counting = Counting(stop, draws={train, valid} <= {"arrays", "dataset"})
    given = [UpdateLogger(folder / "run.jsonl"), counting, Checkpoint(folder, every=every)]
    arguments = {**TRAIN[train](), **VALID[valid](), "epochs": 2, "verbose": 0}
    history = trainer.fit(**arguments, callbacks=given).history
    statistics = {name: np.array(values, "float64").tobytes() for name, values in history.items()}
    return tiny.values(trainer.weights), statistics, ledger_of(folder), counting.drawn


def ledger_of(folder):
    return (folder / "run.jsonl").read_text()


def stopped(folder, *args, stop):
    try:
        run(folder, *args, stop=stop)
    except Stopped:
        return True
    return False


ROWS = pairwise(list(TRAIN), list(VALID), (1, 2), ("norms", "full"))


@pytest.mark.filterwarnings("ignore:`path` must have no lines of updates after")  # of a run that stopped before it was saved
@pytest.mark.parametrize(("number", "row"), quick(1, list(enumerate(ROWS))))
def test_a_resumed_run_repeats_every_form_of_data(number, row, tmp_path):
    folders = [tmp_path / "whole", tmp_path / "cut"]
    for folder in folders:
        folder.mkdir()
    weights, figures, ledger, drawn = run(folders[0], *row)
    # Over all rows, runs stop at every call of an epoch, between the last update and the end of validation too.
    stops = ((7 + 3 * number) % CALLS + 1, (3 + 7 * number) % CALLS + 1)
    assert stopped(folders[1], *row, stop=stops[0])
    stopped(folders[1], *row, stop=stops[1])
    again = run(folders[1], *row)
    for one, other in zip(weights, again[0], strict=True):
        np.testing.assert_array_equal(one, other)
    assert again[1:] == (figures, ledger, drawn)


MONITORING = [
    each
    for each in vars(keras.callbacks).values()
    if isinstance(each, type) and "min_delta" in inspect.signature(each.__init__).parameters
]
"""Keras's callbacks that tell small changes from improvements."""


class Statistics(keras.callbacks.Callback):
    """Gives each epoch its statistic, and stops the run before one."""

    def __init__(self, stop):
        super().__init__()
        self.stop = stop

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.stop:
            raise Stopped

    def on_epoch_end(self, epoch, logs=None):
        logs["statistic"] = (1.0, 0.97, 0.9, 0.89, 0.91)[epoch]


@pytest.mark.thorough
def test_callbacks_of_keras_go_on_as_they_were(tmp_path):
    assert len(MONITORING) >= 2

    def states(folder, stop=None):
        keras.utils.set_random_seed(3)
        trainer = MultiHeadTrainer(keras.layers.Dense(2))
        trainer.add_head("a", keras.layers.Dense(1), "mse")
        trainer.compile("sgd", run_eagerly=True, telemetry=None)
        given = [kind("statistic", mode="min", min_delta=0.05, patience=2) for kind in MONITORING]
        try:
            trainer.fit(X, Y["a"], epochs=5, verbose=0, callbacks=[Statistics(stop), *given, Checkpoint(folder)])
        except Stopped:
            return None
        names = ("best", "wait", "min_delta", "best_epoch", "stopped_epoch", "cooldown_counter")
        return [{name: vars(each)[name] for name in names if name in vars(each)} for each in given]

    whole = states(tmp_path / "whole")
    assert whole[0]["best"] == 0.9
    assert states(tmp_path / "cut", 3) is None
    assert states(tmp_path / "cut") == whole


class Densified(keras.layers.Layer):
    """A dense layer on dense or sparse inputs."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4, activation="tanh")

    def call(self, x):
        return self.dense(tf.sparse.to_dense(x) if isinstance(x, tf.SparseTensor) else x)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("steps", [2, 1])
@pytest.mark.parametrize(("x", "shuffle"), [(X, True), (X, "batch"), (tf.sparse.from_dense(X), True)])
def test_a_process_with_another_global_seed_goes_on_in_the_same_order(tmp_path, x, shuffle, steps):
    def trained(folder, seed, stop=None):
        keras.utils.set_random_seed(seed)
        trainer = MultiHeadTrainer(Densified())
        for name in Y:
            trainer.add_head(name, keras.layers.Dense(1), "mse")
        trainer.compile(keras.optimizers.SGD(0.05), gradient_accumulation_steps=steps)
        callbacks = [Counting(stop, draws=False), Checkpoint(tmp_path / folder, every=1)]
        trainer.fit(x, Y, batch_size=2, epochs=2, shuffle=shuffle, verbose=0, callbacks=callbacks)
        return tiny.values(trainer.weights)

    whole = trained("whole", seed=3)
    with pytest.raises(Stopped):
        trained("cut", seed=3, stop=5)
    for one, other in zip(whole, trained("cut", seed=4), strict=True):
        np.testing.assert_array_equal(one, other)
