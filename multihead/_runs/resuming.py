"""Runs that are resumed where they were stopped, within an epoch too, for `callbacks.Checkpoint`.

A resumed run calls Keras's loop from the beginning, so that the data pass through the same pipeline and shuffle as
before, but until the place of the checkpoint nothing is computed and no callback is called.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._data.arguments import Call
from multihead._ground.keras import callbacks_of
from multihead._ground.random import random_numbers, restore_random_numbers
from multihead._runs.callback_state import CallbackStates, continue_files
from multihead._runs.checkpoint import Checkpoint
from multihead._runs.opening import Start
from multihead._runs.snapshot import Snapshot
from multihead._runs.variables import names_of_logs, reset_metrics


def checkpoint_of(callbacks: Any) -> tuple[Checkpoint | None, Any]:
    """The `Checkpoint` among the callbacks of a `fit`, and the others; without one, the callbacks as they are.

    Keras's `BackupAndRestore` is replaced by one, which saves at the same times into the same folder.

    Raises:
        ValueError: There are several.
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


class Saving(keras.callbacks.CallbackList):
    """The callbacks of a run that is saved.

    Args:
        trainer: The trainer.
        checkpoint: Where and when to save.
        start: What holds of the whole run.
        callbacks: The other callbacks.
        **params: The parameters of callbacks, as Keras sets them.
    """

    def __init__(
        self, trainer: Any, checkpoint: Checkpoint, start: Mapping[str, Any], callbacks: Sequence[Any], **params: Any
    ) -> None:
        self._trainer = trainer
        self._checkpoint = checkpoint
        self._start = start
        self._epoch, self._batch, self._since = 0, 0, 0
        self.was_interrupted = False
        super().__init__(callbacks, add_history=True, add_progbar=params["verbose"] != 0, model=trainer, **params)

    @property
    def is_replaying(self) -> bool:
        """Whether the place of a checkpoint is still to be reached."""
        return False

    def on_train_begin(self, logs: Any = None) -> None:
        """Called by Keras."""
        super().on_train_begin(logs)
        self._states = CallbackStates(self.callbacks)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        self._epoch, self._batch = epoch, 0
        super().on_epoch_begin(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called by Keras."""
        done, self._batch = batch + 1 - self._batch, batch + 1
        super().on_train_batch_end(batch, logs)
        self._since += done
        if self.was_interrupted or self._checkpoint.is_due(self._since):
            self._save(self._epoch, self._batch)
        self._end_if_interrupted()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
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
                "updates": self._trainer.num_updates,
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
                "the same call of `fit`, with a `Checkpoint` of this folder, continues it."
            )


class Replay(Saving):
    """The callbacks of a resumed run: until the place of its checkpoint, nothing is computed and no callback is called.

    Args:
        *args: The arguments of `Saving`.
        snapshot: The checkpoint, whose variables are already loaded.
        is_over: Whether the run has ended with it.
        **params: The parameters of callbacks, as Keras sets them.
    """

    def __init__(self, *args: Any, snapshot: Snapshot, is_over: bool, **params: Any) -> None:
        super().__init__(*args, **params)
        self._snapshot = snapshot
        self._place = tuple(snapshot.description["place"])
        self._is_over = is_over
        self._is_reached = False
        self._names = dict.fromkeys(names_of_logs(self._trainer), 0.0)

    @property
    def is_replaying(self) -> bool:
        """Whether the place of the checkpoint is still to be reached."""
        return not self._is_reached

    def pass_over(self, iterator: Any, number: int) -> dict[str, Any]:
        """Draws the batches of a step that was made before the checkpoint; returns logs of the right names."""
        draw(iterator, number)
        return self._names

    def on_train_begin(self, logs: Any = None) -> None:
        """Called by Keras."""
        continue_files(self.callbacks, self._place[0])
        super().on_train_begin(logs)
        if self._is_over:
            self._reach()
            if self.params["verbose"]:
                folder = self._checkpoint.directory
                sys.stdout.write(f"The run in {folder} has ended; its result is loaded, and nothing is trained.\n")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        self._epoch, self._batch = epoch, 0
        if not self._is_reached and (epoch, 0) == self._place:
            self._reach()
            reset_metrics(self._trainer)
        if self._is_reached or epoch == self._place[0]:
            super().on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Called by Keras."""
        if self._is_reached:
            super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called by Keras."""
        if self._is_reached:
            super().on_train_batch_end(batch, logs)
        elif (self._epoch, batch + 1) >= self._place:
            self._batch = batch + 1
            self._reach()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        if self._is_reached:
            super().on_epoch_end(epoch, logs)

    def on_test_begin(self, logs: Any = None) -> None:
        """Called by Keras."""
        if self._is_reached:
            super().on_test_begin(logs)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Called by Keras."""
        if self._is_reached:
            super().on_test_batch_begin(batch, logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called by Keras."""
        if self._is_reached:
            super().on_test_batch_end(batch, logs)

    def on_test_end(self, logs: Any = None) -> None:
        """Called by Keras."""
        if self._is_reached:
            super().on_test_end(logs)

    def _reach(self) -> None:
        """Restores everything: from here on, the run continues."""
        self._checkpoint.assign(self._trainer, self._snapshot)
        self._states.restore(self._snapshot.description["callbacks"], self._snapshot.arrays)
        restore_random_numbers(self._snapshot.description["random"])
        self._trainer.stop_training = self._snapshot.description["stopped"]
        self._is_reached = True


def draw(iterator: Any, number: int) -> dict[str, Any]:
    """Draws the batches of a step, of which all but the first may be missing; returns logs without statistics."""
    next(iterator)
    for _ in range(number - 1):
        next(iterator, None)
    return {}


def make_run(trainer: Any, start: Start, call: Call) -> tuple[Saving, Call]:
    """The callbacks of a `fit` that is saved, and the call with them."""
    others, steps, epochs = call.others, call.others.get("steps_per_epoch"), call.others.get("epochs", 1)
    if steps is None and isinstance(call.data.x, tf.data.Dataset):
        steps = int(call.data.x.cardinality())
    verbose = others.get("verbose", "auto")
    params = {
        "verbose": 1 if verbose == "auto" else verbose,
        "epochs": epochs,
        "steps": steps if steps is None or steps >= 0 else None,
    }
    args = (trainer, start.checkpoint, start.whole, others["callbacks"])
    if start.snapshot is None:
        run = Saving(*args, **params)
        return run, call.with_others(callbacks=run)
    is_over = start.is_over(epochs)
    run = Replay(*args, snapshot=start.snapshot, is_over=is_over, **params)
    return run, call.with_others(callbacks=run, **({"initial_epoch": epochs} if is_over else {}))


@contextmanager
def interruptible(run: Saving | None) -> Iterator[None]:
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
