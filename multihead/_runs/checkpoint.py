"""`Checkpoint`: saves a run, and loads saved runs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import keras
import numpy as np

from multihead._ground.replicas import is_chief
from multihead._ground.types import Config, Logs, Trainer
from multihead._ground.validation import check_choice, check_positive_whole
from multihead._runs.snapshot import Snapshot, read_snapshot, remove_drafts, write_snapshot
from multihead._runs.variables import assign_values, describe, values_of, variables_of

_FILE, LOCK = "run.checkpoint", "run.lock"


class Checkpoint(keras.callbacks.Callback):
    """Saves a run, so that the same program, started again, continues where it stopped and ends with the same result.

    Everything that training changes is saved: the weights, the optimizer's slots and counters, the state of balancer,
    weighting and schedule, the seeds of layers, the metrics of the epoch so far, variables that a subclass of the trainer
    adds, the state of the other callbacks, the logs, the states of Python's and NumPy's random generators, and the place in
    the data, even within an epoch. `fit` finds the checkpoint by itself; nothing else is needed to continue.

    To find its place, a resumed run reads the data before it again, without computing anything. So the data, those of
    validation too, must come in the same order in every process: arrays do, and so do `tf.data` pipelines whose shuffles and
    other draws have a seed, such as those of `mix_datasets`, and generators that draw from a seed. Generators and a shuffled
    `PyDataset` that draw from the global random numbers of Python and NumPy do so unless a callback draws from these, too:
    callbacks are not called again. A shuffle without a seed, and a generator that does not repeat its first batch, are
    reported when `fit` begins.

    A folder is for one run. `fit` refuses to continue a run if what the trainer has learned since would be lost, if the data
    have another batch size, length or seed, or if another process trains in the folder.

    A checkpoint is one file, which replaces the previous one only when it is complete: a run can be killed at any moment. It
    holds numbers and text, no code. With Ctrl-C, `fit` ends after the current step and saves the run. Keras's
    `BackupAndRestore` among the callbacks of `fit` does the same, in its own folder.

    Of every other callback, the attributes that training has changed are saved if they are numbers, strings, arrays,
    collections of these, or variables; a warning names other collections of a class of your own. A callback with the methods
    `get_run_state()`, which returns a dict of such values, and `set_run_state(state)` decides itself what is saved.

    Args:
        directory: A folder.
        every: The number of steps after which the run is saved, or `"epoch"`; it is always saved at the end of an epoch.
        strict: Whether to refuse a checkpoint that does not fit the trainer or the data. False: loads what has the same
            name, shape and dtype, continues at the same place in the data, and warns about the rest.
        keep: Whether the checkpoint is kept at the end of training. False: its own files are deleted then, and the folder if
            nothing else is in it.

    Attributes:
        path: The file.

    Raises:
        ValueError: `every` is neither a whole number of at least 1 nor `"epoch"`.

    Example:
        >>> checkpoint = Checkpoint("runs/first", every=500)
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, every: int | str = "epoch", strict: bool = True, keep: bool = True
    ) -> None:
        super().__init__()
        self.directory = Path(os.fspath(directory))
        self.path = self.directory / _FILE
        if isinstance(every, str):
            check_choice("every", every, ("epoch",))
        self.every = every if every == "epoch" else check_positive_whole("every", every)
        self.strict = strict
        self.keep = keep

    def on_train_begin(self, logs: Logs = None) -> None:
        """Called by Keras, where `fit` is not the trainer's."""
        raise ValueError(
            "`Checkpoint` saves a `MultiHeadTrainer`. "
            f"Received: a model of type {type(self.model).__name__}. Use `keras.callbacks.BackupAndRestore`."
        )

    def save(self, trainer: Trainer, description: Config, arrays: dict[str, np.ndarray]) -> None:
        """Saves a built trainer, with further descriptions and arrays."""
        variables = variables_of(trainer)
        values = values_of(variables)  # with several workers, all of them must read
        if is_chief(trainer):
            described = {**description, "parts": describe(trainer, variables)}
            write_snapshot(self.path, Snapshot(described, {**arrays, **values}))

    def delete(self) -> None:
        """Deletes the checkpoint, and the folder if nothing else is in it."""
        lock = self.directory / LOCK
        with suppress(OSError):  # on some systems, the lock of a run that is in progress
            remove_drafts(self.path)
            self.path.unlink(missing_ok=True)
            if lock.is_file() and lock.stat().st_size == 0:
                lock.unlink()
            if not any(self.directory.iterdir()):
                self.directory.rmdir()

    def read(self) -> Snapshot | None:
        """What the checkpoint holds; None if there is none.

        Raises:
            ValueError: It is damaged, or cannot be read.
        """
        return read_snapshot(self.path) if self.path.exists() else None

    def load(self, trainer: Trainer, snapshot: Snapshot | None = None) -> Snapshot | None:
        """Loads the variables of a built, compiled trainer from the checkpoint.

        Args:
            trainer: The trainer.
            snapshot: What `read` has returned, if it was called before.

        Returns:
            What the checkpoint holds; its place, `description["place"]`, is an epoch and a number of batches. None if there
            is no checkpoint.

        Raises:
            ValueError: The checkpoint is damaged, or does not fit the trainer, which stays as it was.
        """
        snapshot = self.read() if snapshot is None else snapshot
        if snapshot is None:
            return None
        saved, current = snapshot.description["parts"], describe(trainer, variables_of(trainer))
        if saved != current:
            self.refuse("the trainer", "Create the trainer as it was", saved, current)
        self.assign(trainer, snapshot)
        return snapshot

    def refuse(self, what: str, remedy: str, saved: Mapping[str, str], present: Mapping[str, str]) -> None:
        """Reports how what was saved, as text by name, differs from what is there now; only warns unless `strict`.

        Raises:
            ValueError: The checkpoint is strict.
        """
        names = [name for name in {**saved, **present} if saved.get(name) != present.get(name)]
        rows = [("", "checkpoint", "trainer"), *((name, saved.get(name, "-"), present.get(name, "-")) for name in names)]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        table = (f"  {name:<{widths[0]}}  {one:<{widths[1]}}  {other}".rstrip() for name, one, other in rows)
        text = f"The checkpoint in {self.directory} does not fit {what}. Received:\n" + "\n".join(table) + "\n"
        if self.strict:
            raise ValueError(f"{text}{remedy}, choose another folder, or pass `strict=False` to load what fits.")
        warnings.warn(f"{text}What differs is not loaded.", RuntimeWarning, stacklevel=2)

    def assign(self, trainer: Trainer, snapshot: Snapshot) -> None:
        """Gives the trainer's variables the values of a checkpoint, as far as they fit."""
        variables = variables_of(trainer)
        saved, current = snapshot.description["parts"], describe(trainer, variables)
        # The state of methods is by position of the heads.
        by_heads = ("weighting", "balancer", "head_schedule", "metrics", "trainer")
        moved = by_heads if saved["heads"] != current["heads"] else ()
        fitting = {
            name: variable
            for name, variable in variables.items()
            if saved.get(name) == current[name] and name.partition("/")[0] not in moved
        }
        assign_values(fitting, snapshot.arrays)
