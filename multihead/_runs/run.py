"""A `fit` with a `Checkpoint`: it locks the folder, begins or continues the run there, and saves it.

A continued run calls Keras's loop from the beginning, so that the data pass through the same pipeline and shuffle as before,
but until the place of the checkpoint its steps only draw their batches, and no callback is called.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import warnings
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from multihead._data.call import FitCall
from multihead._data.data import Data, digest_of
from multihead._ground.keras import callbacks_of, steps_at_once
from multihead._ground.random import random_numbers, restore_random_numbers
from multihead._ground.replicas import is_chief
from multihead._ground.types import Callback, Callbacks, Config, Dataset, Logs, Nested, Trainer
from multihead._runs.callbacks import CallbackStates, continue_files
from multihead._runs.checkpoint import LOCK, Checkpoint
from multihead._runs.snapshot import locked
from multihead._runs.variables import describe_data, draw_from_variables

# Which file a trainer's latest run was saved in, and how many updates the trainer had made when the run ended.
_LATEST: weakref.WeakKeyDictionary[Trainer, tuple[Path, int]] = weakref.WeakKeyDictionary()


def checkpoint_of(callbacks: Callback | Sequence[Callback]) -> tuple[Checkpoint | None, Callback | Sequence[Callback]]:
    """The `Checkpoint` or `BackupAndRestore` among the callbacks of a `fit`, and the others; without one, the callbacks."""
    checkpoints, others = [], []
    for callback in callbacks_of(callbacks):
        if type(callback) is keras.callbacks.BackupAndRestore and callback.save_freq:
            checkpoints.append(
                Checkpoint(callback.backup_dir, every=callback.save_freq, keep=not callback.delete_checkpoint)
            )
        elif isinstance(callback, Checkpoint):
            checkpoints.append(callback)
        else:
            others.append(callback)
    if len(checkpoints) > 1:
        raise ValueError(
            "`callbacks` must have at most one `Checkpoint` or `BackupAndRestore`. "
            f"Received: {len(checkpoints)}. Leave the others out."
        )
    return (checkpoints[0], others) if checkpoints else (None, callbacks)


@contextmanager
def open_run(trainer: Trainer, checkpoint: Checkpoint | None) -> Iterator[SavedRun | None]:
    """A context in which a `fit` has locked the folder of a checkpoint; None without a checkpoint."""
    if checkpoint is None:
        yield None
        return
    folder = checkpoint.directory
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_ours = not is_chief(trainer) or stack.enter_context(locked(folder / LOCK))
        except OSError as error:
            raise ValueError(
                f"`directory` must be a folder that can be written. Received: {str(folder)!r}, with {error}. Choose another "
                "folder, or change its permissions."
            ) from error
        if not is_ours:
            raise ValueError(
                f"`directory` must be the folder of one run. Received: {str(folder)!r}, in which another process trains. "
                "Wait until it ends, or choose another folder."
            )
        run = SavedRun(trainer, checkpoint)
        try:
            yield run
        finally:
            if run.start:
                _LATEST[trainer] = checkpoint.path.resolve(), trainer.num_updates


class SavedRun:
    """A run in a folder that no other process trains in."""

    def __init__(self, trainer: Trainer, checkpoint: Checkpoint) -> None:
        self.trainer, self.checkpoint = trainer, checkpoint
        self.snapshot = checkpoint.read()  # what the run continues from; None in a new run
        self.place = 0, 0  # where the snapshot was taken, an epoch and a number of batches
        self.is_over = False  # whether the run has ended with the snapshot; known after `begin`
        self.start: Config = {}  # the description of the run from when it began; empty before `begin`
        if self.snapshot is not None:  # before data are read and variables created, which may draw
            self.place = tuple(self.snapshot.description["place"])
            restore_random_numbers(self.snapshot.description["start"]["entered"])
        self._entered = random_numbers()

    def begin(self, data: Data, validation: Data | None, call: FitCall) -> int:
        """Loads the checkpoint, if there is one; returns the seed with which the data are shuffled in every process."""
        if data.specs is None:
            raise ValueError(
                "`Checkpoint` requires data whose shapes are known before training. "
                f"Received: x of type {type(data.x).__name__}. Pass arrays, a `tf.data.Dataset` or a generator."
            )
        draw_from_variables(self.trainer)
        start: Config = {
            # Taken from the state, not drawn, so that everything else draws the same numbers as without a checkpoint.
            "seed": zlib.crc32(repr(random.getstate()).encode()),
            "random": random_numbers(),
            "entered": self._entered,
            "updates": self.trainer.num_updates,
            "data": describe_data(data, validation, call),
            "first": None if data.first is None else digest_of(data.first),
        }
        if self.snapshot is not None:
            self._check(self.snapshot.description, start, call.epochs)
            self.checkpoint.load(self.trainer, self.snapshot)
            start = self.snapshot.description["start"]
            restore_random_numbers(start["random"])
        self.start = start
        return int(start["seed"])

    def _check(self, saved: Config, current: Config, epochs: int) -> None:
        """Checks that the description of a checkpoint fits that of this `fit`.

        Nothing that the trainer has learned may be lost: the trainer is either where the run began, as in the same program
        started again, or where the run, or its last checkpoint, has ended.
        """
        self.is_over = self.place[0] >= epochs or (saved["stopped"] and not self.place[1])
        began, ended, updates = saved["start"]["updates"], saved["updates"], current["updates"]
        folder = str(self.checkpoint.directory)
        was_latest = _LATEST.get(self.trainer) == (self.checkpoint.path.resolve(), updates)
        if was_latest and updates == ended != began and self.is_over:
            raise ValueError(
                "`callbacks` must have a `Checkpoint` of a run that has not ended. Received: the folder "
                f"{folder!r}, whose run this trainer has ended after {self.place[0]} epochs, with epochs={epochs}. Pass "
                "more `epochs` to make the run longer, or another folder for another run."
            )
        if not was_latest and updates not in (began, ended):
            raise ValueError(
                "`callbacks` must have a `Checkpoint` of this trainer's run, or what was trained since would be lost. "
                f"Received: a trainer after {updates} updates; the run in {folder!r} began after {began} and was saved "
                f"after {ended}. Choose another folder to train on, or call the checkpoint's `load` to go back."
            )
        if not is_chief(self.trainer):  # the data of the first worker are saved; another one may read other parts
            return
        start = saved["start"]
        if start["data"] != current["data"]:
            self.checkpoint.refuse("the data of `fit`", "Pass the data as they were", start["data"], current["data"])
        if start["first"] != current["first"]:
            warnings.warn(
                "`x` is not reproducible: its first batch differs from that of the run that is continued, so the batches "
                "that follow may differ, too. Make batches from a seed, and pass a new generator to each `fit`.",
                RuntimeWarning,
                stacklevel=2,
            )

    def around(self, call: FitCall, x: Dataset) -> tuple[FitCall, RunCallbacks]:
        """The call with callbacks that save the run and are called from the checkpoint's place on; and these callbacks."""
        steps, verbose = call.steps_per_epoch, call.verbose
        if steps is None and isinstance(x, tf.data.Dataset):
            steps = int(x.cardinality())
        callbacks = RunCallbacks(
            self,
            call.callbacks,
            verbose=1 if isinstance(verbose, str) else verbose,
            epochs=call.epochs,
            steps=steps if steps is None or steps >= 0 else None,
        )
        initial_epoch = call.epochs if self.is_over else call.initial_epoch
        return replace(call, callbacks=callbacks, initial_epoch=initial_epoch), callbacks


class RunCallbacks(keras.callbacks.CallbackList):
    """The callbacks of a run: they are called from the place of its checkpoint on, and the run is saved after them."""

    callbacks: list[Callback]

    def __init__(self, run: SavedRun, callbacks: Callbacks, *, verbose: int, epochs: int, steps: int | None) -> None:
        self._run, self._trainer = run, run.trainer
        self._is_replaying, self._was_interrupted = False, False
        self._epoch, self._batch, self._since = 0, 0, 0
        params = {"verbose": verbose, "epochs": epochs, "steps": steps}
        super().__init__(callbacks, add_history=True, add_progbar=verbose != 0, model=run.trainer, **params)
        self._called = self.callbacks

    def on_train_begin(self, logs: Logs = None) -> None:
        run, metrics = self._run, self._trainer.log_metrics
        if run.snapshot is not None:
            continue_files(self.callbacks, run.place[0])
        super().on_train_begin(logs)
        self._states = CallbackStates(self.callbacks)
        self._steps = self._trainer.train_function, self._trainer.test_function
        if run.is_over:
            self._reach()
            if self.params["verbose"]:
                folder = run.checkpoint.directory
                sys.stdout.write(f"The run in {folder} has ended; its result is loaded, and nothing is trained.\n")
        elif run.snapshot is not None:  # until its place, steps only draw their batches, and no callback is called
            self._is_replaying, self.callbacks = True, []
            self._trainer.train_function = partial(self._draw, [] if metrics is None else metrics.names())
            self._trainer.test_function = partial(self._draw, [])

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._epoch, self._batch = epoch, 0
        if self._is_replaying and (epoch, 0) == self._run.place:
            self._reach()
            for metric in self._trainer.metrics:
                metric.reset_state()
        if epoch == self._run.place[0]:
            self.callbacks = self._called
        super().on_epoch_begin(epoch, logs)
        if self._is_replaying:
            self.callbacks = []

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        done, self._batch = batch + 1 - self._batch, batch + 1
        if self._is_replaying:
            if (self._epoch, self._batch) >= self._run.place:
                self._reach()
            return
        super().on_train_batch_end(batch, logs)
        self._since += done
        every = self._run.checkpoint.every
        if self._was_interrupted or (isinstance(every, int) and self._since >= every):
            self._save(self._epoch, self._batch)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_end(epoch, logs)
        if not self._is_replaying:
            self._save(epoch + 1, 0)

    def on_train_end(self, logs: Logs = None) -> None:
        self.callbacks = self._called
        super().on_train_end(logs)
        if not self._run.checkpoint.keep and is_chief(self._trainer):
            self._run.checkpoint.delete()

    def _draw(self, names: Sequence[str], iterator: Iterator[Nested]) -> dict[str, float]:
        """A step of Keras that only draws its batches."""
        next(iterator)
        for _ in range(steps_at_once(self._trainer) - 1):
            next(iterator, None)
        return dict.fromkeys(names, 0.0)

    def _reach(self) -> None:
        """Restores everything: from here on, the run continues."""
        snapshot = self._run.snapshot
        assert snapshot is not None  # noqa: S101
        self._is_replaying, self.callbacks = False, self._called
        self._trainer.train_function, self._trainer.test_function = self._steps
        self._run.checkpoint.assign(self._trainer, snapshot)
        self._states.restore(snapshot.description["callbacks"], snapshot.arrays)
        restore_random_numbers(snapshot.description["random"])
        self._trainer.stop_training = snapshot.description["stopped"]

    def _save(self, epoch: int, batch: int) -> None:
        """Saves the run; after Ctrl-C, ends it."""
        self._since = 0
        arrays: dict[str, np.ndarray] = {}
        description = {
            "place": [epoch, batch],
            "updates": self._trainer.num_updates,
            "stopped": bool(self._trainer.stop_training),
            "callbacks": self._states.save(arrays),
            "random": random_numbers(),
            "start": self._run.start,
        }
        self._run.checkpoint.save(self._trainer, description, arrays)
        if self._was_interrupted:
            raise KeyboardInterrupt(
                f"Interrupted after epoch {self._epoch + 1}, batch {self._batch}. The run is saved in "
                f"{self._run.checkpoint.directory}: the same call of `fit`, with a `Checkpoint` of this folder, continues."
            )

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which Ctrl-C ends the run after the current step, when it is saved; a second one ends it at once."""
        is_main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGINT)

        def note(number: int, frame: object) -> None:
            self._was_interrupted = True
            signal.signal(signal.SIGINT, before)

        try:
            if is_main:
                signal.signal(signal.SIGINT, note)
            yield
        except KeyboardInterrupt as error:
            if error.args:
                sys.stderr.write(f"\n{error}\n")
            raise
        finally:
            if self._is_replaying:
                self._trainer.train_function, self._trainer.test_function = self._steps
            if is_main:
                signal.signal(signal.SIGINT, before)
