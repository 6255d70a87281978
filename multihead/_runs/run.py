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
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from multihead._data.arguments import Call
from multihead._data.data import digest_of
from multihead._ground.keras import callbacks_of, steps_at_once
from multihead._ground.random import RandomStream, random_numbers, restore_random_numbers
from multihead._ground.replicas import is_chief
from multihead._ground.types import Callback, Config, Function, Given, Logs, Nested, Trainer
from multihead._runs.callbacks import CallbackStates, continue_files
from multihead._runs.checkpoint import Checkpoint
from multihead._runs.snapshot import Snapshot, locked
from multihead._runs.variables import describe_data, draw_from_variables, has_unseeded_shuffle

# Which file a trainer's latest run was saved in, and how many updates the trainer had made when the run ended.
_LATEST: weakref.WeakKeyDictionary[Trainer, tuple[Path, int]] = weakref.WeakKeyDictionary()


def checkpoint_of(callbacks: Callback | Sequence[Callback]) -> tuple[Checkpoint | None, Callback | Sequence[Callback]]:
    """The `Checkpoint` among the callbacks of a `fit`, and the others; without one, the callbacks as they are.

    Keras's `BackupAndRestore` is replaced by one, which saves at the same times into the same folder.
    """
    found, others = [], []
    for callback in callbacks_of(callbacks):
        if type(callback) is keras.callbacks.BackupAndRestore and callback.save_freq:
            found.append(Checkpoint(callback.backup_dir, every=callback.save_freq, keep=not callback.delete_checkpoint))
        elif isinstance(callback, Checkpoint):
            found.append(callback)
        else:
            others.append(callback)
    if len(found) > 1:
        raise ValueError(
            "`callbacks` must have at most one `Checkpoint` or `BackupAndRestore`. "
            f"Received: {len(found)}. Leave the others out."
        )
    return (found[0], others) if found else (None, callbacks)


@contextmanager
def opened(trainer: Trainer, checkpoint: Checkpoint | None) -> Iterator[Run | None]:
    """A context in which a `fit` has locked the folder of a checkpoint; None without a checkpoint."""
    if checkpoint is None:
        yield None
        return
    folder = checkpoint.directory
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_ours = not is_chief(trainer) or stack.enter_context(locked(folder / "run.lock"))
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
        run = Run(trainer, checkpoint)
        try:
            yield run
        finally:
            run.stream.end()
            if run.start:
                _LATEST[trainer] = checkpoint.path.resolve(), trainer.num_updates


class Run:
    """A run in a folder that no other process trains in.

    Attributes:
        trainer: The trainer.
        checkpoint: Where and when the run is saved.
        snapshot: What the run continues from; None in a new run.
        stream: The global random numbers from which the data are made.
        start: What holds of the whole run: the seed of its shuffles, its data as text, the number of updates before it, and
            the random numbers when it began. Empty before `begin`.
    """

    def __init__(self, trainer: Trainer, checkpoint: Checkpoint) -> None:
        self.trainer, self.checkpoint, self.snapshot = trainer, checkpoint, checkpoint.read()
        self.stream = RandomStream()
        self.start: Config = {}
        if self.snapshot is not None:  # before data are read and variables created, which may draw
            restore_random_numbers(self.snapshot.description["start"]["entered"])
        self._entered = random_numbers()

    def begin(self, call: Call, batches_per_step: int) -> Call:
        """Loads the checkpoint, if there is one; returns the call with batches in the same order in each process."""
        if call.data.specs is None:
            raise ValueError(
                "`Checkpoint` requires data whose shapes are known before training. "
                f"Received: x of type {type(call.data.x).__name__}. Pass arrays, a `tf.data.Dataset` or a generator."
            )
        for argument, data in (("x", call.data), ("validation_data", call.validation)):
            if has_unseeded_shuffle(data):
                warnings.warn(
                    f"`{argument}` is shuffled without a seed. If this run is stopped and continued, its batches come in "
                    "another order. Pass `seed=` to `shuffle`, or call `keras.utils.set_random_seed` at the beginning.",
                    RuntimeWarning,
                    stacklevel=2,
                )
        draw_from_variables(self.trainer)
        start: Config = {
            # Taken from the state, not drawn, so that nothing else draws other numbers than without a checkpoint.
            "seed": zlib.crc32(repr(random.getstate()).encode()),
            "random": random_numbers(),
            "entered": self._entered,
            "updates": self.trainer.num_updates,
            "data": describe_data(call),
            "first": None if call.data.first is None else digest_of(call.data.first),
        }
        self.start = start if self.snapshot is None else self._load(self.snapshot, start, call.others["epochs"])
        self.stream.start()
        return call.in_fixed_order(int(self.start["seed"]), batches_per_step)

    def _load(self, snapshot: Snapshot, present: Config, epochs: int) -> Config:
        """Checks and loads the checkpoint, given what holds of this `fit`; returns what holds of its run.

        Nothing that the trainer has learned may be lost by that: the trainer is either where the run began, as in the same
        program started again, or where the run, or its last checkpoint, has ended.
        """
        saved, place, folder = snapshot.description["start"], snapshot.description["place"], str(self.checkpoint.directory)
        began, ended, updates = saved["updates"], snapshot.description["updates"], present["updates"]
        was_latest = _LATEST.get(self.trainer) == (self.checkpoint.path.resolve(), updates)
        if was_latest and updates == ended != began and self._is_over(epochs):
            raise ValueError(
                "`callbacks` must have a `Checkpoint` of a run that has not ended. Received: the folder "
                f"{folder!r}, whose run this trainer has ended after {place[0]} epochs, with epochs={epochs}. Pass more "
                "`epochs` to make the run longer, or another folder for another run."
            )
        if not was_latest and updates not in (began, ended):
            raise ValueError(
                "`callbacks` must have a `Checkpoint` of this trainer's run, or what was trained since would be lost. "
                f"Received: a trainer after {updates} updates; the run in {folder!r} began after {began} and was saved "
                f"after {ended}. Choose another folder to train on, or call the checkpoint's `load` to go back."
            )
        is_compared = is_chief(self.trainer)  # the data of the first worker are saved; another one may read other parts
        if is_compared and saved["data"] != present["data"]:
            self.checkpoint.refuse("the data of `fit`", "Pass the data as they were", saved["data"], present["data"])
        self.checkpoint.load_snapshot(self.trainer, snapshot)
        if is_compared and saved["first"] != present["first"]:
            warnings.warn(
                "`x` does not repeat itself: its first batch differs from that of the run that is continued, so the batches "
                "that follow may differ, too. Make batches from a seed, and pass a new generator to each `fit`.",
                RuntimeWarning,
                stacklevel=2,
            )
        restore_random_numbers(saved["random"])
        return dict(saved)

    def _is_over(self, epochs: int) -> bool:
        """Whether a run of so many epochs has ended with the checkpoint."""
        if self.snapshot is None:
            return False
        epoch, batch = self.snapshot.description["place"]
        return epoch >= epochs or bool(self.snapshot.description["stopped"] and not batch)

    def with_callbacks(self, call: Call) -> Call:
        """The call whose callbacks save the run, and are called from the place of the checkpoint on."""
        steps, epochs, verbose = (call.others[name] for name in ("steps_per_epoch", "epochs", "verbose"))
        if steps is None and isinstance(call.data.x, tf.data.Dataset):
            steps = int(call.data.x.cardinality())
        callbacks = RunCallbacks(
            self,
            call.others["callbacks"],
            is_over=self._is_over(epochs),
            verbose=1 if verbose == "auto" else verbose,
            epochs=epochs,
            steps=steps if steps is None or steps >= 0 else None,
        )
        return call.with_others(callbacks=callbacks, **({"initial_epoch": epochs} if self._is_over(epochs) else {}))


class RunCallbacks(keras.callbacks.CallbackList):
    """The callbacks of a run: they are called from the place of its checkpoint on, and the run is saved after them."""

    callbacks: list[Callback]

    def __init__(self, run: Run, callbacks: Callback | Sequence[Callback], *, is_over: bool, **params: Given) -> None:
        self._run, self._trainer, self._checkpoint, self._snapshot = run, run.trainer, run.checkpoint, run.snapshot
        self._place = (0, 0) if run.snapshot is None else tuple(run.snapshot.description["place"])
        self._is_over, self._is_replaying, self._was_interrupted = is_over, False, False
        self._epoch, self._batch, self._since = 0, 0, 0
        super().__init__(callbacks, add_history=True, add_progbar=params["verbose"] != 0, model=run.trainer, **params)
        self._called = self.callbacks

    def on_train_begin(self, logs: Logs = None) -> None:
        """Called by Keras."""
        if self._snapshot is not None:
            continue_files(self.callbacks, self._place[0])
        super().on_train_begin(logs)
        self._states = CallbackStates(self.callbacks)
        if self._is_over:
            self._reach()
            if self.params["verbose"]:
                folder = self._checkpoint.directory
                sys.stdout.write(f"The run in {folder} has ended; its result is loaded, and nothing is trained.\n")
        elif self._snapshot is not None:  # until its place, steps only draw their batches, and no callback is called
            self._is_replaying, self.callbacks = True, []
            self._steps = self._trainer.train_function, self._trainer.test_function
            metrics = self._trainer.log_metrics
            self._trainer.train_function = self._drawing(dict.fromkeys([] if metrics is None else metrics.names(), 0.0))
            self._trainer.test_function = self._drawing({})

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Called by Keras."""
        self._epoch, self._batch = epoch, 0
        if self._is_replaying and (epoch, 0) == self._place:
            self._reach()
            for metric in self._trainer.metrics:
                metric.reset_state()
        if epoch == self._place[0]:
            self.callbacks = self._called
        super().on_epoch_begin(epoch, logs)
        if self._is_replaying:
            self.callbacks = []

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Called by Keras."""
        done, self._batch = batch + 1 - self._batch, batch + 1
        if self._is_replaying:
            if (self._epoch, self._batch) >= self._place:
                self._reach()
            return
        super().on_train_batch_end(batch, logs)
        self._since += done
        if self._was_interrupted or self._checkpoint.is_due(self._since):
            self._save(self._epoch, self._batch)
        self._end_if_interrupted()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Called by Keras."""
        super().on_epoch_end(epoch, logs)
        if not self._is_replaying:
            self._save(epoch + 1, 0)
            self._end_if_interrupted()

    def on_train_end(self, logs: Logs = None) -> None:
        """Called by Keras."""
        self.callbacks = self._called
        super().on_train_end(logs)
        self._checkpoint.end(self._trainer)

    def _drawing(self, logs: dict[str, float]) -> Function:
        """A step of Keras that only draws its batches, and returns the same logs each time."""

        def step(iterator: Iterator[Nested]) -> dict[str, float]:
            next(iterator)
            for _ in range(steps_at_once(self._trainer) - 1):
                next(iterator, None)
            return dict(logs)

        return step

    def _end_replay(self) -> None:
        if self._is_replaying:
            self._is_replaying, self.callbacks = False, self._called
            self._trainer.train_function, self._trainer.test_function = self._steps

    def _reach(self) -> None:
        """Restores everything: from here on, the run continues."""
        snapshot = self._snapshot
        assert snapshot is not None  # noqa: S101
        self._end_replay()
        self._checkpoint.assign(self._trainer, snapshot)
        self._states.restore(snapshot.description["callbacks"], snapshot.arrays)
        restore_random_numbers(snapshot.description["random"])
        self._trainer.stop_training = snapshot.description["stopped"]

    def _save(self, epoch: int, batch: int) -> None:
        self._since = 0
        arrays: dict[str, np.ndarray] = {}
        self._checkpoint.save(
            self._trainer,
            {
                "place": [epoch, batch],
                "updates": self._trainer.num_updates,
                "stopped": bool(self._trainer.stop_training),
                "callbacks": self._states.save(arrays),
                "random": random_numbers(),
                "start": dict(self._run.start),
            },
            arrays,
        )

    def _end_if_interrupted(self) -> None:
        if self._was_interrupted:
            place = f"epoch {self._epoch + 1}, batch {self._batch}"
            raise KeyboardInterrupt(
                f"Interrupted after {place}. The run is saved in {self._checkpoint.directory}: "
                "the same call of `fit`, with a `Checkpoint` of this folder, continues it."
            )

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which Ctrl-C ends the run after the present step, when it is saved; a second one ends it at once."""
        with ExitStack() as stack:
            stack.callback(self._end_replay)
            if threading.current_thread() is threading.main_thread():
                before: Given = signal.getsignal(signal.SIGINT)
                stack.callback(signal.signal, signal.SIGINT, before)

                def note(number: int, frame: object) -> None:
                    self._was_interrupted = True
                    signal.signal(signal.SIGINT, before)

                signal.signal(signal.SIGINT, note)
            try:
                yield
            except KeyboardInterrupt as error:
                if error.args:
                    sys.stderr.write(f"\n{error}\n")
                raise
