"""Three ways to tell whether a row trains as it should; each compares with something that knows nothing of the pair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead import callbacks
from tests.helpers import tiny
from tests.helpers.prepared import two_devices
from tests.pairs.feed import fit_arguments
from tests.pairs.model import trainer_of
from tests.pairs.tape import Tape


class Killed(Exception):
    """What ends a run in the middle."""


class Kill(keras.callbacks.Callback):
    """Ends a run after a number of updates."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.update_count.numpy()) >= self.after:
            raise Killed


def callbacks_of(row: dict[str, str], folder: Path, resumed: bool = False) -> list[Any]:
    kind, found = row["callbacks"], []
    monitored = "val_loss" if row["validation"] != "none" else "loss"
    if kind == "ledger":
        found = [callbacks.UpdateLogger(folder / "ledger.jsonl")] if row["telemetry"] != "none" else []
    elif kind == "per_head":
        found = [callbacks.HeadEarlyStopping(patience=5)] if row["validation"] != "none" else []
    elif kind == "keras":
        found = [
            keras.callbacks.EarlyStopping(monitored, patience=9, mode="min"),
            keras.callbacks.ReduceLROnPlateau(monitored, patience=9, mode="min"),
            keras.callbacks.ModelCheckpoint(str(folder / "best.weights.h5"), save_weights_only=True),
            keras.callbacks.CSVLogger(str(folder / "log.csv"), append=resumed),
        ]
        if row["optimizer"] == "schedule":
            found.pop(1)  # Keras: a schedule cannot be set
    return found


def scope(row: dict[str, str]) -> Any:
    return (two_devices() if row["devices"] == "two" else tf.distribute.get_strategy()).scope()


def trained(row: dict[str, str], folder: Path, *, more: Callable[[], list[Any]] = list, **changed: Any) -> Any:
    """The trainer after the row's `fit`, and Keras's history."""
    folder.mkdir(parents=True, exist_ok=True)
    with scope(row):
        trainer = trainer_of(row, **changed)
    given = [*callbacks_of(row, folder), *more()]
    if row["callbacks"] == "checkpoint":
        given.append(callbacks.Checkpoint(folder / "run", every=1))
    history = trainer.fit(**fit_arguments(row), callbacks=given)
    return trainer, history


def values(trainer: Any) -> list[np.ndarray]:
    modules = [trainer.encoder, *(head.module for head in trainer.heads.values())]
    return [np.asarray(value) for module in modules for value in module.get_weights()]


def has_tape(row: dict[str, str]) -> bool:
    """Whether the tape can make the same updates: not with random draws, nor statistics of a batch's parts on devices."""
    if row["encoder"] == "dropout" or row["callbacks"] == "per_head":
        return False
    return not (row["encoder"] == "batch_normalization" and row["devices"] == "two")


def check_tape(row: dict[str, str], actual: list[np.ndarray]) -> None:
    """The weights are those of a tape in float64."""
    tape = Tape(row)
    tape.train()
    wanted = tape.values()
    largest = max(np.abs(value).max() for value in wanted)
    for one, other in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=3e-5 * largest)


def check_other_mode(row: dict[str, str], folder: Path, actual: list[np.ndarray]) -> None:
    """An eager run ends where the graph ends, and the other way round."""
    eager = row["mode"] != "eager"
    changed = {"run_eagerly": eager, "jit_compile": False, **({"steps_per_execution": 1} if eager else {})}
    trainer, _ = trained(row, folder, **changed)
    for one, other in zip(values(trainer), actual, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


def draws_alike(row: dict[str, str]) -> bool:
    """Whether random numbers are the same in each mode and with a `Checkpoint`.

    Keras 2's dropout does not promise it, and XLA draws other numbers than TensorFlow.
    """
    return row["encoder"] != "dropout" or (hasattr(keras, "ops") and row["mode"] != "xla")


def is_resumable(row: dict[str, str]) -> bool:
    """Whether a stopped run continues with the same random numbers: not Keras 2's dropout on several replicas."""
    return row["encoder"] != "dropout" or row["devices"] == "one" or hasattr(keras, "ops")


def check_resumed(row: dict[str, str], folder: Path, whole: Any, history: Any) -> None:
    """A run that is killed twice and resumed ends with the bits and the logs of one that was not."""

    def run(kill: int | None, folder: Path) -> Any:
        folder.mkdir(parents=True, exist_ok=True)
        with scope(row):
            trainer = trainer_of(row)
        given = [*callbacks_of(row, folder, resumed=True), callbacks.Checkpoint(folder / "run", every=1)]
        if kill is not None:
            given.append(Kill(kill))
        return trainer, trainer.fit(**fit_arguments(row), callbacks=given)

    if not draws_alike(row):
        whole, history = run(None, folder / "whole")
    for after in (2, 3):
        try:
            run(after, folder / "killed")
        except Killed:
            continue
    again, resumed = run(None, folder / "killed")
    for one, other in zip(tiny.values(whole.variables), tiny.values(again.variables), strict=True):
        np.testing.assert_array_equal(one, other)
    assert history.history.keys() == resumed.history.keys()
    for name, statistics in history.history.items():
        np.testing.assert_array_equal(statistics, resumed.history[name], err_msg=name)


def check(row: dict[str, str], folder: Path) -> None:
    """A row meets every oracle that it can meet."""
    trainer, history = trained(row, folder / "fit")
    actual = values(trainer)
    if draws_alike(row):
        check_other_mode(row, folder / "mode", actual)
    if has_tape(row):
        check_tape(row, actual)
    if is_resumable(row):
        check_resumed(row, folder / "resume", trainer, history)
