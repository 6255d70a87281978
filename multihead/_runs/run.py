"""A `fit` with a `Checkpoint`: it locks the folder, begins or continues the run there, and saves it.

A continued run calls Keras's loop from the beginning, so that the data pass through the same pipeline and shuffle as before,
but until the place of the checkpoint its steps only draw their batches, and no callback is called.
"""

from __future__ import annotations

import random
import warnings
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import keras
import tensorflow as tf

from multihead._data.arguments import Call
from multihead._data.described import described, digest_of_first, has_unseeded_shuffle
from multihead._ground.keras import callbacks_of
from multihead._ground.random import RandomStream, random_numbers, restore_random_numbers
from multihead._ground.replicas import is_chief
from multihead._ground.types import Callback, Config, Trainer
from multihead._runs.callbacks import RunCallbacks
from multihead._runs.checkpoint import Checkpoint
from multihead._runs.files import locked
from multihead._runs.variables import draw_from_variables

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

    Args:
        trainer: The trainer.
        checkpoint: Where and when the run is saved.

    Attributes:
        stream: The global random numbers from which the data are made.
        start: What holds of the whole run: the seed of its shuffles, its data as text, the number of updates before it, and
            the random numbers when it began. Empty before `begin`.
    """

    def __init__(self, trainer: Trainer, checkpoint: Checkpoint) -> None:
        self._trainer = trainer
        self._checkpoint = checkpoint
        self._snapshot = checkpoint.read()
        self.stream = RandomStream()
        self.start: Config = {}
        if self._snapshot is not None:  # before data are read and variables created, which may draw
            restore_random_numbers(self._snapshot.description["start"]["entered"])
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
        draw_from_variables(self._trainer)
        start: Config = {
            # Taken from the state, not drawn, so that nothing else draws other numbers than without a checkpoint.
            "seed": zlib.crc32(repr(random.getstate()).encode()),
            "random": random_numbers(),
            "entered": self._entered,
            "updates": self._trainer.num_updates,
            "data": described(call),
            "first": digest_of_first(call.data),
        }
        if self._snapshot is not None:
            self._load(self._snapshot.description["start"], start, call.others["epochs"])
            start = self._snapshot.description["start"]
        self.stream.start()
        self.start = start
        return call.in_fixed_order(int(start["seed"]), batches_per_step)

    def _load(self, saved: Config, present: Config, epochs: int) -> None:
        """Checks and loads the checkpoint, given what holds of its run and of this `fit`."""
        assert self._snapshot is not None  # noqa: S101
        self._refuse_to_go_back(saved["updates"], self._snapshot.description["updates"], present["updates"], epochs)
        is_compared = is_chief(self._trainer)  # the data of the first worker are saved; another one may read other parts
        if is_compared and saved["data"] != present["data"]:
            self._checkpoint.refuse("the data of `fit`", "Pass the data as they were", saved["data"], present["data"])
        self._checkpoint.load_snapshot(self._trainer, self._snapshot)
        if is_compared and saved["first"] != present["first"]:
            warnings.warn(
                "`x` does not repeat itself: its first batch differs from that of the run that is continued, so the batches "
                "that follow may differ, too. Make batches from a seed, and pass a new generator to each `fit`.",
                RuntimeWarning,
                stacklevel=2,
            )
        restore_random_numbers(saved["random"])

    def _refuse_to_go_back(self, first: int, saved: int, updates: int, epochs: int) -> None:
        """Checks that nothing that the trainer has learned is lost by loading the checkpoint.

        The trainer is either where the run began, as in the same program started again, or where the run, or its last
        checkpoint, has ended.
        """
        folder = str(self._checkpoint.directory)
        was_latest = _LATEST.get(self._trainer) == (self._checkpoint.path.resolve(), updates)
        if was_latest and updates == saved != first and self._is_over(epochs):
            ended = self._snapshot.description["place"][0] if self._snapshot is not None else 0
            raise ValueError(
                "`callbacks` must have a `Checkpoint` of a run that has not ended. Received: the folder "
                f"{folder!r}, whose run this trainer has ended after {ended} epochs, with epochs={epochs}. Pass more "
                "`epochs` to make the run longer, or another folder for another run."
            )
        if not was_latest and updates not in (first, saved):
            raise ValueError(
                "`callbacks` must have a `Checkpoint` of this trainer's run, or what was trained since would be lost. "
                f"Received: a trainer after {updates} updates; the run in {folder!r} began after {first} and was saved "
                f"after {saved}. Choose another folder to train on, or call the checkpoint's `load` to go back."
            )

    def _is_over(self, epochs: int) -> bool:
        """Whether a run of so many epochs has ended with the checkpoint."""
        if self._snapshot is None:
            return False
        epoch, batch = self._snapshot.description["place"]
        return epoch >= epochs or bool(self._snapshot.description["stopped"] and not batch)

    def with_callbacks(self, call: Call) -> Call:
        """The call whose callbacks save the run, and are called from the place of the checkpoint on."""
        steps, epochs, verbose = (call.others[name] for name in ("steps_per_epoch", "epochs", "verbose"))
        if steps is None and isinstance(call.data.x, tf.data.Dataset):
            steps = int(call.data.x.cardinality())
        callbacks = RunCallbacks(
            self._trainer,
            self._checkpoint,
            self.start,
            self._snapshot,
            call.others["callbacks"],
            is_over=self._is_over(epochs),
            verbose=1 if verbose == "auto" else verbose,
            epochs=epochs,
            steps=steps if steps is None or steps >= 0 else None,
        )
        return call.with_others(callbacks=callbacks, **({"initial_epoch": epochs} if self._is_over(epochs) else {}))
