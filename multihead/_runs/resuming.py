"""Runs that are resumed where they were stopped, within an epoch too, for `callbacks.Checkpoint`.

A resumed run calls Keras's loop from the beginning, so that the data pass through the same pipeline and shuffle as
before, but until the place of the checkpoint nothing is computed and no callback is called.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._data.data import Data
from multihead._ground.keras import use_seed_variables
from multihead._runs.callback_state import CallbackStates, continue_files, random_numbers, restore_random_numbers
from multihead._runs.checkpoint import Checkpoint
from multihead._runs.snapshot import Snapshot
from multihead._runs.variables import reset_metrics


def checkpoint_of(callbacks: Any) -> tuple[Checkpoint | None, list[Any]]:
    """The `Checkpoint` among the callbacks of a `fit`, and the other callbacks.

    Keras's `BackupAndRestore` is replaced by one, which saves at the same times into the same folder.

    Raises:
        ValueError: There are several.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    given = [] if callbacks is None else list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
    found, others = [], []
    for callback in given:
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
    return (found[0] if found else None), others


class Run(keras.callbacks.CallbackList):
    """The callbacks of a run that is saved or resumed.

    Args:
        trainer: The trainer.
        checkpoint: Where and when to save.
        callbacks: The other callbacks.
        snapshot: The checkpoint to continue from, whose variables are already loaded; or None.
        start: What holds of the whole run: the seed of its shuffles, and the random numbers when it began.
        params: The parameters of callbacks, as Keras sets them.
    """

    def __init__(
        self,
        trainer: Any,
        checkpoint: Checkpoint,
        callbacks: Sequence[Any],
        snapshot: Snapshot | None,
        start: Mapping[str, Any],
        **params: Any,
    ) -> None:
        self._trainer = trainer
        self._checkpoint = checkpoint
        self._snapshot = snapshot
        self._start = start
        self._target = (0, 0) if snapshot is None else tuple(snapshot.description["place"])
        self._is_over = snapshot is not None and is_over(snapshot, params["epochs"])
        self._names = dict.fromkeys(trainer.names_of_logs, 0.0)
        self._batches_left = 0
        self._epoch, self._batch, self._since = 0, 0, 0
        self.was_interrupted = False
        super().__init__(callbacks, add_history=True, add_progbar=params["verbose"] != 0, model=trainer, **params)

    @property
    def is_replaying(self) -> bool:
        """Whether the place of the checkpoint is not reached yet."""
        return self._snapshot is not None

    def on_train_begin(self, logs: Any = None) -> None:
        """Called by Keras."""
        if self._snapshot is not None:
            continue_files(self.callbacks, self._target[0])
        super().on_train_begin(logs)
        self._states = CallbackStates(self.callbacks)
        if self._is_over:
            self._reach()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        self._epoch, self._batch = epoch, 0
        if self._snapshot is None:
            super().on_epoch_begin(epoch, logs)
        elif epoch == self._target[0]:
            self._batches_left = self._target[1]
            if self._batches_left:
                super().on_epoch_begin(epoch, logs)
            else:
                self._reach()
                reset_metrics(self._trainer)
                super().on_epoch_begin(epoch, logs)

    def _reach(self) -> None:
        """Restores everything: from here on, the run continues."""
        snapshot: Any = self._snapshot
        self._checkpoint.assign(self._trainer, snapshot)
        self._states.restore(snapshot.description["callbacks"], snapshot.arrays)
        restore_random_numbers(snapshot.description["random"])
        self._trainer.stop_training = snapshot.description["stopped"]
        self._snapshot, self._batches_left = None, 0

    def pass_over(self, iterator: Any, number: int) -> dict[str, Any]:
        """Draws the batches of a step that was made before the checkpoint; returns logs of the right names."""
        next(iterator)
        for _ in range(number - 1):
            next(iterator, None)
        return self._names

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Called by Keras."""
        if self._snapshot is None:
            super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called by Keras."""
        done, self._batch = batch + 1 - self._batch, batch + 1
        if self._snapshot is not None:
            if self._epoch == self._target[0] and self._batch >= self._target[1]:
                self._reach()
            return
        super().on_train_batch_end(batch, logs)
        self._since += done
        if self.was_interrupted or self._checkpoint.is_due(self._since):
            self._save(self._epoch, self._batch)
        self._end_if_interrupted()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        if self._snapshot is None:
            super().on_epoch_end(epoch, logs)
            self._save(epoch + 1, 0)
            self._end_if_interrupted()

    def on_train_end(self, logs: Any = None) -> None:
        """Called by Keras."""
        super().on_train_end(logs)
        self._checkpoint.end(self._trainer)

    def _save(self, epoch: int, batch: int) -> None:
        self._since = 0
        arrays: dict[str, np.ndarray] = {}
        self._checkpoint.save(
            self._trainer,
            {
                "place": [epoch, batch],
                "stopped": bool(self._trainer.stop_training),
                "callbacks": self._states.save(arrays),
                "random": random_numbers(),
                "start": dict(self._start),
            },
            arrays,
        )

    def _end_if_interrupted(self) -> None:
        if self.was_interrupted:
            place = f"epoch {self._epoch + 1}, batch {self._batch}"
            raise KeyboardInterrupt(
                f"Interrupted after {place}. The run is saved in {self._checkpoint.directory}: "
                "run the same program again to continue."
            )


def is_over(snapshot: Snapshot, epochs: int) -> bool:
    """Whether a run of so many epochs has ended with this checkpoint."""
    epoch, batch = snapshot.description["place"]
    return epoch >= epochs or bool(snapshot.description["stopped"] and not batch)


def begin(trainer: Any, checkpoint: Checkpoint, data: Data) -> tuple[Snapshot | None, dict[str, Any]]:
    """Loads the checkpoint, if there is one, and what holds of the whole run.

    Raises:
        ValueError: The checkpoint is damaged or does not fit the trainer, which stays as it was.
    """
    if data.specs is None:
        raise ValueError(
            "`Checkpoint` requires data whose shapes are known before training. "
            f"Received: x of type {type(data.x).__name__}. Pass arrays, a `tf.data.Dataset` or a generator."
        )
    for module in (trainer.encoder, *(head.module for head in trainer.heads.values())):
        if use_seed_variables(module):
            trainer.train_function = None
    snapshot = checkpoint.load(trainer)
    if snapshot is None:
        # The seed is taken from the state, not drawn, so that nothing else draws other numbers than without a checkpoint.
        return None, {"seed": zlib.crc32(repr(random.getstate()).encode()), "random": random_numbers()}
    start = snapshot.description["start"]
    restore_random_numbers(start["random"])
    return snapshot, start


def as_seeded_dataset(arguments: dict[str, Any], data: Data, seed: int) -> tuple[dict[str, Any], Data]:
    """Arguments and data of a `fit` whose batches come in the same order in each process."""
    if isinstance(data.x, tf.data.Dataset) or (not data.is_arrays and data.batches is None):
        return arguments, data
    arguments = {name: value for name, value in arguments.items() if name not in ("y", "sample_weight")}
    batch_size, shuffle = arguments.pop("batch_size", None), arguments.pop("shuffle", True)
    if batch_size is not None:  # Keras would use it for the validation data, too
        arguments.setdefault("validation_batch_size", batch_size)
    dataset = data.as_dataset(batch_size, arguments.get("steps_per_epoch"), shuffle, "`Checkpoint`", seed)
    return {**arguments, "x": dataset, "shuffle": False}, Data(dataset, specs=data.specs)


@contextmanager
def interruptible(run: Run | None) -> Iterator[None]:
    """A context in which Ctrl-C ends a run after the present step, when it is saved; a second one ends it at once."""
    if run is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Any = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        run.was_interrupted = True
        signal.signal(signal.SIGINT, before)

    try:
        signal.signal(signal.SIGINT, note)
        yield
    except KeyboardInterrupt as error:
        if error.args:
            sys.stderr.write(f"\n{error}\n")
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def make_run(
    trainer: Any,
    checkpoint: Checkpoint,
    callbacks: Sequence[Any],
    snapshot: Snapshot | None,
    start: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> Run:
    """The callbacks of a `fit` with these arguments."""
    steps = arguments.get("steps_per_epoch")
    if steps is None and isinstance(arguments["x"], tf.data.Dataset):
        steps = int(arguments["x"].cardinality())
    verbose = arguments.get("verbose", "auto")
    return Run(
        trainer,
        checkpoint,
        callbacks,
        snapshot,
        start,
        verbose=1 if verbose == "auto" else verbose,
        epochs=arguments.get("epochs", 1),
        steps=steps if steps is None or steps >= 0 else None,
    )
