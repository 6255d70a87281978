"""How a `fit` with a `Checkpoint` begins: it has the folder for itself, and continues what is there or begins anew."""

from __future__ import annotations

import random
import warnings
import weakref
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from multihead._data.arguments import Call
from multihead._data.described import described, digest_of_first, has_unseeded_shuffle
from multihead._ground.random import RandomStream, random_numbers, restore_random_numbers
from multihead._ground.replicas import is_chief
from multihead._runs.checkpoint import Checkpoint
from multihead._runs.files import locked
from multihead._runs.snapshot import Snapshot
from multihead._runs.variables import draw_from_variables

# Which file a trainer's latest run was saved in, and how many updates the trainer had made when the run ended.
_LATEST: weakref.WeakKeyDictionary[Any, tuple[Path, int]] = weakref.WeakKeyDictionary()


class Start(NamedTuple):
    """Where a run starts.

    Attributes:
        checkpoint: Where and when the run is saved.
        whole: What holds of the whole run: the seed of its shuffles, its data in words, the number of updates before it,
            and the random numbers when it began.
        snapshot: The checkpoint to continue from, whose variables are already loaded; None in a new run.
    """

    checkpoint: Checkpoint
    whole: Mapping[str, Any]
    snapshot: Snapshot | None = None

    @property
    def seed(self) -> int:
        """The seed of the shuffles."""
        return int(self.whole["seed"])

    def is_over(self, epochs: int) -> bool:
        """Whether a run of so many epochs has ended with the checkpoint."""
        return self.snapshot is not None and _is_over(self.snapshot, epochs)


class Opening:
    """A folder that this `fit` has for itself.

    Args:
        checkpoint: The `Checkpoint` of the folder.
        snapshot: What is in it; None for nothing.

    Attributes:
        stream: The global random numbers from which the data are made.
        has_begun: Whether training has begun: nothing was refused.
    """

    def __init__(self, checkpoint: Checkpoint, snapshot: Snapshot | None) -> None:
        self._checkpoint = checkpoint
        self._snapshot = snapshot
        self.stream = RandomStream()
        self.has_begun = False
        if snapshot is not None:  # before data are read and variables created, which may draw
            restore_random_numbers(snapshot.description["start"]["entered"])
        self._entered = random_numbers()

    def begin(self, trainer: Any, call: Call) -> Start:
        """Loads the checkpoint, if there is one, and what holds of the whole run.

        Raises:
            ValueError: The checkpoint does not fit the trainer or the data, or the trainer was trained further. The trainer
                stays as it was.
        """
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
        draw_from_variables(trainer)
        whole: Mapping[str, Any] = {
            # Taken from the state, not drawn, so that nothing else draws other numbers than without a checkpoint.
            "seed": zlib.crc32(repr(random.getstate()).encode()),
            "random": random_numbers(),
            "entered": self._entered,
            "updates": trainer.num_updates,
            "data": described(call),
            "first": digest_of_first(call.data),
        }
        if self._snapshot is not None:
            whole = self._continued(trainer, self._snapshot, call, whole)
        self.stream.start()
        self.has_begun = True
        return Start(self._checkpoint, whole, self._snapshot)

    def _continued(self, trainer: Any, snapshot: Snapshot, call: Call, present: Mapping[str, Any]) -> Mapping[str, Any]:
        """Checks and loads a checkpoint; returns what holds of its run."""
        saved = snapshot.description["start"]
        self._refuse_to_go_back(trainer, snapshot, call.others.get("epochs", 1), present["updates"])
        is_compared = is_chief(trainer)  # the data of the first worker are saved; another one may read other parts
        if is_compared and saved["data"] != present["data"]:
            self._checkpoint.refuse("the data of `fit`", "Pass the data as they were", saved["data"], present["data"])
        self._checkpoint.load_snapshot(trainer, snapshot)
        if is_compared and saved["first"] != present["first"]:
            warnings.warn(
                "`x` does not repeat itself: its first batch differs from that of the run that is continued, so the batches "
                "that follow may differ, too. Make batches from a seed, and pass a new generator to each `fit`.",
                RuntimeWarning,
                stacklevel=2,
            )
        restore_random_numbers(saved["random"])
        return saved

    def _refuse_to_go_back(self, trainer: Any, snapshot: Snapshot, epochs: int, updates: int) -> None:
        """Checks that nothing that the trainer has learned is lost by loading a checkpoint.

        The trainer is either where the run began, as in the same program started again, or where the run, or its last
        checkpoint, has ended.
        """
        first, saved = snapshot.description["start"]["updates"], snapshot.description["updates"]
        folder = str(self._checkpoint.directory)
        was_latest = _LATEST.get(trainer) == (self._checkpoint.path.resolve(), updates)
        if was_latest and updates == saved != first and _is_over(snapshot, epochs):
            raise ValueError(
                "`callbacks` must have a `Checkpoint` of a run that has not ended. Received: the folder "
                f"{folder!r}, whose run this trainer has ended after {snapshot.description['place'][0]} epochs, with "
                f"epochs={epochs}. Pass more `epochs` to make the run longer, or another folder for another run."
            )
        if not was_latest and updates not in (first, saved):
            raise ValueError(
                "`callbacks` must have a `Checkpoint` of this trainer's run, or what was trained since would be lost. "
                f"Received: a trainer after {updates} updates; the run in {folder!r} began after {first} and was saved "
                f"after {saved}. Choose another folder to train on, or call the checkpoint's `load` to go back."
            )


def _is_over(snapshot: Snapshot, epochs: int) -> bool:
    epoch, batch = snapshot.description["place"]
    return epoch >= epochs or bool(snapshot.description["stopped"] and not batch)


@contextmanager
def opened(trainer: Any, checkpoint: Checkpoint | None) -> Iterator[Opening | None]:
    """A context in which a `fit` has a folder for itself; None without a checkpoint.

    Raises:
        ValueError: Another process has it, it cannot be written, or its checkpoint is damaged.
    """
    if checkpoint is None:
        yield None
        return
    with ExitStack() as stack:
        if is_chief(trainer):
            stack.enter_context(_for_itself(checkpoint))
        opening = Opening(checkpoint, checkpoint.read())
        try:
            yield opening
        finally:
            opening.stream.end()
            if opening.has_begun:
                _LATEST[trainer] = checkpoint.path.resolve(), trainer.num_updates


@contextmanager
def _for_itself(checkpoint: Checkpoint) -> Iterator[None]:
    folder = checkpoint.directory
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_ours = stack.enter_context(locked(folder / "run.lock"))
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
        yield
